"""Prompt lookup: copy what followed the last occurrence of the text's ending (Saxena 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from edgepipe.runtimes.llm.drafters.drafter import Draft, Drafter

# A longer match says no more than one of this length.
LONGEST_EVIDENCE = 16


class Lookup(Drafter):
    """Matches the longest n-gram that ends the text against the text itself, prompt and output alike."""

    name: ClassVar[str] = "lookup"
    free: ClassVar[bool] = True

    def __init__(self, longest: int = 4, shortest: int = 2, span: int = 8192) -> None:
        """N-grams of ``longest`` down to ``shortest`` tokens are sought in the last ``span`` tokens of the text.

        The span bounds the index: it takes about 350 bytes a token.
        """
        self.sizes = range(longest, shortest - 1, -1)
        self.span = span
        self._followers: dict[tuple[int, ...], int] = {}
        self._indexed = 1

    def evidence(self, text: Sequence[int]) -> int | None:
        """Tokens of the text's ending that the match shares with it, `LONGEST_EVIDENCE` at most."""
        start = self._match(text)
        if start is None:
            return None
        length = self.sizes[-1]
        while length < min(LONGEST_EVIDENCE, start) and text[start - 1 - length] == text[-1 - length]:
            length += 1
        return length

    def propose(self, text: Sequence[int], count: int) -> Draft:
        """The tokens after the most recent match; a match that reaches the text's end goes on into the guesses."""
        start = self._match(text)
        guesses: list[int] = []
        if start is not None:
            for position in range(start, start + count):
                guesses.append(text[position] if position < len(text) else guesses[position - len(text)])
        return Draft(guesses)

    def reset(self) -> None:
        """Forget all n-grams."""
        self._followers.clear()
        self._indexed = 1

    def _match(self, text: Sequence[int]) -> int | None:
        """The position that follows the most recent match of the longest n-gram that has one."""
        self._index(text)
        for size in self.sizes:
            start = self._followers.get(tuple(text[-size:])) if size < len(text) else None
            if start is not None:
                return start
        return None

    def _index(self, text: Sequence[int]) -> None:
        """Remember, for every n-gram of the span that something follows, the position of what follows it last."""
        for follower in range(self._indexed, len(text)):
            for size in self.sizes:
                if size <= follower:
                    self._followers[tuple(text[follower - size : follower])] = follower
                forgotten = follower - self.span
                if size <= forgotten:
                    ngram = tuple(text[forgotten - size : forgotten])
                    if self._followers.get(ngram) == forgotten:
                        del self._followers[ngram]
        self._indexed = len(text)
