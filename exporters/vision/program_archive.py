"""The archive that ``torch.export.save`` writes (.pt2), read member by member and without pickle.

Torch's own reader unpickles what a file asks it to, loads compiled code, imports modules by the names that it finds,
and writes names from the file into Python source. Here the archive is zip, JSON and raw numbers, and nothing else.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edgepipe.errors import UnsupportedModel

# Of all members together, unpacked: larger than any model for a microcontroller.
MAX_ARCHIVE_BYTES = 1 << 28
# The graph of a network of some hundred operators takes a few hundred kilobytes.
MAX_JSON_BYTES = 1 << 24

# The members after the archive's own name. Sample inputs are a pickle, which is never opened.
_MEMBERS = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/(version|serialization_id)|extra/.+"
    r"|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(model_weights_config\.json|weight_\d+)"
    r"|data/constants/(model_constants_config\.json|tensor_\d+)"
)
_PAYLOADS = {"weights": "weight_", "constants": "tensor_"}

# torch's schema numbers the types of elements so.
SCALAR_TYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}
_STRIDED = 7


@dataclass(frozen=True)
class ProgramArchive:
    """A program as the file says it, unchecked, and its weights and constants by their names."""

    program: dict[str, Any]
    tensors: dict[str, torch.Tensor]


def read_archive(path: Path) -> ProgramArchive:
    """Unpack the one model of an archive.

    Raises:
        UnsupportedModel: it is too large, or holds anything but what ``torch.export.save`` writes for plain tensors.
        Exception: it is damaged; zipfile's, json's and torch's own errors.
    """
    if path.stat().st_size > MAX_ARCHIVE_BYTES:
        raise UnsupportedModel(f"{path} has {path.stat().st_size} bytes: expected at most {MAX_ARCHIVE_BYTES}")
    with zipfile.ZipFile(path) as archive:
        members = _members(archive, path)
        unpacked = sum(member.file_size for member in members.values())
        if unpacked > MAX_ARCHIVE_BYTES:
            raise UnsupportedModel(f"{path} unpacks to {unpacked} bytes: expected at most {MAX_ARCHIVE_BYTES}")

        def content(name: str, most: int = MAX_ARCHIVE_BYTES) -> bytes:
            if members[name].file_size > most:
                raise UnsupportedModel(f"{path}: {name} has {members[name].file_size} bytes: expected at most {most}")
            return archive.read(members[name])

        if "byteorder" in members and content("byteorder", 16) != b"little":
            raise UnsupportedModel(f"{path} has numbers that are not little-endian: save it again on this machine")
        tensors: dict[str, torch.Tensor] = {}
        taken = 0
        for kind, prefix in _PAYLOADS.items():
            config = json.loads(content(f"data/{kind}/model_{kind}_config.json", MAX_JSON_BYTES))["config"]
            stored: dict[str, bytearray] = {}
            for name, entry in config.items():
                payload = entry["path_name"]
                if entry["use_pickle"] or not payload.startswith(prefix):
                    raise UnsupportedModel(f"{path}: {name[:80]!r} is a pickle, which could run code: not read")
                if payload not in stored:
                    stored[payload] = bytearray(content(f"data/{kind}/{payload}"))
                tensors[name] = _tensor(stored[payload], entry["tensor_meta"])
                # Many tensors may be read from the same numbers.
                if (taken := taken + tensors[name].nbytes) > MAX_ARCHIVE_BYTES:
                    raise UnsupportedModel(f"{path} has tensors of {taken} bytes: expected {MAX_ARCHIVE_BYTES} at most")
        return ProgramArchive(json.loads(content("models/model.json", MAX_JSON_BYTES)), tensors)


def _members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """The members by their names, without the folder that all of them lie in."""
    members: dict[str, zipfile.ZipInfo] = {}
    roots = set()
    for member in archive.infolist():
        root, _, name = member.filename.partition("/")
        roots.add(root)
        if not _MEMBERS.fullmatch(name):
            raise UnsupportedModel(
                f"{path} holds {member.filename[:80]!r}: expected only what torch.export.save of torch 2.8 or newer "
                "writes for one model"
            )
        if name in members or len(roots) > 1:
            raise UnsupportedModel(f"{path} holds two of {name[:80]!r}: expected what torch.export.save wrote")
        members[name] = member
    return members


def _tensor(content: bytearray, meta: dict[str, Any]) -> torch.Tensor:
    sizes = [size["as_int"] for size in meta["sizes"]]
    strides = [stride["as_int"] for stride in meta["strides"]]
    values = torch.frombuffer(content, dtype=SCALAR_TYPES[meta["dtype"]])
    if meta["layout"] != _STRIDED or math.prod(sizes) > values.numel():
        raise ValueError(f"{values.numel()} numbers for a tensor of shape {sizes}")
    return torch.as_strided(values, sizes, strides, meta["storage_offset"]["as_int"]).clone()
