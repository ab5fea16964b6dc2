"""What a microcontroller board is to what runs on it and to what is written for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Board:
    """A board as boards.toml has it.

    ``sram``: bytes of the largest piece of RAM without a gap. ``flash``: bytes. ``sram_begin``, ``flash_begin``: their
    addresses; ``vectors``: where the processor looks for its vectors, if that is not the flash. ``chip``: the file in
    runtimes/mcu/firmware/boards with its clocks and serial port. ``compiler``: GCC's options for the core. ``qemu``:
    the machine of qemu-system-arm that emulates it, or None. ``flasher``: the command that writes its flash, or None.
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
    flasher: str | None = None
