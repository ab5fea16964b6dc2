"""An option that takes an amount of memory, as 192K or 1M."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


class ByteSize(click.ParamType):
    """Bytes: a number, with K, M or G for so many times 1024; ``KiB`` and ``KB`` say the same."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes."""
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parse_bytes(text: str) -> int:
    """The bytes that ``text`` says.

    Raises:
        ValueError: it says none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:I?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is no size: expected something like 192K, 1M or 262144")
    return int(float(match[1]) * _UNITS[match[2].upper()])
