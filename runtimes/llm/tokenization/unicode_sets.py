"""Sets of Unicode characters as ranges of code points, taken from Python's own `unicodedata`.

Python's tables may be a few Unicode versions older than those of Oniguruma inside `tokenizers`: on the characters
assigned since, the two can disagree (Python 3.11 knows Unicode 14).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, groupby

Ranges = tuple[tuple[int, int], ...]
"""Disjoint inclusive ranges of code points, ascending."""

WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""Unicode's White_Space, which is what `\\s` and stripping mean in tokenizers; Python's `\\s` adds U+001C to U+001F."""

_LAST = 0x10FFFF
# No other plane has assigned characters, save the private ones.
_POPULATED = ((0, 0x3FFFF), (0xE0000, 0xE0FFF))
_PRIVATE = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
# Circled and squared letters are symbols (So), yet Alphabetic.
_ALPHABETIC_SYMBOLS = ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))


@cache
def _category_runs() -> list[tuple[int, int, str]]:
    """Runs `(first, last, general category)` that cover every code point, ascending."""
    runs: list[tuple[int, int, str]] = []
    for first, last in _POPULATED:
        for category, group in groupby(range(first, last + 1), key=lambda code: unicodedata.category(chr(code))):
            codes = list(group)
            runs.append((codes[0], codes[-1], category))
    runs += [(first, last, "Co") for first, last in _PRIVATE]
    known = [(first, last) for first, last, _ in runs]
    runs += [(first, last, "Cn") for first, last in complement(known)]
    return sorted(runs)


@cache
def category(prefix: str) -> Ranges:
    """Characters whose general category starts with `prefix`: "L", "Lu", "N"; empty when there is no such category."""
    return union((first, last) for first, last, name in _category_runs() if name.startswith(prefix))


@cache
def word(more: str = "\u200c\u200d") -> Ranges:
    """Letters, marks, digits, connectors and `more`: by default the join controls, as in Unicode's own `\\w`."""
    classes = [category(name) for name in ("L", "M", "Nd", "Nl", "Pc")]
    return union([*chain.from_iterable(classes), *_ALPHABETIC_SYMBOLS, *of(more)])


@cache
def case_variants() -> dict[str, str]:
    """For characters that have a case: all that one-to-one case folding takes for the same ("k", "K", Kelvin sign)."""
    groups: dict[str, set[str]] = {}
    for character in map(chr, range(0x1F000)):  # no cased letter stands above
        folded = character.casefold()
        if folded != character and len(folded) == 1:
            groups.setdefault(folded, {folded}).add(character)
    return {character: "".join(sorted(group)) for group in groups.values() for character in group}


def with_case_variants(ranges: Ranges) -> Ranges:
    """`ranges` and all that differs from one of them in case alone."""
    variants = case_variants().items()
    found = [all_cases for one, all_cases in variants if any(first <= ord(one) <= last for first, last in ranges)]
    return union(ranges + of("".join(found)))


def of(characters: str) -> Ranges:
    """The characters of a string."""
    return union((ord(character), ord(character)) for character in characters)


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in any order, overlapping or not, merged."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All code points outside `ranges`."""

    def gaps() -> Iterator[tuple[int, int]]:
        start = 0
        for first, last in union(ranges):
            if start < first:
                yield start, first - 1
            start = last + 1
        if start <= _LAST:
            yield start, _LAST

    return tuple(gaps())


def class_body(ranges: Ranges) -> str:
    """`ranges` as the inside of a `[...]` of Python's `re`."""
    return "".join(
        re.escape(chr(first)) + (f"-{re.escape(chr(last))}" if last > first else "") for first, last in ranges
    )
