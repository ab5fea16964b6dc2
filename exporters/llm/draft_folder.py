"""A draft on disk: the folder that `edgepipe distill` writes and `edgepipe export --draft` reads.

    config.json         a transformers configuration of the target's architecture and vocab_size (the rows of the
                        embeddings), with the draft's own num_hidden_layers, tie_word_embeddings false, and
                          "output_vocab_size": V', the tokens that it can guess
                          "edgepipe": {"kind": "decoder" or "head", "target": the target as it was typed, ...}
    model.safetensors   the tensors below, and output_token_ids int32 [V'], ascending: the token of every logit
    README.md           a model card

Input embeddings and tokenizer are the target's own and not in the folder. Names are those of transformers.

A ``decoder`` has ``model.layers.N.*``, ``model.norm.weight`` and ``lm_head.weight`` ``[V', hidden]``. It is trained
over the target's embeddings, which stay as they are.

A ``head`` (EAGLE, Li et al. 2024) is one layer over the target's features, the rows that its last layer gives to its
final norm. Row i takes the feature of token i and the embedding of token i + 1, stands at position i, and predicts the
feature of token i + 1, hence token i + 2:

    x = model.fc.weight @ concat(rms_norm(embedding, model.embedding_norm.weight),
                                 rms_norm(feature, model.feature_norm.weight))
    predicted feature = layer 0 of the configuration (x)
    logits = target's lm_head.weight[output_token_ids] @ rms_norm(predicted feature, target's model.norm.weight)

It has ``model.fc.weight`` ``[hidden, 2 hidden]``, ``model.embedding_norm.weight`` and ``model.feature_norm.weight``
``[hidden]``, and ``model.layers.0.*``.

A matrix may be stored as int8 codes with one float16 scale a row, ``NAME.weight`` and ``NAME.weight_scale``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import numpy as np

from edgepipe.errors import EdgepipeError, MissingExtra, UnsupportedModel

try:
    import torch
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import save
except ImportError as missing:
    raise MissingExtra(missing.name or "safetensors", "export") from missing

KINDS = ("decoder", "head")
CONFIG, TENSORS, TOKEN_IDS = "config.json", "model.safetensors", "output_token_ids"
_SCALE = "_scale"


class DraftFolder:
    """A draft folder that was opened: ``config`` as it is written, ``kind``, ``target``, ``output_token_ids``.

    ``shapes`` maps the name of every tensor, but scales and ids, to its shape.
    """

    def __init__(self, folder: Path) -> None:
        """Read configuration, ids and headers.

        Raises:
            EdgepipeError: there is no such folder.
            UnsupportedModel: its files are missing or damaged, or it is no draft.
        """
        self.folder = folder
        self.config = _read_config(folder)
        self.kind: str = self.config["edgepipe"]["kind"]
        self.target: str = self.config["edgepipe"]["target"]
        path = folder / TENSORS
        if not path.is_file():
            raise UnsupportedModel(f"{folder} has no {TENSORS}: distil the draft again")
        try:
            with safe_open(path, framework="pt") as file:
                stored = set(file.keys())
                names = [name for name in sorted(stored) if name != TOKEN_IDS and not name.endswith(_SCALE)]
                self.shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
                self._scaled = {name for name in names if _is_scaled(path, file, stored, name)}
                ids = file.get_tensor(TOKEN_IDS).numpy()
        except (SafetensorError, OSError) as damage:
            raise _damaged(path, str(damage)) from damage
        _check_ids(path, ids, self.config)
        self.output_token_ids: np.ndarray = ids

    def tensor(self, name: str) -> np.ndarray:
        """One tensor as float32, contiguous, the caller's own.

        Raises:
            UnsupportedModel: there is none of this name, or the file is damaged.
        """
        path = self.folder / TENSORS
        if name not in self.shapes:
            raise UnsupportedModel(f"{path} has no tensor {name}: distil the draft again")
        try:
            with safe_open(path, framework="pt") as file:
                values = file.get_tensor(name).to(torch.float32, copy=True)
                if name in self._scaled:
                    values *= file.get_tensor(name + _SCALE).to(torch.float32)[:, None]
        except (SafetensorError, OSError) as damage:
            raise _damaged(path, str(damage)) from damage
        result: np.ndarray = values.numpy()
        return result


def is_draft(folder: Path) -> bool:
    """Whether ``folder`` is one that `write_draft` wrote, and not a model in Hugging Face's layout."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and "edgepipe" in config


