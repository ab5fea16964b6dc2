"""Rounds of the decoding loop, and what they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True)
class Round:
    """One turn of the loop: what came out and where the time went.

    Attributes:
        tokens: tokens added to the text.
        drafted: guesses that the target checked.
        accepted: guesses that became text.
        draft_ns, verify_ns, sample_ns, commit_ns: nanoseconds spent drafting, in the target's forward, choosing
            tokens, and committing and evicting.
        drafter: name of who guessed; None in a plain round.
    """

    tokens: list[int]
    drafted: int
    accepted: int
    draft_ns: int
    verify_ns: int
    sample_ns: int
    commit_ns: int
    drafter: str | None = None

    @property
    def total_ns(self) -> int:
        """Nanoseconds of the whole round."""
        return self.draft_ns + self.verify_ns + self.sample_ns + self.commit_ns


class Guesses(TypedDict):
    """How many guesses the target checked, and how many of them became text."""

    checked: int
    accepted: int


class Speculation(TypedDict):
    """What guessing ahead came to in some rounds.

    ``gamma_histogram`` counts rounds by their guesses. A guess counts as checked in ``by_position``, whose first entry
    is that of first guesses, if all before it were accepted; in ``by_drafter`` all guesses are.
    """

    gamma_histogram: dict[str, int]
    by_position: list[Guesses]
    by_drafter: dict[str, Guesses]


def speculation(rounds: Sequence[Round]) -> Speculation:
    """Acceptance by position and drafter, and how often how many tokens were guessed."""
    gammas = Counter(entry.drafted for entry in rounds)
    drafters = {entry.drafter for entry in rounds if entry.drafter}
    return Speculation(
        gamma_histogram={str(gamma): gammas[gamma] for gamma in sorted(gammas)},
        by_position=[
            Guesses(
                checked=sum(entry.drafted > position and entry.accepted >= position for entry in rounds),
                accepted=sum(entry.accepted > position for entry in rounds),
            )
            for position in range(max(gammas, default=0))
        ],
        by_drafter={
            name: Guesses(
                checked=sum(entry.drafted for entry in rounds if entry.drafter == name),
                accepted=sum(entry.accepted for entry in rounds if entry.drafter == name),
            )
            for name in sorted(drafters)
        },
    )


def time_split(rounds: Sequence[Round], total_ns: int) -> dict[str, float]:
    """Shares of ``total_ns``: draft, verify, sample, kv (commit and eviction), and other, the loop around them."""
    split_ns = {
        "draft": sum(entry.draft_ns for entry in rounds),
        "verify": sum(entry.verify_ns for entry in rounds),
        "sample": sum(entry.sample_ns for entry in rounds),
        "kv": sum(entry.commit_ns for entry in rounds),
    }
    split_ns["other"] = total_ns - sum(split_ns.values())
    return {part: time / total_ns for part, time in split_ns.items()}
