"""Weights from a local folder in Hugging Face's layout: config.json, safetensors (whole or sharded), a tokenizer."""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import EdgepipeError, MissingExtra, TokenizerError, UnsupportedModel
from edgepipe.exporters.sources.generation_config import save_generation_config
from edgepipe.exporters.sources.licence import model_card_licence
from edgepipe.exporters.sources.quiet import no_progress_bars, no_warnings
from edgepipe.exporters.sources.spec_from_config import (
    check_sizes,
    check_tensors,
    spec_from_config,
    supported_architecture,
    token_ids,
)
from edgepipe.exporters.sources.weights import DecoderWeights, SourceInfo, one_line, require_finite

try:
    import torch
    import transformers
    from safetensors import SafetensorError, safe_open
    from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel
except ImportError as missing:
    raise MissingExtra(missing.name or "transformers", "export") from missing

_FLOATS = ("F32", "F16", "BF16")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)


class HuggingFaceWeights(DecoderWeights):
    """A local folder with config.json and safetensors; every tensor is read when asked for and then let go."""

    def __init__(self, folder: Path, name: str | None = None, revision: str | None = None) -> None:
        """Read configuration and headers.

        ``name`` and ``revision`` are what the bundle calls the source; by default the folder's name.

        Raises:
            UnsupportedModel: another architecture or layout, a missing shard, a damaged file.
            EdgepipeError: the folder has no config.json.
        """
        self._folder = folder
        self._name = name or folder.name
        self._config, architecture = read_config(folder, self._name)
        self.spec, notes = spec_from_config(self._config, architecture, self._name, _generation_eos(folder))
        self._files = _locate_tensors(folder, self._name)
        check_tensors(self.spec, self._check_headers(), self._name)
        self.info = SourceInfo(
            "hugging_face", self._name, revision, model_card_licence(folder / "README.md"), notes=notes
        )

    @cached_property
    def identity(self) -> str:
        if self.info.revision or self.info.files:
            return super().identity
        small = (self._folder / name for name in ("config.json", "generation_config.json", *_TOKENIZER_FILES))
        digest = hashlib.sha256()
        for path in [*sorted(set(self._files.values())), *(path for path in small if path.is_file())]:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return f"{self._name} sha256:{digest.hexdigest()}"

    def tensor(self, name: str) -> np.ndarray:
        if name not in self._files:
            raise UnsupportedModel(f"{self._name} has no tensor {name}")
        # Opened anew each time: the pages of a mapped file count as ours until the mapping is closed.
        with _open(self._files[name]) as file:
            try:
                stored = file.get_tensor(name)
            except SafetensorError as damage:
                raise _damaged(self._files[name], damage) from damage
        values = stored.to(torch.float32, copy=True).numpy()
        require_finite(values, name, self._name)
        return values

    def save_tokenizer(self, folder: Path) -> None:
        for name in _TOKENIZER_FILES:
            if (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, folder / name)
        if not (folder / "tokenizer.json").is_file():
            self._convert_tokenizer(folder)
        shutil.copyfile(self._folder / "config.json", folder / "config.json")
        if (self._folder / "generation_config.json").is_file():
            shutil.copyfile(self._folder / "generation_config.json", folder / "generation_config.json")
        else:
            save_generation_config(self._config, self.spec, folder)

    def reference_model(self) -> PreTrainedModel:
        # Read from the files, not mapped: transformers maps all shards until the whole model is loaded, and by then
        # their touched pages count as half as much memory again.
        files = {path: safe_open(path, framework="pt", backend="pread") for path in set(self._files.values())}
        slices = {name: files[path].get_slice(name) for name, path in self._files.items()}
        model_class: type[PreTrainedModel] = getattr(transformers, self.spec.architecture)
        with no_progress_bars():
            model = model_class.from_pretrained(
                None, config=self._config, state_dict=slices, dtype=torch.float32, attn_implementation="sdpa"
            )
        return model.eval()

    def _convert_tokenizer(self, folder: Path) -> None:
        """Let transformers turn an older tokenizer (tokenizer.model, vocab.json and merges.txt) into tokenizer.json."""
        if not any((self._folder / name).is_file() for name in ("tokenizer.model", "vocab.json")):
            raise TokenizerError(f"{self._name} has no tokenizer: expected tokenizer.json in {self._folder}")
        try:
            tokenizer = AutoTokenizer.from_pretrained(self._folder, trust_remote_code=False, local_files_only=True)
            tokenizer.save_pretrained(folder)
        except Exception as error:  # transformers raises whatever its many converters do
            raise TokenizerError(
                f"transformers cannot read the tokenizer of {self._name}: {one_line(error)}"
            ) from error
        if not (folder / "tokenizer.json").is_file():
            raise TokenizerError(f"the tokenizer of {self._name} cannot be written as one tokenizer.json")

    def _check_headers(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors, from the headers alone."""
        shapes: dict[str, tuple[int, ...]] = {}
        for path in sorted(set(self._files.values())):
            with _open(path) as file:
                present = set(file.keys())
                for name in (name for name, holder in self._files.items() if holder == path):
                    if name not in present:
                        raise UnsupportedModel(
                            f"{path.name} has no tensor {name}: its index says so; download it again"
                        )
                    header = file.get_slice(name)
                    shapes[name] = tuple(header.get_shape())
                    if name.endswith((".weight", ".bias")) and header.get_dtype() not in _FLOATS:
                        raise UnsupportedModel(
                            f"{name} is stored as {header.get_dtype()}: expected one of {', '.join(_FLOATS)}"
                        )
        return shapes


def read_config(folder: Path, name: str) -> tuple[PreTrainedConfig, str]:
    """config.json of ``folder`` and the architecture that it names; ``name`` is what errors call the model.

    Raises:
        EdgepipeError: there is none.
        UnsupportedModel: it is damaged, or of an architecture that is not exported.
    """
    path = folder / "config.json"
    try:
        fields = _read_object(path)
    except FileNotFoundError:
        raise EdgepipeError(f"no config.json in {folder}: expected a model in Hugging Face's layout") from None
    except (ValueError, OSError) as error:
        raise UnsupportedModel(f"{path} cannot be read: {one_line(error)}") from error
    architecture = supported_architecture(fields, name)
    check_sizes(fields, name)
    try:
        with no_warnings():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # a wrong type or value anywhere in the file
        reason = " ".join(str(error).split())
        raise UnsupportedModel(f"transformers cannot read {path}: {reason}") from error
    return config, architecture


def _read_object(path: Path) -> dict[str, Any]:
    """Raises ValueError for what is no JSON object."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, found a {type(fields).__name__}")
    return fields


