"""Writing a bundle so that its final name only ever holds a whole one.

The work happens in ``.NAME.partial-XXXXXXXX`` beside the destination, locked by the writing process. When all is
written, hashed and on the disk, one rename makes it the bundle. A process that dies at any moment leaves such a
hidden folder behind, which the next export to the same destination removes: the lock tells that its writer is dead.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgepipe.errors import BundleError
from edgepipe.pipeline.bundle import CHECKSUMS, checksums, sha256
from edgepipe.pipeline.exchange import exchange
from edgepipe.pipeline.manifest import MANIFEST, SCHEMA_VERSION
from edgepipe.pipeline.model_card import model_card

try:
    import fcntl
except ImportError:  # Windows has no flock: folders of dead writers stay there until someone removes them
    fcntl = None  # type: ignore[assignment]


class BundleDraft:
    """A bundle being written: put files into ``folder`` and what edgepipe.json says of them into ``manifest``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = {}

    def seal(self) -> None:
        """Write README.md, edgepipe.json and SHA256SUMS, and bring every file to the disk."""
        (self.folder / "README.md").write_text(model_card(self.manifest), encoding="utf-8")
        files = {
            path.relative_to(self.folder).as_posix(): {"sha256": sha256(path), "bytes": path.stat().st_size}
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }
        content = {"schema_version": SCHEMA_VERSION, "bundle_id": bundle_id(files), **self.manifest, "files": files}
        manifest = self.folder / MANIFEST
        manifest.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        (self.folder / CHECKSUMS).write_text(checksums(files, sha256(manifest)), encoding="utf-8")
        for path in self.folder.rglob("*"):
            _to_disk(path)
        _to_disk(self.folder)


@contextmanager
def write_bundle(destination: Path | str, force: bool = False) -> Iterator[BundleDraft]:
    """Write a bundle into a temporary folder; it becomes ``destination`` when the block ends without an error.

    With ``force`` a bundle that is there already is replaced, at the end and in one step. A folder that holds
    anything that is not the bundle's is never replaced.

    Raises:
        BundleError: the destination exists and may not be replaced, or cannot be written.
    """
    destination = Path(os.path.realpath(destination))
    check_destination(destination, force)
    with _partial_folder(destination) as folder:
        draft = BundleDraft(folder)
        yield draft
        draft.seal()
        check_destination(destination, force)
        if destination.exists():
            exchange(folder, destination)  # what was replaced goes with the partial folder
        else:
            os.rename(folder, destination)
        _to_disk(destination.parent)


def check_destination(destination: Path, force: bool) -> None:
    """Refuse a destination that exists, unless it is a bundle, or an empty folder, and ``force`` is given.

    Raises:
        BundleError: the reason and what to do.
    """
    if not destination.exists():
        return
    if not destination.is_dir():
        raise BundleError(f"{destination} is a file: give the name of a new folder")
    empty = not any(destination.iterdir())
    manifest = destination / MANIFEST
    if not empty and not manifest.is_file():
        raise BundleError(f"{destination} exists and is no bundle: give the name of a new folder")
    if not force:
        raise BundleError(f"{destination} exists: give another name, or --force to replace it")
    if empty:
        return
    try:
        own = {MANIFEST, CHECKSUMS, *json.loads(manifest.read_bytes())["files"]}
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(
            f"{manifest} cannot be read, so it is not certain that the folder is a bundle: remove it yourself"
        ) from error
    found = {path.relative_to(destination).as_posix() for path in destination.rglob("*") if not path.is_dir()}
    if foreign := sorted(found - own):
        raise BundleError(f"{destination} also holds {foreign[0]}, which is no part of the bundle: move it away")


def bundle_id(files: dict[str, dict[str, Any]]) -> str:
    """16 hex digits that identify the content of a bundle: the hash of its files' hashes and names."""
    listing = "".join(f"{entry['sha256']}  {name}\n" for name, entry in sorted(files.items()))
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


@contextmanager
def _partial_folder(destination: Path) -> Iterator[Path]:
    """A new, locked folder beside ``destination``, removed at the end unless it was renamed."""
    prefix = f".{destination.name}.partial-"
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        for other in list(destination.parent.iterdir()):
            if other.name.startswith(prefix):
                _remove_if_abandoned(other)
        folder, lock = _new_locked_folder(destination.parent, prefix)
    except OSError as error:
        raise BundleError(f"cannot write into {destination.parent}: {error.strerror}; choose another place") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _new_locked_folder(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """Make a folder and lock it; None stands for a file system without locks."""
    while True:
        folder = parent / (prefix + secrets.token_hex(4))
        folder.mkdir()
        lock = _lock(folder, wait=True)
        if folder.exists():  # else another process took it for abandoned before it was locked
            return folder, lock
        if lock is not None:
            os.close(lock)


def _lock(folder: Path, wait: bool) -> int | None:
    """Lock a folder until the returned descriptor is closed, also by the death of this process.

    Returns None where folders cannot be locked. Raises BlockingIOError when another process holds the lock and
    ``wait`` is False.
    """
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor


def _remove_if_abandoned(folder: Path) -> None:
    """Remove a partial folder whose writer is dead; leave it when that is not certain."""
    try:
        lock = _lock(folder, wait=False)
    except BlockingIOError:
        return
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _to_disk(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    if fcntl is None:  # Windows cannot flush what is open for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
