"""Microcontroller boards: what they have of memory, and what emulates them."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from edgepipe.errors import EdgepipeError
from edgepipe.runtimes.mcu.board import Board


@cache
def boards() -> dict[str, Board]:
    """All boards by name."""
    table = tomllib.loads(Path(__file__).with_name("boards.toml").read_text(encoding="utf-8"))
    return {name: Board(name, **keys) for name, keys in table.items()}


def find_board(name: str) -> Board:
    """The board of that name.

    Raises:
        EdgepipeError: there is none.
    """
    known = boards()
    if name.lower() not in known:
        close = get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"
        raise EdgepipeError(f"no board {name!r}: {hint}")
    return known[name.lower()]
