"""Model folders from the Hugging Face hub: safetensors and their company, never pickles, never code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edgepipe.errors import EdgepipeError, MissingExtra
from edgepipe.exporters.sources.weights import one_line

try:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils import disable_progress_bars
except ImportError as missing:
    raise MissingExtra(missing.name or "huggingface_hub", "export") from missing

_ALLOWED = ["*.json", "*.safetensors", "*.model", "*.jinja", "merges.txt", "README.md"]
# Sub-folders hold other formats, "consolidated" files a second copy of the weights under other names.
_IGNORED = ["*/*", "consolidated*"]


def hub_folder(name: str, revision: str | None = None) -> tuple[Path, str]:
    """The local folder of a hub repository and its commit, downloaded unless a whole copy is in the cache already.

    Raises:
        EdgepipeError: no such repository or revision, no permission, or no answer.
    """
    cached = cached_folder(name, revision)
    if cached is not None:
        return cached
    if constants.HF_HUB_OFFLINE:
        raise EdgepipeError(f"{name} is not in the local cache and HF_HUB_OFFLINE is set: unset it, or give a folder")
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_ALLOWED, ignore_patterns=_IGNORED))
    except GatedRepoError:
        raise EdgepipeError(f"{name} asks for consent on its hub page: accept it there, then `hf auth login`") from None
    except RepositoryNotFoundError:
        raise EdgepipeError(f"no model {name} on the hub, or no permission to see it (`hf auth login`)") from None
    except RevisionNotFoundError:
        raise EdgepipeError(f"{name} has no revision {revision}: expected a branch, a tag or a commit") from None
    except LocalEntryNotFoundError:
        raise EdgepipeError(f"the hub does not answer and {name} is not in the local cache: give a folder") from None
    except Exception as error:  # the HTTP library below, and so its errors, differ between versions of the hub client
        raise EdgepipeError(f"downloading {name} failed: {one_line(error)}") from error
    return folder, folder.name


def cached_folder(name: str, revision: str | None = None) -> tuple[Path, str] | None:
    """The folder and commit of a repository whose weights are all in the local cache, or None; never asks the hub.

    Raises:
        EdgepipeError: ``name`` is no name of a repository.
    """
    try:
        found = snapshot_download(
            name, revision=revision, allow_patterns=_ALLOWED, ignore_patterns=_IGNORED, local_files_only=True
        )
    except LocalEntryNotFoundError:
        return None
    except HFValidationError:
        raise EdgepipeError(f"{name!r} is neither a file nor a folder, nor a hub id such as owner/model") from None
    folder = Path(found)
    return (folder, folder.name) if _has_weights(folder) else None


def hub_answers(name: str, timeout_s: float) -> bool:
    """Whether the hub confirms the repository in time."""
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        HfApi().model_info(name, timeout=timeout_s)
    except Exception:  # no connection, no answer in time, an error of the server: all mean no
        return False
    return True


def _has_weights(folder: Path) -> bool:
    """Whether config and all weights are there: other tools leave snapshots with only a part of the files."""
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return (folder / "model.safetensors").is_file()
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError):
        return False
    return all((folder / shard).is_file() for shard in shards)
