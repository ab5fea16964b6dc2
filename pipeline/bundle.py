"""A bundle: the folder that `edgepipe export` writes and a device reads.

    edgepipe.json   what is inside: components, source, recipe, validation, size and SHA-256 of every file
    SHA256SUMS      the same hashes, and that of edgepipe.json, for `sha256sum -c`
    README.md       a model card
    target/ draft/  one folder a component
    reference/      golden inputs and outputs

Sizes are checked on every load. Hashes are checked on the first load and again whenever a file's size, time or
inode has changed; the stamp that remembers it is in the user's cache folder, so a bundle may be read-only.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from edgepipe.cache import cache_folder
from edgepipe.errors import BundleError

SCHEMA_VERSION = 1
MANIFEST = "edgepipe.json"
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
        folder = Path(folder)
        bundle = cls(folder, _read_manifest(folder))
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
                raise _damaged(self.folder / name, "its SHA-256 is not the one in " + MANIFEST)

    def _check_checksums(self) -> None:
        """edgepipe.json and SHA256SUMS say the same. Only then is edgepipe.json fit to judge other files."""
        path = self.folder / CHECKSUMS
        if not path.is_file():
            raise _damaged(path, "it is missing")
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
                raise _damaged(path, "it is missing")
            if (found := path.stat().st_size) != expected["bytes"]:
                raise _damaged(path, f"it has {found} bytes, expected {expected['bytes']}")

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


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Read edgepipe.json and check all that can be checked without the other files."""
    path = folder / MANIFEST
    if not path.is_file():
        found = "has no edgepipe.json" if folder.is_dir() else "is no folder"
        raise BundleError(f"{folder} {found}: expected a bundle, as `edgepipe export -o BUNDLE` writes it")
    try:
        manifest = json.loads(path.read_bytes())
    except ValueError as error:
        raise _damaged(path, f"it is not JSON ({error})") from error
    if not isinstance(manifest, dict) or not isinstance(version := manifest.get("schema_version"), int):
        raise _damaged(path, "it has no schema_version")
    if version > SCHEMA_VERSION:
        raise BundleError(
            f"{path} has schema version {version}, this edgepipe reads {SCHEMA_VERSION}: pip install --upgrade edgepipe"
        )
    if version < SCHEMA_VERSION:
        raise BundleError(
            f"{path} has schema version {version}, this edgepipe reads {SCHEMA_VERSION}: export the bundle again"
        )
    for key in ("bundle_id", "components", "files"):
        if key not in manifest:
            raise _damaged(path, f"it has no {key}")
    _check_entries(path, manifest["files"])
    return manifest


def _check_entries(path: Path, files: object) -> None:
    """``files`` maps paths inside the bundle to ``{"sha256": str, "bytes": int}``."""
    if not isinstance(files, dict):
        raise _damaged(path, "its files are no table")
    for name, entry in files.items():
        if not _stays_inside(name):
            raise _damaged(path, f"the file name {name!r} leads out of the bundle")
        whole = isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and isinstance(entry.get("bytes"), int)
        if not whole:
            raise _damaged(path, f"its entry of {name} lacks sha256 or bytes")


def _stays_inside(name: str) -> bool:
    """Whether a file name is relative and free of ``..``, as POSIX and as Windows read it."""
    readings = (PurePosixPath(name), PureWindowsPath(name))
    return bool(name) and all(not reading.anchor and ".." not in reading.parts for reading in readings)


def _damaged(path: Path, reason: str) -> BundleError:
    return BundleError(f"{path} is damaged: {reason}; copy or export the bundle again")


def _leave(stamp: Path) -> None:
    """Create the empty file ``stamp``; where that is impossible, the next load hashes again."""
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    except OSError:
        pass
