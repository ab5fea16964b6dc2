"""The device's end of `edgepipe deploy`: takes in the files of a bundle that are not there yet.

    python -m edgepipe.pipeline.receive ROOT NAME

On stdin come one line, ``{"files": {name: {"sha256", "bytes"}}}``, and then the bytes that the answer asks for, without
gaps; on stdout go lines:

    {"need": [[name, offset], ...]}                     what is to be sent, and from where
    {"copied_bytes": n, "files": n, "replaced": bool}   the bundle stands under its name
    {"error": message}                                  it does not

Files gather in ``bundles/.NAME.incoming`` under their hashes and get their names there once these are right. What was
cut off goes on at its last byte, also when another version of the bundle came in between. One rename makes the folder
the bundle.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
from pathlib import Path
from typing import Any, BinaryIO

from edgepipe.devices.installation import bundle_folder, free_bytes, incoming_folder, locked
from edgepipe.devices.shell import PATIENCE_S
from edgepipe.errors import DeviceError
from edgepipe.pipeline.bundle import sha256
from edgepipe.pipeline.bundle_writer import to_disk
from edgepipe.pipeline.exchange import exchange
from edgepipe.pipeline.full_disk import NO_SPACE

# Brought to the disk at once, so that the sender is never kept waiting for long.
_FLUSH_BYTES = 16 * 2**20
_PARTIAL = ".partial"


class Receiver:
    """One bundle's way in. ``wanted``: size and SHA-256 of every file, edgepipe.json and SHA256SUMS among them."""

    def __init__(self, root: Path, name: str, wanted: dict[str, dict[str, Any]]) -> None:
        self.root = root
        self.bundle = Path(bundle_folder(str(root), name))
        self.incoming = Path(incoming_folder(str(root), name))
        self.wanted = wanted

    def needed(self) -> list[tuple[str, int]]:
        """Names and offsets of what is to be sent; what the present bundle has already is linked from there.

        An empty list means that the bundle is there, or all of its files have arrived.

        Raises:
            DeviceError: the disk has no room for it.
        """
        present = {name for name in self.wanted if self._is_right(self.bundle / name, name)}
        if len(present) == len(self.wanted):
            shutil.rmtree(self.incoming, ignore_errors=True)
            return []
        self.incoming.mkdir(parents=True, exist_ok=True)
        need = []
        for name, entry in self.wanted.items():
            if self._is_right(self.incoming / name, name):
                continue
            if name in present:
                _link(self.bundle / name, self.incoming / name)
                continue
            partial = self._partial(name)
            begun = partial.stat().st_size if partial.exists() else 0
            if begun > entry["bytes"]:
                partial.unlink()
                begun = 0
            need.append((name, begun))
        missing, free = sum(self.wanted[name]["bytes"] - offset for name, offset in need), free_bytes(self.incoming)
        if missing > free:
            raise DeviceError(no_room(missing, free, self.root))
        return need

    def take(self, name: str, offset: int, source: BinaryIO) -> None:
        """Read the rest of a file from ``source``.

        Raises:
            SystemExit: the bytes end early.
            DeviceError: they are not those of the file, or the disk is full.
        """
        partial, size = self._partial(name), self.wanted[name]["bytes"]
        try:
            with partial.open("ab", buffering=0) as file:
                flushed = offset
                while offset < size:
                    piece = _read(source, min(2**18, size - offset))
                    if not piece:
                        # Nobody is there to be answered; what has come is kept.
                        raise SystemExit(f"the link broke at byte {offset} of {size} of {name}")
                    view = memoryview(piece)
                    while view:
                        view = view[file.write(view) :]
                    offset += len(piece)
                    if offset - flushed >= _FLUSH_BYTES or offset == size:
                        os.fsync(file.fileno())
                        flushed = offset
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            shutil.rmtree(self.incoming, ignore_errors=True)
            raise DeviceError(no_room(size - offset, free_bytes(self.root), self.root)) from None
        if sha256(partial) != self.wanted[name]["sha256"]:
            partial.unlink()
            raise DeviceError(f"{name} arrived damaged and is removed: deploy again")
        place = self.incoming / name
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, place)

    def finish(self) -> bool:
        """Put what has arrived under the bundle's name; say whether that replaced another."""
        if not self.incoming.exists():
            return False
        for path in list(self.incoming.rglob("*")):
            if not path.is_dir() and path.relative_to(self.incoming).as_posix() not in self.wanted:
                path.unlink()
            else:
                to_disk(path)
        to_disk(self.incoming)
        replaced = self.bundle.exists()
        if replaced:
            exchange(self.incoming, self.bundle)
        else:
            os.rename(self.incoming, self.bundle)
        to_disk(self.bundle.parent)
        shutil.rmtree(self.incoming, ignore_errors=True)
        return replaced

    def _is_right(self, path: Path, name: str) -> bool:
        entry = self.wanted[name]
        return path.is_file() and path.stat().st_size == entry["bytes"] and sha256(path) == entry["sha256"]

    def _partial(self, name: str) -> Path:
        return self.incoming / f"{self.wanted[name]['sha256']}{_PARTIAL}"


def no_room(needed: int, free: int, folder: str | Path) -> str:
    """What a full disk is told with."""
    return (
        f"the disk is full: {needed / 1e6:.1f} MB more are needed in {folder}, {free / 1e6:.1f} MB are "
        "free; free some, or make that folder a link to one on another disk"
    )


def _link(source: Path, destination: Path) -> None:
    """The same file under another name, or a copy where the system has no such links (Android)."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    destination.unlink(missing_ok=True)
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)


def _read(source: BinaryIO, size: int) -> bytes:
    """Up to ``size`` bytes; none when the sender is gone, or silent for so long that it must be."""
    if not select.select([source], [], [], PATIENCE_S)[0]:
        return b""
    return os.read(source.fileno(), size)


def main() -> int:
    """Take in one bundle."""
    source = open(0, "rb", buffering=0)  # noqa: SIM115 - bytes that are read ahead would be missing from the files
    root, name = Path(sys.argv[1]), sys.argv[2]
    try:
        receiver = Receiver(root, name, json.loads(source.readline())["files"])
    except ValueError:
        raise SystemExit("the link broke before anything was asked for") from None
    try:
        with locked(root):
            need = receiver.needed()
            print(json.dumps({"need": need}), flush=True)
            for file, offset in need:
                receiver.take(file, offset, source)
            copied = sum(receiver.wanted[file]["bytes"] - offset for file, offset in need)
            answer: dict[str, Any] = {"copied_bytes": copied, "files": len(need), "replaced": receiver.finish()}
    except (DeviceError, OSError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
