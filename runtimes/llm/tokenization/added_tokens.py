"""Added and special tokens: cut out of the text before anything else sees it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from edgepipe.runtimes.llm.tokenization import unicode_sets
from edgepipe.runtimes.llm.tokenization.unicode_sets import WHITE_SPACE

_SPACES = re.compile(f"[{WHITE_SPACE}]*")


@dataclass(frozen=True)
class AddedToken:
    """One entry of "added_tokens" in tokenizer.json.

    `lstrip` / `rstrip` swallow the white space before / after it, `single_word` matches only between characters that
    are no part of a word, `normalized` is looked for in the normalized text, the others in the text as it came.
    """

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class AddedTokenSplitter:
    """Cuts tokens out of a text, leftmost first and of those the longest."""

    def __init__(self, tokens: dict[str, AddedToken]) -> None:
        """`tokens` maps the text to look for (normalized where the token wants it) to its token."""
        self._tokens = tokens
        longest_first = sorted(tokens, key=len, reverse=True)
        self._find = re.compile("|".join(map(re.escape, longest_first))).finditer if tokens else None
        if any(token.single_word for token in tokens.values()):
            self._is_word = re.compile(f"[{unicode_sets.class_body(unicode_sets.word())}]").match

    def split(self, text: str) -> Iterator[str | int]:
        """Yield the text in order, as token ids and the non-empty pieces between them."""
        if self._find is None:
            if text:
                yield text
            return
        end = 0
        for match in self._find(text):
            token = self._tokens[match[0]]
            start, stop = match.span()
            if token.single_word and self._inside_word(text, start, stop):
                continue
            if token.lstrip:
                start = end + len(text[end:start].rstrip(WHITE_SPACE))
            if token.rstrip:
                stop = _SPACES.match(text, stop).end()  # type: ignore[union-attr]  # an empty match at least
            if end < start:
                yield text[end:start]
            yield token.id
            end = stop
        if end < len(text):
            yield text[end:]

    def _inside_word(self, text: str, start: int, stop: int) -> bool:
        before, after = text[max(start - 1, 0) : start], text[stop : stop + 1]
        return bool(self._is_word(before) or self._is_word(after))