def read_draft(folder: Path) -> DraftFolder:
    """Open a draft folder; see `DraftFolder`."""
    return DraftFolder(folder)


def write_draft(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], int8: bool = True) -> None:
    """Write config.json and model.safetensors into ``folder``, which is made if it is not there.

    Args:
        config: as the head of this file says, ``output_vocab_size`` and ``edgepipe`` included.
        tensors: float32 arrays by name, and ``output_token_ids``.
        int8: store matrices as int8 rows, a quarter of the size; else float32.

    Raises:
        UnsupportedModel: configuration or ids are not such as `read_draft` accepts.
    """
    config = dict(config)
    _check_config(folder / CONFIG, config)
    ids = np.asarray(tensors[TOKEN_IDS], np.int32)
    _check_ids(folder / TENSORS, ids, config)
    stored = {TOKEN_IDS: ids}
    for name, values in tensors.items():
        if name == TOKEN_IDS:
            continue
        values = np.ascontiguousarray(values, np.float32)
        if int8 and values.ndim == 2:
            stored[name], stored[name + _SCALE] = quantize_rows(values)
        else:
            stored[name] = values
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TENSORS).write_bytes(save(stored, metadata={"format": "pt"}))  # save_file lets nobody else read it
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def quantize_rows(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 codes ``[rows, columns]`` and float16 scales ``[rows]``: ``codes * scales`` is nearest to ``matrix``.

    No element is off by more than half a scale, but for the scale's own rounding.
    """
    scales = (np.abs(matrix).max(axis=1) / 127).astype(np.float16)
    divisors = scales.astype(np.float32)[:, None]
    steps = np.divide(matrix, divisors, out=np.zeros_like(matrix), where=divisors > 0)
    return np.clip(np.rint(steps), -127, 127).astype(np.int8), scales


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise EdgepipeError(f"no {CONFIG} in {folder}: expected a draft, as `edgepipe distill -o DRAFT` writes it")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(config, dict):
        raise _damaged(path, f"expected a JSON object, found {shown(config)}")
    _check_config(path, config)
    return config


def _check_config(path: Path, config: dict[str, Any]) -> None:
    facts = config.get("edgepipe")
    if not isinstance(facts, dict) or facts.get("kind") not in KINDS or not isinstance(facts.get("target"), str):
        expected = f'{{"kind": one of {", ".join(KINDS)}, "target": its name}}'
        raise _damaged(path, f"edgepipe is {shown(facts)}, expected {expected}")
    size, largest = config.get("output_vocab_size"), config.get("vocab_size")
    if type(largest) is not int or type(size) is not int or not 1 <= size <= largest:
        raise _damaged(path, f"output_vocab_size is {shown(size)}, expected 1 to vocab_size, {shown(largest)}")


def _check_ids(path: Path, ids: np.ndarray, config: dict[str, Any]) -> None:
    size, end = config["output_vocab_size"], config["vocab_size"]
    if ids.dtype != np.int32 or ids.shape != (size,):
        raise _damaged(path, f"{TOKEN_IDS} is {ids.dtype} {list(ids.shape)}, expected int32 [{size}]")
    if ids[0] < 0 or ids[-1] >= end or (np.diff(ids) <= 0).any():
        raise _damaged(path, f"{TOKEN_IDS} are not ascending ids from 0 to {end - 1}")


def _is_scaled(path: Path, file: Any, stored: set[str], name: str) -> bool:
    """Whether a tensor is stored as codes with scales; refused if neither so nor as floating-point."""
    codes, scales = file.get_slice(name), name + _SCALE
    if scales not in stored:
        if codes.get_dtype() not in ("F32", "F16", "BF16"):
            raise _damaged(path, f"{name} is {codes.get_dtype()} without {scales}, expected F32")
        return False
    factors = file.get_slice(scales)
    shape, count = codes.get_shape(), factors.get_shape()
    if (codes.get_dtype(), factors.get_dtype()) != ("I8", "F16") or len(shape) != 2 or count != shape[:1]:
        found = f"{name} is {codes.get_dtype()} {shape}, {scales} is {factors.get_dtype()} {count}"
        raise _damaged(path, f"{found}: expected I8 [rows, columns] and F16 [rows]")
    return True


def _damaged(path: Path, reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"{path} is damaged: {' '.join(reason.split())}; distil the draft again")
