"""The firmware in a bundle: which board and model it is for, and the program that its C source compiles to.

A bundle may come from anywhere, so nothing in it is obeyed: its files are compiled with the Makefile, the compiler's
options and the board's settings of this edgepipe, and only such files as its manifest lists and whose names make takes
literally. What is built runs on a board or in an emulator without a way out.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgepipe.cache import cache_folder
from edgepipe.devices.boards import find_board
from edgepipe.devices.end_with_parent import ending_with_this
from edgepipe.devices.mcu_line import BAUD
from edgepipe.errors import BundleError, EdgepipeError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.manifest import MANIFEST, damaged
from edgepipe.pipeline.partial_folder import partial_folder
from edgepipe.pipeline.vision_session import vision_component
from edgepipe.runtimes import mcu

PROGRAM = "firmware.elf"
_MAKEFILE = Path(mcu.__file__).with_name("firmware") / "Makefile"
_TOOLS = {
    "make": "apt install make",
    "arm-none-eabi-gcc": "apt install gcc-arm-none-eabi libnewlib-arm-none-eabi",
}
_SOURCE = re.compile(r"((kernels|board)/)?\w+\.(c|h|ld)", re.ASCII)
# Of board.mk, besides what boards.toml knows.
_NUMBERS = ("COLUMN_LENGTH", "KEEP_IMAGE")


@dataclass(frozen=True)
class BundleFirmware:
    """``folder`` holds the source, ``board`` is what it is for, ``model_hash`` what it answers with."""

    folder: Path
    board: str
    model_hash: str


def bundle_firmware(bundle: Bundle) -> BundleFirmware:
    """The firmware of a bundle.

    Raises:
        BundleError: it has none, or no vision model; it is damaged.
    """
    files = vision_component(bundle)["formats"].get("firmware")
    if files is None:
        raise BundleError(
            f"{bundle.folder} holds no firmware: export again with --formats tflite,firmware --board NAME"
        )
    if "makefile" not in files:
        raise damaged(bundle.folder / MANIFEST, "components.vision.formats.firmware names no makefile")
    folder = bundle.path(files["makefile"]).parent
    return BundleFirmware(
        folder,
        board=_found(folder / "board.mk", r"^BOARD := ([\w-]+)$"),
        model_hash=_found(folder / "model.h", r'^#define EDGEPIPE_MODEL_HASH "([0-9a-f]{64})"$'),
    )


def build_firmware(bundle: Bundle, firmware: BundleFirmware, baud: int = BAUD) -> Path:
    """The program for the board, an ELF file in the user's cache folder; built if it is not there yet.

    Args:
        bundle, firmware: as `bundle_firmware` found it.
        baud: bits a second of the board's serial port.

    Raises:
        BundleError: the bundle was written by another edgepipe, or by something else.
        EdgepipeError: make or the compiler is not installed, or fails; there is no such board.
    """
    settings = _settings(firmware, baud)
    sources = _sources(bundle, firmware.folder)
    recipe = "\n".join([*settings, *(f"{digest}  {name}" for name, digest in sources.items())])
    key = hashlib.sha256(_MAKEFILE.read_bytes() + recipe.encode()).hexdigest()
    program = cache_folder() / "firmware" / key / PROGRAM
    if program.is_file() and linker_map(program).is_file():
        return program
    tools = {tool: shutil.which(tool) for tool in _TOOLS}
    for tool, hint in _TOOLS.items():
        if tools[tool] is None:
            raise EdgepipeError(f"{tool} is not installed, the firmware cannot be built: {hint}")
    with _place_beside(program.parent) as folder:
        for name in sources:
            copy = folder / name
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(firmware.folder / name, copy)
        shutil.copyfile(_MAKEFILE, folder / "Makefile")
        (folder / "board.mk").touch()
        command = ending_with_this(str(tools["make"]), "--silent", f"-j{os.cpu_count() or 1}", *settings)
        done = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, text=True, errors="replace")
        if done.returncode:
            reason = _reason(done.stderr or done.stdout) or f"code {done.returncode}"
            raise EdgepipeError(f"{firmware.folder}: make fails ({reason}): run it there to see why")
        for path in (linker_map(program), program):
            _put(folder / "build" / path.name, path)
    return program


def linker_map(program: Path) -> Path:
    """Where the linker's map of a program is."""
    return program.with_suffix(".map")


def keep(content: bytes, path: Path) -> None:
    """Write a file into the cache folder; no other process ever sees a part of it.

    Raises:
        EdgepipeError: it cannot be written.
    """
    with _place_beside(path.parent) as folder:
        (folder / path.name).write_bytes(content)
        _put(folder / path.name, path)


@contextmanager
def _place_beside(folder: Path) -> Iterator[Path]:
    """A folder to work in for what comes into one of the cache; what a killed process has left there goes."""
    try:
        with partial_folder(folder) as place:
            yield place
    except (BundleError, OSError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        reason = cause.strerror if isinstance(cause, OSError) else cause
        raise EdgepipeError(f"{folder.parent}: {reason}; set EDGEPIPE_CACHE_DIR to another folder") from error


def _put(file: Path, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    file.replace(path)


def _reason(said: str) -> str:
    """The first line of what make and the compiler have said that is more than where they found something."""
    lines = said.strip().splitlines() or [""]
    return next((line for line in lines if not line.endswith((":", ","))), lines[0])


def _settings(firmware: BundleFirmware, baud: int) -> list[str]:
    """Every variable of the Makefile; of the bundle's own settings only numbers are taken."""
    board = find_board(firmware.board)
    numbers = {name: _found(firmware.folder / "board.mk", rf"^{name} [:?]= (\d+)$") for name in _NUMBERS}
    variables = {
        "BOARD": board.name,
        "CHIP": board.chip,
        "CORE_FLAGS": board.compiler,
        "CLOCK_MHZ": board.clock_mhz,
        **numbers,
        "BAUD": baud,
        "BUILD": "build",
        "CROSS": "arm-none-eabi-",
        "DEFINES": "",
        "OPTIMISE": "-O2",
    }
    return [f"{name}={value}" for name, value in variables.items()]


def _sources(bundle: Bundle, folder: Path) -> dict[str, str]:
    """The SHA-256 of each file that is compiled, by its name in the folder."""
    prefix = f"{folder.relative_to(bundle.folder).as_posix()}/"
    names = {name: name.removeprefix(prefix) for name in sorted(bundle.manifest["files"]) if name.startswith(prefix)}
    return {
        short: bundle.manifest["files"][name]["sha256"] for name, short in names.items() if _SOURCE.fullmatch(short)
    }


def _environment() -> dict[str, str]:
    """This process's, without what make or the Makefile would take from it."""
    return {name: value for name, value in os.environ.items() if name not in ("PROGRAM", "MAKEFLAGS", "MAKEFILES")}


def _found(path: Path, pattern: str) -> str:
    text = path.read_text(encoding="ascii", errors="replace") if path.is_file() else ""
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise BundleError(f"{path} was not written by this edgepipe: export the bundle again")
    return match[1]
