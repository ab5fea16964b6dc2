"""The firmware in a bundle: which board and model it is for, and the program that `make` builds of it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from edgepipe.cache import cache_folder
from edgepipe.errors import BundleError, EdgepipeError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.vision_session import vision_component

_TOOLS = {
    "make": "apt install make",
    "arm-none-eabi-gcc": "apt install gcc-arm-none-eabi libnewlib-arm-none-eabi",
}
_PROGRAM = "firmware.elf"


@dataclass(frozen=True)
class BundleFirmware:
    """``folder`` holds the source, ``board`` is what it is for, ``model_hash`` what it answers with."""

    folder: Path
    board: str
    model_hash: str


def bundle_firmware(bundle: Bundle) -> BundleFirmware:
    """The firmware of a bundle.

    Raises:
        BundleError: it has none, or no vision model.
    """
    files = vision_component(bundle)["formats"].get("firmware")
    if files is None:
        raise BundleError(
            f"{bundle.folder} holds no firmware: export again with --formats tflite,firmware --board NAME"
        )
    folder = bundle.path(files["makefile"]).parent
    return BundleFirmware(
        folder,
        board=_found(folder / "board.mk", r"^BOARD := ([\w-]+)$"),
        model_hash=_found(folder / "model.h", r'^#define EDGEPIPE_MODEL_HASH "([0-9a-f]{64})"$'),
    )


def build_firmware(bundle: Bundle, firmware: BundleFirmware) -> Path:
    """The program for the board, an ELF file in the user's cache folder; built by the bundle's Makefile if need be.

    Raises:
        EdgepipeError: make or the compiler is not installed, or fails.
    """
    program = cache_folder() / "firmware" / _source_hash(bundle, firmware.folder) / _PROGRAM
    if program.is_file():
        return program
    for tool, hint in _TOOLS.items():
        if shutil.which(tool) is None:
            raise EdgepipeError(f"{tool} is not installed, the firmware cannot be built: {hint}")
    with tempfile.TemporaryDirectory() as build:
        command = ["make", "--silent", f"-j{os.cpu_count() or 1}", "-C", str(firmware.folder), f"BUILD={build}"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            first = (done.stderr or done.stdout).strip().partition("\n")[0]
            raise EdgepipeError(f"{firmware.folder}: make fails ({first}): run it there to see why")
        try:
            program.parent.mkdir(parents=True, exist_ok=True)
            partial = program.with_suffix(f".{os.getpid()}")
            shutil.copyfile(Path(build, _PROGRAM), partial)
            partial.replace(program)
        except OSError as error:
            raise EdgepipeError(f"{program}: {error.strerror}; set EDGEPIPE_CACHE_DIR to another folder") from error
    return program


def _source_hash(bundle: Bundle, folder: Path) -> str:
    """Of all source files, by their hashes in the manifest."""
    prefix = f"{folder.relative_to(bundle.folder).as_posix()}/"
    files = bundle.manifest["files"]
    lines = [f"{files[name]['sha256']}  {name}\n" for name in sorted(files) if name.startswith(prefix)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _found(path: Path, pattern: str) -> str:
    match = re.search(pattern, path.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    if match is None:
        raise BundleError(f"{path} was not written by this edgepipe: export the bundle again")
    return match[1]
