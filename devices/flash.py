"""Writing a program into a board's flash, with the tool that is usual for the board."""

from __future__ import annotations

import re
import shlex
import shutil
import struct
import subprocess
from pathlib import Path

from edgepipe.errors import DeviceUnreachable, EdgepipeError
from edgepipe.runtimes.mcu.board import Board

# Where the tools that boards.toml names come from.
_INSTALL = {
    "openocd": "apt install openocd, or brew install open-ocd",
    "picotool": "apt install picotool (Debian 13), brew install picotool, or github.com/raspberrypi/picotool",
    "st-flash": "apt install stlink-tools, or brew install stlink",
}
_PATIENCE_S = 300.0

# ELF: https://refspecs.linuxfoundation.org/elf/elf.pdf, and 40, the number of Arm's processors.
_IDENTITY = b"\x7fELF\x01\x01"
_HEADER = struct.Struct("<16sHHIIIIIHHHHHH")
_SEGMENT = struct.Struct("<8I")
_ARM, _LOAD = 40, 1
_ERASED = b"\xff"

# How tools begin the line that says what is wrong: a time, where they found it, how bad it is.
_BEFORE_THE_REASON = re.compile(r"^(\d{4}-\S+ )?(error|warn)\w*:?( \w+\.c:)? *", re.IGNORECASE)


def flash_command(board: Board, program: Path, image: Path) -> list[str]:
    """What writes a program into a board's flash.

    Args:
        program: an ELF file.
        image: the bytes of its flash as `flash_image` gives them, for tools that take no ELF files.

    Raises:
        EdgepipeError: no tool writes to this board.
    """
    if board.flasher is None:
        hint = f"run it with --device qemu:{board.name}" if board.qemu else "see its maker's manual"
        raise EdgepipeError(f"no tool writes to {board.name}: {hint}, or export with --board for another board")
    places = {"elf": program, "bin": image, "flash_begin": f"{board.flash_begin:#010x}"}
    return [word.format(**places) for word in shlex.split(board.flasher)]


def flash_image(board: Board, program: Path) -> bytes:
    """The bytes of a program in a board's flash, from its beginning; 255 where there is nothing.

    Raises:
        EdgepipeError: the file is no program for a microcontroller, or for one with its flash elsewhere.
    """
    content = program.read_bytes()
    try:
        image = bytearray()
        for address, piece in _pieces(content):
            begin = address - board.flash_begin
            if not 0 <= begin <= begin + len(piece) <= board.flash:
                raise EdgepipeError(
                    f"{program} has {len(piece)} bytes for {address:#010x}, outside of the flash of {board.name}: "
                    f"build it for this board"
                )
            image += _ERASED * (begin + len(piece) - len(image))
            image[begin : begin + len(piece)] = piece
    except struct.error:
        image.clear()
    if not image:
        raise EdgepipeError(f"{program} is no program for a microcontroller: expected an ELF file, as make builds it")
    return bytes(image)


def write_flash(command: list[str]) -> None:
    """Run what `flash_command` gave.

    Raises:
        DeviceUnreachable: it failed: no probe is there, or the chip does not answer or is locked.
        EdgepipeError: the tool is not installed.
    """
    tool = command[0]
    if shutil.which(tool) is None:
        raise EdgepipeError(
            f"{tool} is not installed, it writes to this board: {_INSTALL.get(tool, f'install {tool}')}"
        )
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_S,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceUnreachable(
            f"{tool} has not come to an end in {_PATIENCE_S:g} s: plug board and probe in anew"
        ) from error
    if done.returncode:
        raise DeviceUnreachable(
            f"{tool} fails ({_reason(done.stdout) or f'code {done.returncode}'}): see that board and probe are plugged "
            f"in and yours to use; --dry-run prints the command"
        )


def _pieces(content: bytes) -> list[tuple[int, bytes]]:
    """What of an ELF file is loaded where, by address.

    Raises:
        struct.error: it is none, or no one for a Cortex-M.
    """
    identity, _, machine, _, _, table, _, _, _, entry_bytes, entries, *_ = _HEADER.unpack_from(content)
    if identity[: len(_IDENTITY)] != _IDENTITY or machine != _ARM:
        raise struct.error
    pieces = []
    for number in range(entries):
        kind, offset, _, address, size, *_ = _SEGMENT.unpack_from(content, table + number * entry_bytes)
        if kind == _LOAD and size:
            if offset + size > len(content):
                raise struct.error
            pieces.append((address, content[offset : offset + size]))
    return sorted(pieces)


def _reason(said: str) -> str:
    """The line of a tool's output that says what is wrong: the last that calls itself an error, or the last."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return _BEFORE_THE_REASON.sub("", (errors or lines or [""])[-1])