def _generation_eos(folder: Path) -> tuple[int, ...] | None:
    """The end tokens of generation_config.json, None when it names none."""
    try:
        return token_ids(_read_object(folder / "generation_config.json").get("eos_token_id")) or None
    except (OSError, ValueError):
        return None


def _locate_tensors(folder: Path, name: str) -> dict[str, Path]:
    """The file of every tensor."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = {tensor: folder / shard for tensor, shard in _read_object(index)["weight_map"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnsupportedModel(f"{index} is damaged: {one_line(error)}; download it again") from error
        for shard in sorted(set(shards.values())):
            if not shard.is_file():
                raise UnsupportedModel(f"{name} lacks its shard {shard.name}: {index} names it; download it again")
        return shards
    whole = folder / "model.safetensors"
    if whole.is_file():
        with _open(whole) as file:
            return dict.fromkeys(file.keys(), whole)
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        advice = "pickled weights are never loaded, convert them with save_pretrained of transformers"
    elif (folder.parent / "edgepipe.json").is_file():
        advice = "it is a part of a bundle, which is exported already; export what the bundle was made from"
    else:
        advice = "download its weights, too; where it has other formats only, convert them with transformers"
    raise UnsupportedModel(f"{name} has no model.safetensors in {folder}: {advice}")


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as damage:
        raise _damaged(path, damage) from damage


def _damaged(path: Path, damage: Exception) -> UnsupportedModel:
    return UnsupportedModel(f"{path} is damaged or cut short ({one_line(damage)}): download it again")
