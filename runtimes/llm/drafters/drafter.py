"""What a drafter does: guess the tokens that come next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Draft:
    """Guessed tokens and where they came from.

    Attributes:
        tokens: the guesses, in order.
        probabilities: for each guess the distribution q, float64 ``[vocab_size]``, that it was drawn from; None when
            the guesses were not drawn (q is one-hot).
    """

    tokens: list[int]
    probabilities: list[np.ndarray] | None = None


class Drafter(ABC):
    """Guesses for the target to verify. Any guess is safe: verification makes the output exact.

    Attributes:
        name: what the user types; figures are kept by it.
        free: whether guesses cost next to nothing to make.
        reach: tokens that it reads at most before it guesses; None for all that it has not read.
        drawn: whether it may draw its guesses when sampling. If not they are the likeliest tokens, of which fewer
            stand, but then the text that a seed gives is that of plain decoding, whatever is guessed.
        kv_bytes: bytes of keys and values that the drafter itself holds.
    """

    name: ClassVar[str] = "drafter"
    free: ClassVar[bool] = False
    reach: int | None = None
    drawn: bool = True
    kv_bytes: int = 0

    def evidence(self, text: Sequence[int]) -> int | None:
        """How much speaks for the first guess after ``text``, 0 or more; None if there is nothing to propose.

        How often guesses are right is tracked by this figure. It is taken to grow by one from guess to guess, so that
        a drafter for which nothing else tells is tracked by the guess's position in the draft.
        """
        return 0

    @abstractmethod
    def propose(self, text: Sequence[int], count: int) -> Draft:
        """At most ``count`` tokens that may follow ``text`` (all committed tokens and the one not yet fed).

        Between two calls of `reset` the text only grows.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget the text: the next one is another."""

    def close(self) -> None:  # noqa: B027, most hold nothing
        """Let go of what it watches: it is not asked again."""
