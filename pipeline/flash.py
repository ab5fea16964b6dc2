"""The job behind `edgepipe flash`: a bundle's firmware, or any program, into the flash of a board."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgepipe.cache import cache_folder
from edgepipe.devices.boards import find_board
from edgepipe.devices.flash import flash_command, flash_image, write_flash
from edgepipe.devices.mcu_line import BAUD
from edgepipe.errors import RecipeError
from edgepipe.pipeline.build_firmware import build_firmware, bundle_firmware, keep
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.termination import termination_cleans_up


@dataclass(frozen=True)
class Flashing:
    """``command`` writes ``program``, an ELF file, into the board's flash, of which it takes ``flash_bytes``."""

    board: str
    program: str
    command: tuple[str, ...]
    flash_bytes: int
    is_written: bool

    def to_json(self) -> dict[str, Any]:
        """As one JSON-ready dict."""
        return asdict(self)


def flash(source: str | Path, *, board: str | None = None, baud: int | None = None, dry_run: bool = False) -> Flashing:
    """Write a program into a board's flash, with the tool that boards.toml names.

    Args:
        source: a bundle with firmware, which is built if need be; or an ELF file.
        board: what an ELF file is for; a bundle's firmware knows.
        baud: bits a second of the board's serial port; an ELF file has its own.
        dry_run: build, but write nothing.

    Raises:
        BundleError: the bundle is damaged or holds no firmware.
        DeviceUnreachable: the tool fails: there is no probe, or the chip does not answer or is locked.
        EdgepipeError: the firmware cannot be built; no tool writes to the board, or it is not installed.
        RecipeError: ``board`` or ``baud`` does not go with the source, or is wrong.
    """
    source = Path(source)
    if source.is_file():
        if board is None or baud is not None:
            raise RecipeError(f"{source} is a file: say which board it is for, with --board, and leave out --baud")
        program, target = source, find_board(board)
    else:
        if board is not None:
            raise RecipeError(f"{source} knows its board, --board {board} is for ELF files: leave it out")
        if baud is not None and baud < BAUD:
            raise RecipeError(f"baud is {baud}: expected {BAUD} or more")
        bundle = Bundle.open(source)
        firmware = bundle_firmware(bundle)
        target = find_board(firmware.board)
        flash_command(target, source, source)  # before anything is built
        with termination_cleans_up():
            program = build_firmware(bundle, firmware, baud or BAUD)
    image = flash_image(target, program)
    copy = cache_folder() / "firmware" / hashlib.sha256(image).hexdigest() / "firmware.bin"
    command = flash_command(target, program, copy)
    if str(copy) in command:
        keep(image, copy)
    if not dry_run:
        with termination_cleans_up():
            write_flash(command)
    return Flashing(target.name, str(program), tuple(command), len(image), not dry_run)
