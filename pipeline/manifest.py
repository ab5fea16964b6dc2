"""Reading edgepipe.json: every key that edgepipe relies on exists, is of its type and in its range."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from reprlib import repr as shown
from typing import Any

from edgepipe.errors import BundleError
from edgepipe.pipeline.is_there import is_there
from edgepipe.runtimes.llm.spec import DecoderSpec

# 2: besides the names of files, decoders' formats have keys that readers of 1 took for such: "notes", "files", ...
SCHEMA_VERSION = 2
MANIFEST = "edgepipe.json"
KINDS = {"target": ("decoder",), "draft": ("decoder", "head"), "vision": ("vision",)}

# The keys of a decoder's format whose values are names of files. Of others there may be more than this edgepipe knows.
GRAPHS = ("plain", "scored")

_UPGRADE = "pip install --upgrade edgepipe"


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read ``folder/edgepipe.json`` and check all that can be checked without the other files.

    Raises:
        BundleError: it is missing, damaged or of a schema version to come; the file and the key are named.
    """
    path = folder / MANIFEST
    if not is_there(path) or not path.is_file():
        found = "has no edgepipe.json" if folder.is_dir() else "is no folder"
        raise BundleError(f"{folder} {found}: expected a bundle, as `edgepipe export -o BUNDLE` writes it")
    try:
        manifest = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"it is not JSON ({error})") from error
    if not isinstance(manifest, dict) or type(version := manifest.get("schema_version")) is not int:
        raise damaged(path, "it has no schema_version")
    if not 1 <= version <= SCHEMA_VERSION:
        remedy = _UPGRADE if version > SCHEMA_VERSION else "export the bundle again"
        raise BundleError(f"{path} has schema version {version}, this edgepipe reads 1 to {SCHEMA_VERSION}: {remedy}")
    for key, kind, name in (("bundle_id", str, "text"), ("components", dict, "a table"), ("files", dict, "a table")):
        if not isinstance(manifest.get(key), kind):
            found = shown(manifest[key]) if key in manifest else "missing"
            raise damaged(path, f"{key} is {found}, expected {name}")
    if not re.fullmatch("[0-9a-f]{16}", manifest["bundle_id"]):
        raise damaged(path, f"bundle_id is {shown(manifest['bundle_id'])}, expected 16 hexadecimal digits")
    for name, entry in manifest["files"].items():
        _check_entry(path, name, entry)
    for name, component in manifest["components"].items():
        _check_component(path, name, component, manifest["files"])
    return manifest


def damaged(path: Path, reason: str) -> BundleError:
    """The error of a file that is not as it was written."""
    return BundleError(f"{path} is damaged: {reason}; copy or export the bundle again")


def _check_entry(path: Path, name: str, entry: object) -> None:
    """``files`` maps paths inside the bundle to ``{"sha256": str, "bytes": int}``."""
    if not _is_portable(name):
        raise damaged(path, f"the file name {shown(name)} leads out of the bundle, or no file can have it")
    if not isinstance(entry, dict):
        raise damaged(path, f"files.{name} is {shown(entry)}, expected a table")
    if not isinstance(digest := entry.get("sha256"), str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise damaged(path, f"files.{name}.sha256 is {shown(digest)}, expected 64 hexadecimal digits")
    if type(size := entry.get("bytes")) is not int or size < 0:
        raise damaged(path, f"files.{name}.bytes is {shown(size)}, expected a number of bytes")


def _is_portable(name: str) -> bool:
    """Whether a file name is relative, free of ``..`` as POSIX and as Windows read it, and one that a file can have."""
    readings = (PurePosixPath(name), PureWindowsPath(name))
    inside = bool(readings[0].parts) and all(not reading.anchor and ".." not in reading.parts for reading in readings)
    return inside and name.isprintable() and all(len(part.encode()) <= 255 for part in readings[0].parts)


def _check_component(path: Path, name: str, component: object, files: dict[str, Any]) -> None:
    """A component is a decoder whose spec can be read, or a vision model; its files are listed."""
    if name not in KINDS:
        raise BundleError(f"{path}: components has {shown(name)}, this edgepipe reads {', '.join(KINDS)}: {_UPGRADE}")
    where = f"components.{name}"
    if not isinstance(component, dict):
        raise damaged(path, f"{where} is {shown(component)}, expected a table")
    if (kind := component.get("kind")) not in KINDS[name]:
        known = " or ".join(KINDS[name])
        raise BundleError(f"{path}: {where}.kind is {shown(kind)}, this edgepipe reads {known}: {_UPGRADE}")
    if kind != "vision":
        try:
            spec = DecoderSpec.from_json(component.get("spec"))
        except BundleError as error:
            raise BundleError(f"{path}: {where}.spec: {error}") from error
        if spec.output_vocab_size is not None:
            if name == "target":
                raise damaged(path, f"{where}.spec.output_vocab_size is {spec.output_vocab_size}, expected none")
            _check_listed(path, f"{where}.output_token_ids", component.get("output_token_ids"), files)
    if not isinstance(formats := component.get("formats"), dict):
        raise damaged(path, f"{where}.formats is {shown(formats)}, expected a table")
    for engine, graphs in formats.items():
        key = f"{where}.formats.{shown(engine)[1:-1]}"
        if not engine.isprintable() or not isinstance(graphs, dict):
            raise damaged(path, f"{key} is {shown(graphs)}, expected the name of an engine and a table")
        for graph, file in graphs.items():
            if kind == "vision" or graph in GRAPHS:
                _check_listed(path, f"{key}.{shown(graph)[1:-1]}", file, files)
        if "widths" in graphs and kind != "vision":
            _check_widths(path, f"{key}.widths", graphs["widths"])
        if "files" in graphs and kind != "vision":
            if not isinstance(graphs["files"], list):
                raise damaged(path, f"{key}.files is {shown(graphs['files'])}, expected a list")
            for file in graphs["files"]:
                _check_listed(path, f"{key}.files", file, files)
    file = "plan" if kind == "vision" else "tokenizer"
    _check_listed(path, f"{where}.{file}", component.get(file), files)


def _check_widths(path: Path, key: str, widths: object) -> None:
    numbers = widths if isinstance(widths, list) and all(type(width) is int for width in widths) else []
    if numbers[:1] != [1] or numbers != sorted(set(numbers)):
        raise damaged(path, f"{key} is {shown(widths)}, expected ascending whole numbers from 1 on")


def _check_listed(path: Path, key: str, file: object, files: dict[str, Any]) -> None:
    if not isinstance(file, str) or file not in files:
        raise damaged(path, f"{key} is {shown(file)}, expected the name of one of its files")
