"""Microcontroller boards: what they have of memory, and what emulates them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from edgepipe.errors import EdgepipeError


@dataclass(frozen=True)
class Board:
    """A board as boards.toml has it.

    ``sram``: bytes of the largest piece of RAM without a gap. ``flash``: bytes. ``sram_begin``, ``flash_begin``: their
    addresses; ``vectors``: where the processor looks for its vectors, if that is not the flash. ``chip``: the file in
    runtimes/mcu/firmware/boards with its clocks and serial port. ``compiler``: GCC's options for the core. ``qemu``:
    the machine of qemu-system-arm that emulates it, or None.
    """

    name: str
    title: str
    core: str
    clock_mhz: int
    sram: int
    flash: int
    sram_begin: int
    flash_begin: int
    chip: str
    compiler: str
    vectors: int | None = None
    qemu: str | None = None


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
