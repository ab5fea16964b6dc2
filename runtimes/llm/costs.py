"""What a round costs on this device: measured once, then corrected by the rounds themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A round that the machine disturbed moves an estimate by this factor at most.
OUTLIER = 2.0


@dataclass(frozen=True)
class DraftCost:
    """What a drafter takes, in plain rounds: for a guess, and to read a token that was added without it."""

    guess: float
    catch_up: float


@dataclass(frozen=True)
class MeasuredCosts:
    """What was measured before the first text.

    Attributes:
        forward_ns: nanoseconds of a forward by its width, 1 included.
        drafters: by name; one that is not there is taken to cost nothing until it has been asked.
    """

    forward_ns: Mapping[int, float]
    drafters: Mapping[str, DraftCost]


class Costs:
    """The running estimate, in units of a plain round: one forward of a single token and what goes with it.

    The shape of the curve is as measured. A slope stretches what it rises above 1, and is learnt from pairs of a wide
    and a plain round that follow each other: what slows both down, as heat or another program, cancels out.

    Attributes:
        plain_ns: nanoseconds of a plain round.
        slope: observed (t(S) / t(1) - 1) divided by the measured one.
    """

    def __init__(self, measured: MeasuredCosts, *, corrected: bool = True) -> None:
        """Without ``corrected`` nothing is learnt: the same text then gets the same rounds again."""
        self.plain_ns = measured.forward_ns[1]
        self.slope = 1.0
        self.corrected = corrected
        self._rise = _interpolated(measured.forward_ns)
        self._drafters = dict(measured.drafters)
        self._last: tuple[int, float] | None = None

    def forward(self, width: int) -> float:
        """A round whose forward has ``width`` tokens, drafting apart."""
        rise = self._rise
        if width < len(rise):
            return 1 + self.slope * rise[width]
        return 1 + self.slope * (rise[-1] + (width - len(rise) + 1) * (rise[-1] - rise[-2]))

    def drafter(self, name: str) -> DraftCost:
        """Of one drafter."""
        return self._drafters.get(name, _NOTHING)

    def observe(self, width: int, taken_ns: float) -> None:
        """A round has taken so long, drafting apart."""
        if not self.corrected or taken_ns <= 0:
            return
        last, self._last = self._last, (width, taken_ns)
        if last is not None and (last[0] == 1) != (width == 1):
            wide, plain = (last, self._last) if width == 1 else (self._last, last)
            rise = self._rise[wide[0]] if wide[0] < len(self._rise) else self.forward(wide[0]) - 1
            if rise > 0:
                self.slope = _towards(self.slope, (wide[1] / plain[1] - 1) / rise, 0.1)
        self.plain_ns = _towards(self.plain_ns, taken_ns / self.forward(width), 0.2 if width == 1 else 0.1)

    def observe_draft(self, name: str, guesses: int, behind: int, taken_ns: float) -> None:
        """A drafter has taken so long for its guesses, having been so many tokens behind."""
        if not self.corrected or not guesses:
            return
        cost, taken = self.drafter(name), taken_ns / self.plain_ns
        # Up to a round's tokens are read along with the first guess.
        if behind <= guesses + 1 or not cost.catch_up:
            guess = taken / guesses if cost is _NOTHING else _towards(cost.guess, taken / guesses, 0.2)
            self._drafters[name] = DraftCost(guess, cost.catch_up)
        else:
            catch_up = max(0.0, taken - guesses * cost.guess) / behind
            self._drafters[name] = DraftCost(cost.guess, _towards(cost.catch_up, catch_up, 0.2))


_NOTHING = DraftCost(0.0, 0.0)


def _interpolated(forward_ns: Mapping[int, float]) -> list[float]:
    """t(S) / t(1) - 1 by S, linear between the measured widths; a wider forward is never the cheaper."""
    rise, highest = [0.0, 0.0], 0.0
    for width in sorted(forward_ns)[1:]:
        last = len(rise) - 1
        highest = max(highest, forward_ns[width] / forward_ns[1] - 1)
        step = (highest - rise[-1]) / (width - last)
        rise += [rise[last] + step * (between - last) for between in range(last + 1, width + 1)]
    return rise if len(rise) > 2 else [0.0, 0.0, 0.0]


def _towards(estimate: float, seen: float, rate: float) -> float:
    """The estimate moved towards what was seen, which counts within `OUTLIER` of it."""
    return estimate + rate * (min(max(seen, estimate / OUTLIER), estimate * OUTLIER) - estimate)
