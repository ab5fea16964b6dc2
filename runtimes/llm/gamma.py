"""How many tokens to guess each round: as many as bring the most tokens per second, on this device and this text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgepipe.runtimes.llm.costs import Costs
from edgepipe.runtimes.llm.drafters.chain import Source

# `--gamma auto` goes no further: where 15 guesses stand, the forward's width is what costs.
MOST_GUESSES = 15


@dataclass(frozen=True)
class Choice:
    """What to do in a round.

    Attributes:
        source: whom to ask; None decodes plainly.
        count: for how many guesses.
        watched: whose first guess to compare with the token that comes, checked or not.
    """

    source: Source | None = None
    count: int = 0
    watched: tuple[Source, ...] = ()


PLAIN = Choice()


class Gamma(Protocol):
    """Chooses the guesses of every round.

    ``most`` is the largest count that is ever chosen.
    """

    most: int

    @property
    def resting(self) -> bool:
        """Whether nobody is to be asked in this round but for free."""
        return False

    def choose(self, sources: Sequence[Source], limit: int) -> Choice:
        """Whom of ``sources`` to ask for how many guesses, ``limit`` at most."""
        ...

    def observe_guesses(self, source: Source, checked: int, accepted: int) -> None:
        """Of a source's first ``checked`` guesses, ``accepted`` have become text, and then came another token."""
        ...

    def observe_round(self, choice: Choice, guesses: int, tokens: int, draft_ns: int, other_ns: int) -> None:
        """A round is over: the guesses that were checked, the tokens that it added, and its nanoseconds."""
        ...


class FixedGamma(Gamma):
    """The first source that has something, always for as many guesses."""

    def __init__(self, gamma: int) -> None:
        self.most = gamma

    def choose(self, sources: Sequence[Source], limit: int) -> Choice:
        """See `Gamma.choose`."""
        count = min(self.most, limit)
        return Choice(sources[0], count) if sources and count > 0 else PLAIN

    def observe_guesses(self, source: Source, checked: int, accepted: int) -> None:
        """Nothing is learnt."""

    def observe_round(self, choice: Choice, guesses: int, tokens: int, draft_ns: int, other_ns: int) -> None:
        """Nothing is learnt."""


class Acceptance:
    """How often guesses are right, by drafter and by the evidence for the guess; recent ones count more."""

    WEIGHT, LATER_WEIGHT = 3.0, 8.0  # guesses that the prior counts for, of a first guess and of later ones
    MEMORY = 0.95
    LARGEST = 32  # evidence beyond it tells no more

    def __init__(self, measured: Mapping[str, float]) -> None:
        """``measured`` in another text, by drafter, is what a first guess is taken to be worth at first."""
        self._measured = measured
        self._counts: dict[tuple[str, int], list[float]] = {}

    def rate(self, source: Source, position: int, before: float | None = None) -> float:
        """Probability that the guess at ``position`` stands if all before it do, the rate of the last being ``before``.

        What has not been seen is taken to be as ``before``; a first guess as measured, else to be right as often as
        not, or oftener if much speaks for it.
        """
        evidence = min(source.evidence + position, self.LARGEST)
        counts = self._counts.get((source.name, evidence))
        prior = before
        if prior is None:
            prior = self._measured.get(source.name, max(0.5, evidence / (evidence + 2)))
        weight = self.WEIGHT if before is None else self.LATER_WEIGHT
        return prior if counts is None else (counts[0] + weight * prior) / (counts[1] + weight)

    def observe(self, source: Source, checked: int, accepted: int) -> None:
        """The guesses up to the first wrong one were put to the test."""
        for position in range(min(checked, accepted + 1)):
            key = (source.name, min(source.evidence + position, self.LARGEST))
            counts = self._counts.setdefault(key, [0.0, 0.0])
            counts[0] = counts[0] * self.MEMORY + (position < accepted)
            counts[1] = counts[1] * self.MEMORY + 1


