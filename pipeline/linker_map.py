"""What the linker says of a firmware's memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edgepipe.errors import EdgepipeError

# sections.ld has these in flash, where they have content; .data is copied from there to RAM.
_IN_FLASH = (".vectors", ".text", ".ARM.exidx", ".data")


@dataclass(frozen=True)
class LinkedMemory:
    """Bytes as they are placed: in flash; in RAM, with the gaps between; of it the arena and the stack."""

    flash_bytes: int
    ram_bytes: int
    arena_bytes: int
    stack_bytes: int


def read_linker_map(path: Path) -> LinkedMemory:
    """Read a map that GNU ld wrote of a bundle's firmware.

    Raises:
        EdgepipeError: it is no such map.
    """
    text = path.read_text(encoding="utf-8", errors="replace")

    def number(pattern: str) -> int:
        found = re.search(pattern, text, re.MULTILINE)
        if found is None:
            raise EdgepipeError(f"{path} is no map of a firmware: run make clean in the firmware's folder, then again")
        return int(found[1], 16)

    def section(name: str) -> int:
        return number(rf"^{re.escape(name)} +0x[0-9a-f]+ +0x([0-9a-f]+)")

    def symbol(name: str) -> int:
        return number(rf"^\s+0x([0-9a-f]+)\s+{name}\b")

    in_flash = [name for name in _IN_FLASH if re.search(rf"^{re.escape(name)} +0x", text, re.MULTILINE)]
    return LinkedMemory(
        flash_bytes=sum(map(section, in_flash)),
        ram_bytes=symbol("bss_end") - symbol("stack_bottom"),
        arena_bytes=section(" .bss.ep_arena"),
        stack_bytes=section(".stack"),
    )
