"""What a round costs on this device: measured once, then corrected by the rounds themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgepipe.runtimes.llm.drafters.chain import Source

# What is seen counts within this factor of the estimate: the machine may have been disturbed.
OUTLIER = 3.0

# What a draft may read before its first guess, in plain rounds: if it was measured to be good, or else.
GOOD = 0.5  # acceptance
READING = {True: 4.0, False: 1.0}

# A token more in a forward costs at least this, in plain rounds; less was measured by mistake.
LEAST_RISE = 0.02


@dataclass(frozen=True)
class DraftCost:
    """What a drafter takes, in plain rounds.

    Attributes:
        first: for the first guess of a draft, what the round before added being read along.
        guess: for each guess after it.
        catch_up: to read a token that was added before that.
    """

    first: float
    guess: float
    catch_up: float

    def draft(self, guesses: int) -> float:
        """For so many guesses, 1 or more."""
        return self.first + (guesses - 1) * self.guess


@dataclass(frozen=True)
class MeasuredCosts:
    """What was measured before the first text.

    Attributes:
        forward_ns: nanoseconds of a forward by its width, 1 included.
        drafters: by name; one that is not there is taken to cost nothing until it has been asked.
        acceptance: share of a drafter's guesses that were right, of those put to the test in a first text.
    """

    forward_ns: Mapping[int, float]
    drafters: Mapping[str, DraftCost]
    acceptance: Mapping[str, float] = field(default_factory=dict)


class Costs:
    """The running estimate, in units of a plain round: one forward of a single token and what goes with it.

    It begins as measured and learns from pairs of a wide and a plain round that follow each other; drafting is
    compared with the forward of its own round. What slows all down, as heat or another program, cancels out.

    Attributes:
        acceptance: as measured.
    """

    def __init__(self, measured: MeasuredCosts, *, widths: Sequence[int] | None = None) -> None:
        """``widths`` are the decoder's, where it has some only (`edgepipe.runtimes.llm.decoder.Decoder.widths`)."""
        self.widths = widths
        self.acceptance = measured.acceptance
        self._rise = _interpolated(measured.forward_ns)
        self._drafters = dict(measured.drafters)
        more = range(1, len(self._rise) - 1)
        # How like two widths are, by their tokens more than one.
        self._likeness = [[min(one, other) / max(one, other) for other in more] for one in more]
        self._pairs = 0
        self._last = (0, 0.0)

    def forward(self, width: int) -> float:
        """A round whose forward has ``width`` tokens, drafting apart; the curve goes on as steeply as it ends."""
        width = self.padded(width)
        rise, last = self._rise, len(self._rise) - 1
        if width <= last:
            return 1 + rise[width]
        return 1 + rise[last] + (width - last) * (rise[last] - rise[last - 1])

    def padded(self, width: int) -> int:
        """The width of the forward that ``width`` tokens go through."""
        return next((each for each in self.widths or () if each >= width), width)

    def drafter(self, name: str) -> DraftCost:
        """Of one drafter."""
        return self._drafters.get(name, _NOTHING)

    def good(self, name: str) -> bool:
        """Whether at least half of the drafter's guesses were right in another text."""
        return self.acceptance.get(name, 0.0) >= GOOD

    def reach(self, name: str) -> int | None:
        """Tokens that a drafter is to read at most before it guesses; None for all."""
        catch_up = self.drafter(name).catch_up
        return max(1, int(READING[self.good(name)] / catch_up)) if catch_up else None

    def observe(self, width: int, taken_ns: float) -> None:
        """A round has taken so long, drafting apart."""
        if taken_ns <= 0:
            return
        last, self._last = self._last, (self.padded(width), taken_ns)
        if last[0] and (last[0] == 1) != (width == 1):
            (wide, wide_ns), (_, plain_ns) = (last, self._last) if width == 1 else (self._last, last)
            self._learn(wide, wide_ns / plain_ns - 1)

    def _learn(self, wide: int, rise: float) -> None:
        """A forward of ``wide`` tokens was seen to cost so much more than one: those of like widths will, too."""
        self._pairs += 1
        rate = max(0.1, 1 / (1 + self._pairs))
        ratio = _within_outlier(rise / (self.forward(wide) - 1))
        for more, likeness in enumerate(self._likeness[min(wide, len(self._rise) - 1) - 2], start=1):
            learnt = self._rise[1 + more] * (1 + rate * likeness * (ratio - 1))
            self._rise[1 + more] = max(learnt, LEAST_RISE * more)

    def observe_draft(self, source: Source, guesses: int, draft_ns: float, other_ns: float) -> None:
        """A drafter has taken ``draft_ns`` for its guesses, and the rest of the round ``other_ns``."""
        if not guesses or other_ns <= 0:
            return
        cost, taken = self.drafter(source.name), draft_ns / other_ns * self.forward(guesses + 1)
        if not cost.first:  # nothing is known
            cost = DraftCost(taken / guesses, taken / guesses, 0.0)
        elif source.behind <= guesses + 1 or not cost.catch_up:
            scale = _towards(1.0, taken / cost.draft(guesses), 0.2)
            cost = DraftCost(scale * cost.first, scale * cost.guess, cost.catch_up)
        else:
            catch_up = max(0.0, taken - cost.draft(guesses)) / source.behind
            cost = DraftCost(cost.first, cost.guess, _towards(cost.catch_up, catch_up, 0.2))
        self._drafters[source.name] = cost


_NOTHING = DraftCost(0.0, 0.0, 0.0)


def _interpolated(forward_ns: Mapping[int, float]) -> list[float]:
    """t(S) / t(1) - 1 by S, linear between the measured widths, each token adding `LEAST_RISE` or more."""
    rise = [0.0, 0.0]
    for width in sorted(forward_ns)[1:]:
        last = len(rise) - 1
        step = max(LEAST_RISE, (forward_ns[width] / forward_ns[1] - 1 - rise[last]) / (width - last))
        rise += [rise[last] + step * count for count in range(1, width - last + 1)]
    return rise if len(rise) > 2 else [0.0, 0.0, LEAST_RISE]


def _towards(estimate: float, seen: float, rate: float) -> float:
    """The estimate moved towards what was seen."""
    return estimate * (1 + rate * (_within_outlier(seen / estimate) - 1)) if estimate else rate * seen


def _within_outlier(ratio: float) -> float:
    return min(max(ratio, 1 / OUTLIER), OUTLIER)
