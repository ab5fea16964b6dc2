"""Fields of a JSON table, by type and range; what is wrong is named by its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from reprlib import repr as shown
from typing import Any, TypeVar

T = TypeVar("T")

LARGEST = 2**63 - 1


class Wrong(Exception):
    """A field is missing, or not of its type or range; says which, and what was expected."""


class Fields:
    """A table. ``name`` is its place in the file, with a dot at the end, or empty for the file itself."""

    def __init__(self, content: object, name: str = "") -> None:
        if not isinstance(content, dict):
            raise Wrong(f"{name.removesuffix('.') or 'it'} is {shown(content)}, expected a table")
        self.content = content
        self.name = name

    def optional(self, key: str, read: Callable[[], T]) -> T | None:
        """What ``read`` gives, or None for a field that is null."""
        if key not in self.content:
            raise Wrong(f"{self.name}{key} is missing")
        return None if self.content[key] is None else read()

    def table(self, key: str) -> Fields:
        """A table in this one."""
        return Fields(self._get(key), f"{self.name}{key}.")

    def tables(self, key: str) -> list[Fields]:
        """A list of tables."""
        return [Fields(entry, f"{self.name}{key}[{index}].") for index, entry in enumerate(self._list(key))]

    def text(self, key: str) -> str:
        """Text of one or more characters."""
        return self._checked(key, self._get(key), isinstance(self._get(key), str) and self._get(key), "text")

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        values = self._list(key)
        self._checked(key, values, all(isinstance(value, str) for value in values), "a list of texts")
        return tuple(values)

    def one_of(self, key: str, values: Sequence[T]) -> T:
        """One of ``values``."""
        value = self._get(key)
        known = any(type(value) is type(one) and value == one for one in values)
        return self._checked(key, value, known, " or ".join(map(str, values)))

    def number(self, key: str) -> float:
        """A finite number."""
        return self._checked(key, self._get(key), _is_finite(self._get(key)), "a number")

    def numbers(self, key: str) -> tuple[float, ...]:
        """Finite numbers."""
        values = self._list(key)
        self._checked(key, values, all(map(_is_finite, values)), "numbers")
        return tuple(values)

    def whole_number(self, key: str, least: int = 0, most: int = LARGEST) -> int:
        """A whole number from ``least`` to ``most``."""
        value = self._get(key)
        return self._checked(key, value, _is_whole(value, least, most), f"a whole number of {least} to {most}")

    def whole_numbers(self, key: str, count: int | None = None, least: int = 0, most: int = LARGEST) -> tuple[int, ...]:
        """Whole numbers, ``count`` of them or one and more."""
        values = self._list(key)
        fits = len(values) == count if count else bool(values)
        fits = fits and all(_is_whole(value, least, most) for value in values)
        self._checked(key, values, fits, f"{count or 'some'} whole numbers of {least} to {most}")
        return tuple(values)

    def _list(self, key: str) -> list[Any]:
        value = self._get(key)
        return self._checked(key, value, isinstance(value, list), "a list")

    def _get(self, key: str) -> Any:
        if key not in self.content:
            raise Wrong(f"{self.name}{key} is missing")
        return self.content[key]

    def _checked(self, key: str, value: Any, fits: object, expected: str) -> Any:
        if not fits:
            raise Wrong(f"{self.name}{key} is {shown(value)}, expected {expected}")
        return value


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf  # type: ignore[arg-type]


def _is_whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
