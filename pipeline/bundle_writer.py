"""Writing a bundle so that its final name only ever holds a whole one.

The work happens in a hidden folder beside the destination. When all is written, hashed and on the disk, one rename
makes it the bundle.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from reprlib import repr as shown
from typing import Any

from edgepipe.errors import BundleError
from edgepipe.pipeline.bundle import CHECKSUMS, Bundle, checksums, sha256
from edgepipe.pipeline.exchange import exchange
from edgepipe.pipeline.full_disk import told_if_full
from edgepipe.pipeline.is_there import is_there
from edgepipe.pipeline.manifest import MANIFEST, SCHEMA_VERSION
from edgepipe.pipeline.model_card import model_card
from edgepipe.pipeline.partial_folder import partial_folder
from edgepipe.pipeline.termination import termination_cleans_up


class BundleDraft:
    """A bundle being written: put files into ``folder`` and what edgepipe.json says of them into ``manifest``.

    ``replaced`` is the bundle whose name it will take; its files may be damaged. To be called between
    steps, ``stop_if_asked`` raises what a signal raised already, if that got lost.
    """

    def __init__(self, folder: Path, replaced: Bundle | None, stop_if_asked: Callable[[], None]) -> None:
        self.folder = folder
        self.replaced = replaced
        self.stop_if_asked = stop_if_asked
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
            to_disk(path)
        to_disk(self.folder)


@contextmanager
def write_bundle(destination: Path | str, force: bool = False) -> Iterator[BundleDraft]:
    """Write a bundle into a temporary folder; it becomes ``destination`` when the block ends without an error.

    With ``force`` a bundle that is there already is replaced, at the end and in one step. A folder that holds
    anything that is not the bundle's is never replaced. A signal that ends the process removes what was begun.

    Raises:
        BundleError: the destination exists and may not be replaced, or cannot be written, or the disk is full.
    """
    try:
        destination = Path(os.path.realpath(destination))
        check_destination(destination, force)
    except (OSError, TypeError, ValueError) as error:  # no path, too long, a NUL byte, a folder that may not be read
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise BundleError(f"cannot write {shown(str(destination))}: {reason}; give another name") from error
    with (
        told_if_full(destination, "free some, or give a place on another disk"),
        termination_cleans_up() as stop_if_asked,
        partial_folder(destination) as folder,
    ):
        draft = BundleDraft(folder, _bundle_at(destination), stop_if_asked)
        yield draft
        draft.seal()
        check_destination(destination, force)
        stop_if_asked()
        if destination.exists():
            exchange(folder, destination)  # what was replaced goes with the partial folder
        else:
            os.rename(folder, destination)
        to_disk(destination.parent)


def _bundle_at(destination: Path) -> Bundle | None:
    """The bundle that stands there, if there is one that can be read."""
    try:
        return Bundle.open(destination, verify=False)
    except (BundleError, OSError):
        return None


def check_destination(destination: Path, force: bool) -> None:
    """Refuse a destination that exists, unless it is a bundle, or an empty folder, and ``force`` is given.

    Raises:
        BundleError: the reason and what to do.
    """
    if not is_there(destination):
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
    if foreign := _foreign(destination):
        raise BundleError(f"{destination} also holds {foreign}, which is no part of the bundle: move it away")


def _foreign(bundle: Path) -> str | None:
    """The first file, link or folder in a bundle that its edgepipe.json does not tell of.

    Raises:
        BundleError: edgepipe.json cannot be read.
    """
    manifest = bundle / MANIFEST
    try:
        listed = list(json.loads(manifest.read_bytes())["files"])
        files = {PurePosixPath(name) for name in (MANIFEST, CHECKSUMS, *listed)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleError(
            f"{manifest} cannot be read, so it is not certain that the folder is a bundle: remove it yourself"
        ) from error
    folders = {parent for file in files for parent in file.parents}
    for path in sorted(bundle.rglob("*")):
        name = PurePosixPath(path.relative_to(bundle).as_posix())
        if path.is_symlink() or name not in (folders if path.is_dir() else files):
            return str(name)
    return None


def bundle_id(files: dict[str, dict[str, Any]]) -> str:
    """16 hex digits that identify the content of a bundle: the hash of its files' hashes and names."""
    listing = "".join(f"{entry['sha256']}  {name}\n" for name, entry in sorted(files.items()))
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def to_disk(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    if os.name == "nt":  # Windows cannot flush what is open for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
