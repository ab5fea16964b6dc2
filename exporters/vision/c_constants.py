"""Constants as C: arrays and structs for flash, each stored once however often it is used."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from edgepipe.exporters.vision import kernels

_C_TYPES = {"int8": "int8_t", "uint8": "uint8_t", "int32": "int32_t", "uint16": "uint16_t"}
_LINE_LENGTH = 118
# A pointer, and what the compiler aligns arrays to.
_WORD = 4


class Constants:
    """A file of constants that grows as they are asked for.

    ``nbytes``: of all arrays and structs, as a 32-bit processor has them.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._names: dict[Any, str] = {}
        self._numbers: dict[str, int] = {}
        self._text: list[str] = []

    @property
    def text(self) -> str:
        """The definitions."""
        return "\n".join(self._text)

    def array(self, data: np.ndarray, prefix: str) -> str:
        """The name of an array of these elements; a new one begins with ``prefix``. uint8 is stored as int8."""
        data = data.view(np.int8) if data.dtype == np.uint8 else data
        key = data.dtype.name, data.tobytes()
        if key not in self._names:
            name = self._names[key] = self._new_name(prefix)
            self.nbytes += -(-data.nbytes // _WORD) * _WORD
            kind = _C_TYPES[data.dtype.name]
            self._text += [f"static const _Alignas({_WORD}) {kind} {name}[{data.size}] = {{", *_rows(data), "};\n"]
        return self._names[key]

    def struct(self, value: Any) -> str:
        """The name of a struct with this content, whose type is that of the dataclass."""
        kind = struct_name(value)
        fields = [f"    .{field.name} = {self._initialiser(value, field.name)}," for field in dataclasses.fields(value)]
        key = kind, *fields
        if key not in self._names:
            name = self._names[key] = self._new_name(_snake_case(type(value).__name__))
            self.nbytes += _size(value)
            self._text += [f"static const struct {kind} {name} = {{", *fields, "};\n"]
        return self._names[key]

    def _new_name(self, prefix: str) -> str:
        number = self._numbers[prefix] = self._numbers.get(prefix, -1) + 1
        return f"{prefix}_{number}"

    def _initialiser(self, owner: Any, field: str) -> str:
        value = getattr(owner, field)
        if dataclasses.is_dataclass(value):
            inner = (self._initialiser(value, each.name) for each in dataclasses.fields(value))
            return f"{{{', '.join(inner)}}}"
        if isinstance(value, np.ndarray):
            return self.array(value, field)
        if isinstance(value, tuple):
            return f"{{{', '.join(map(_integer, value))}}}"
        return _integer(value)


def struct_name(value: Any) -> str:
    """The C struct that a dataclass of kernels.py stands for."""
    return "ep_pool" if isinstance(value, (kernels.AveragePool, kernels.MaxPool)) else function_name(value)


def function_name(kernel: Any) -> str:
    """The C function that takes a kernel's struct."""
    return f"ep_{_snake_case(type(kernel).__name__)}"


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _integer(value: int) -> str:
    """C has no negative literals, and the lowest int32 is none that can be negated."""
    return "INT32_MIN" if value == -(2**31) else str(int(value))


def _size(value: Any) -> int:
    if dataclasses.is_dataclass(value):
        return sum(_size(getattr(value, field.name)) for field in dataclasses.fields(value))
    return _WORD * (len(value) if isinstance(value, tuple) else 1)


def _rows(data: np.ndarray) -> Iterator[str]:
    texts = list(map(_integer, data.reshape(-1).tolist()))
    per_line = max((_LINE_LENGTH - 4) // (max(map(len, texts), default=1) + 2), 1)
    for start in range(0, len(texts), per_line):
        yield f"    {', '.join(texts[start : start + per_line])},"
