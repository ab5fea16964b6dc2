"""A bundle: the folder that `edgepipe export` writes and a device reads.

    edgepipe.json   what is inside: components, source, recipe, validation, size and SHA-256 of every file
    SHA256SUMS      the same hashes, and that of edgepipe.json, for `sha256sum -c`
    README.md       a model card
    target/ draft/ vision/  one folder a component
    reference/      golden inputs and outputs

Sizes are checked on every load. Hashes are checked on the first load and again whenever a file's size, time or
inode has changed; the stamp that remembers it is in the user's cache folder, so a bundle may be read-only.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from edgepipe.cache import cache_folder
from edgepipe.errors import BundleError
from edgepipe.pipeline.manifest import MANIFEST, damaged, read_manifest

CHECKSUMS = "SHA256SUMS"


class Bundle:
    """A bundle on disk. ``manifest`` is its edgepipe.json."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def open(cls, folder: Path | str, verify: bool = True) -> Bundle:
        """Open a bundle and check that it is whole.

        Without ``verify`` the hashes are not looked at; sizes always are.

        Raises:
            BundleError: a file is missing, damaged or truncated, or the bundle is of another schema version.
        """
        if not isinstance(folder, str | os.PathLike):
            raise BundleError(f"the bundle is {shown(folder)}: expected the path of a folder")
        folder = Path(folder)
        bundle = cls(folder, read_manifest(folder))
        bundle._check_checksums()
        bundle._check_sizes()
        if verify and not (stamp := bundle._stamp()).exists():
            bundle.verify()
            _leave(stamp)
        return bundle

    def path(self, name: str) -> Path:
        """Path of the file that the manifest calls ``name``, such as ``"target/onnx/model.onnx"``.

        Raises:
            BundleError: the bundle has no such file.
        """
        if name not in self.manifest["files"]:
            raise BundleError(f"{self.folder} has no file {name}: its {MANIFEST} does not list it")
        return self.folder / name

    def verify(self) -> None:
        """Hash every file, whether or not it was hashed before.

        Raises:
            BundleError: a file's hash is not that of the manifest.
        """
        for name, expected in self.manifest["files"].items():
            if sha256(self.folder / name) != expected["sha256"]:
                raise damaged(self.folder / name, "its SHA-256 is not the one in " + MANIFEST)

    def _check_checksums(self) -> None:
        """edgepipe.json and SHA256SUMS say the same. Only then is edgepipe.json fit to judge other files."""
        path = self.folder / CHECKSUMS
        if not path.is_file():
            raise damaged(path, "it is missing")
        if path.read_bytes() != checksums(self.manifest["files"], sha256(self.folder / MANIFEST)).encode():
            raise BundleError(
                f"{self.folder}: {MANIFEST} and {CHECKSUMS} do not agree, one of them is damaged; "
                "copy or export the bundle again"
            )

    def _check_sizes(self) -> None:
        """Every file of the manifest exists and has its size."""
        for name, expected in self.manifest["files"].items():
            path = self.folder / name
            if not path.is_file():
                raise damaged(path, "it is missing")
            if (found := path.stat().st_size) != expected["bytes"]:
                raise damaged(path, f"it has {found} bytes, expected {expected['bytes']}")

    def _stamp(self) -> Path:
        """The file whose existence says that these very files were hashed and found right."""
        state = hashlib.sha256((self.folder / MANIFEST).read_bytes())
        for name in self.manifest["files"]:
            facts = (self.folder / name).stat()
            state.update(f"{name} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino}\n".encode())
        return cache_folder() / "verified" / state.hexdigest()


def sha256(path: Path) -> str:
    """SHA-256 of a file, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(files: dict[str, dict[str, Any]], manifest_hash: str) -> str:
    """Content of SHA256SUMS: a line ``<sha256>  <path>`` for each file and for edgepipe.json, by path."""
    hashes = {name: entry["sha256"] for name, entry in files.items()} | {MANIFEST: manifest_hash}
    return "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))


def _leave(stamp: Path) -> None:
    """Create the empty file ``stamp``; where that is impossible, the next load hashes again."""
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    except OSError:
        pass