class AutoGamma:
    """Maximises expected tokens per expected time (Leviathan et al. 2022, theorem 3.8, with the device's own costs).

    After a forward of gamma guesses, 1 + a1 + a1 a2 + ... tokens are expected, ai being the acceptance at position i;
    it takes t(gamma + 1) / t(1) + c gamma plain rounds. Predictions may be wrong, so that a purse pays for guessing:
    every round puts in the tokens it brought and takes out what it cost, plain rounds put in `ALLOWANCE` of theirs.
    No round guesses more than a part of the purse can pay for if all of it is wrong; guesses that are free are still
    watched, and fill it with what a first guess would have won. A drafter that is not worth asking is tried with one
    guess now and then, rarely if it fails, and not even considered for some rounds in between, as thinking costs, too;
    after a row of rounds with guesses comes a plain one, to see what they cost beside it.
    """

    GAIN = 1.02  # predicted, or it is not worth the risk
    ALLOWANCE = 0.01
    PURSE = 1.5, 16.0  # at first and at most, in plain rounds
    STAKE = 0.35  # of the purse, on more than the fewest guesses: a good drafter may begin badly
    SPREAD = 32  # rounds over which catching up is to pay for itself
    LONGEST_PAUSE = 256  # rounds from one trial of a drafter to the next
    LONGEST_ROW = 64  # rounds with guesses from one plain round to the next
    LONGEST_REST = 8  # rounds in which drafters are not considered that are not worth asking

    def __init__(self, costs: Costs, most: int = MOST_GUESSES) -> None:
        """Where the engine has some widths only, all of one is used as long as the text allows: less costs as much."""
        self.costs = costs
        self.most = most
        self.acceptance = Acceptance(costs.acceptance)
        self._counts = [count for count in range(1, most + 1) if costs.padded(count + 1) == count + 1]
        self._purse = self.PURSE[0]
        self._refused: Source | None = None
        self._row, self._row_limit = 0, 4
        self._rest = 0
        self._pause: dict[str, int] = {}
        self._since_trial: dict[str, int] = {}
        # Drafters known to be good: that they read the prompt is an advance, which the purse need not pay for.
        self._known_good = {name for name in costs.acceptance if costs.good(name)}

    @property
    def resting(self) -> bool:
        """See `Gamma.resting`."""
        return self._rest > 0

    def choose(self, sources: Sequence[Source], limit: int) -> Choice:
        """See `Gamma.choose`."""
        self._refused = None
        if not sources:
            return PLAIN
        best, best_value = PLAIN, self.GAIN
        for source in sources:
            count, value = self._best_count(source, limit)
            if value > best_value:
                best, best_value = Choice(source, count), value
            elif not count:
                self._refused = source
        if best.source is None and not self.resting:
            best = self._trial(sources, limit)
        elif self._row == self._row_limit:
            best = PLAIN
        watched = tuple(source for source in sources if source.free and source is not best.source)
        return Choice(best.source, best.count, watched) if watched else best

    def observe_guesses(self, source: Source, checked: int, accepted: int) -> None:
        """See `Gamma.observe_guesses`."""
        self.acceptance.observe(source, checked, accepted)
        if source is self._refused:
            self._fill(min(accepted, 1) - (self.costs.forward(2) - 1))

    def observe_round(self, choice: Choice, guesses: int, tokens: int, draft_ns: int, other_ns: int) -> None:
        """See `Gamma.observe_round`."""
        costs, source = self.costs, choice.source
        costs.observe(guesses + 1, other_ns)
        self._rest -= self._rest > 0
        for name in self._since_trial:
            self._since_trial[name] += 1
        if source is None:
            if self._row == self._row_limit:
                self._row_limit = min(2 * self._row_limit, self.LONGEST_ROW)
            self._row = 0
            self._fill(self.ALLOWANCE)
            return
        costs.observe_draft(source, guesses, draft_ns, other_ns)
        self._row += 1
        self._fill(tokens - 1 - self._price(source, guesses))
        self._known_good.discard(source.name)
        if source.name in self._since_trial and tokens > 1:
            self._pause[source.name] = 1

    def _fill(self, plain_rounds: float) -> None:
        self._purse = min(self._purse + plain_rounds, self.PURSE[1])

    def _best_count(self, source: Source, limit: int) -> tuple[int, float]:
        """The count of most tokens per plain round, of those that the purse can pay for, and how many those are."""
        cost = self.costs.drafter(source.name)
        catch_up = cost.catch_up * source.behind / self.SPREAD
        best, best_value = 0, 0.0
        expected, reached, rate = 1.0, 1.0, None
        position = 0
        # Where the text or the engine's widths allow no more, a wide forward may still pay.
        counts = [*(count for count in self._counts if count < limit), min(limit, max(self._counts, default=0))]
        for count in counts:
            stake = self._purse if count == counts[0] else self.STAKE * self._purse
            if self._price(source, count) > stake:
                break
            while position < count:
                rate = self.acceptance.rate(source, position, rate)
                reached *= rate
                expected += reached
                position += 1
            plain_rounds = self.costs.forward(count + 1) + cost.draft(count) + catch_up
            if expected > best_value * plain_rounds:
                best, best_value = count, expected / plain_rounds
            if expected + reached * (self.most - count) <= best_value * plain_rounds:
                break  # though all further guesses stood, and cost nothing
        return best, best_value

    def _price(self, source: Source, count: int) -> float:
        """What a round with so many guesses, 0 or more, costs above a plain one."""
        price = self.costs.forward(count + 1) - 1
        if source.free or not count:
            return price
        cost = self.costs.drafter(source.name)
        behind = 0 if source.name in self._known_good else max(0, source.behind - count - 1)
        return price + cost.draft(count) + cost.catch_up * behind

    def _trial(self, sources: Sequence[Source], limit: int) -> Choice:
        """The first drafter with the fewest guesses, if it is time and the purse can pay for it; else all rest."""
        rest = float(self.LONGEST_REST)
        for source in sources:
            # What is free is watched, which tells as much.
            if source.free or not self._counts or self._counts[0] > limit:
                continue
            bad = source.name in self.costs.acceptance and not self.costs.good(source.name)
            count = self._counts[0]
            price = self._price(source, count)
            # What a bad one costs is to be saved first.
            pause = self._pause.setdefault(
                source.name, min(round(price / self.ALLOWANCE), self.LONGEST_PAUSE) if bad else 1
            )
            since = self._since_trial.setdefault(source.name, 0 if bad else pause)
            if since >= pause and price <= self._purse:
                self._since_trial[source.name] = 0
                self._pause[source.name] = min(2 * pause, self.LONGEST_PAUSE)
                return Choice(source, count)
            rest = min(rest, max(pause - since, (price - self._purse) / self.ALLOWANCE))
        self._rest = int(rest)
        return PLAIN
