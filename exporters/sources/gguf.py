"""Weights from one GGUF file, as llama.cpp writes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra, UnsupportedModel
from edgepipe.exporters.llm.quantize import QuantizedMatrix
from edgepipe.exporters.sources.gguf_blocks import (
    interleave_to_halves,
    repack_q4_0,
    repack_q4_1,
    repack_q4_k,
    repack_q8_0,
)
from edgepipe.exporters.sources.gguf_config import config_from_gguf
from edgepipe.exporters.sources.gguf_tokenizer import read_gguf_tokenizer, save_gguf_tokenizer, tokenizer_notes
from edgepipe.exporters.sources.licence import spdx
from edgepipe.exporters.sources.quiet import no_progress_bars
from edgepipe.exporters.sources.spec_from_config import check_tensors, spec_from_config, tensor_shapes
from edgepipe.exporters.sources.weights import DecoderWeights, SourceInfo, file_sha256, one_line, require_finite

try:
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
except ImportError as missing:
    raise MissingExtra(missing.name or "gguf", "export") from missing

_REPACK = {"Q4_0": repack_q4_0, "Q4_1": repack_q4_1, "Q4_K": repack_q4_k, "Q8_0": repack_q8_0}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in the file; ``shape`` in torch's order."""

    type: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    bytes: int


class GgufWeights(DecoderWeights):
    """One GGUF file; every tensor is read from the file and dequantised when asked for."""

    def __init__(self, path: Path) -> None:
        """Read the header and hash the file.

        Raises:
            UnsupportedModel: another architecture, a missing tensor, an unknown type of quantisation, a damaged file.
        """
        self._path = path
        self._fields, self._stored = _read_header(path)
        self._architecture = str(self._fields["general.architecture"])
        shapes = {name: stored.shape for name, stored in self._stored.items()}
        self._config, architecture, eos = config_from_gguf(path, self._fields, shapes, self._rope_factors())
        self.spec, notes = spec_from_config(self._config, architecture, path.name, eos)
        self._names = self._gguf_names()
        found = {name: shapes[stored] for name, stored in self._names.items() if stored in shapes}
        layers = {
            name.replace("blk.", "model.layers.", 1): shape for name, shape in shapes.items() if name.startswith("blk.")
        }
        check_tensors(self.spec, layers | found, path.name)
        self.info = SourceInfo(
            "gguf",
            path.name,
            licence=spdx(self._fields.get("general.license")),
            files={path.name: file_sha256(path)},
            notes=notes + tokenizer_notes(self._fields),
        )

    def tensor(self, name: str) -> np.ndarray:
        stored = self._lookup(name)
        try:
            values = gguf.quants.dequantize(self._rows(name, stored), stored.type)
        except NotImplementedError as error:
            raise UnsupportedModel(f"{self._path.name}: {name} is {stored.type.name}: {one_line(error)}") from error
        require_finite(values, name, self._path.name)
        return np.ascontiguousarray(values, np.float32).reshape(stored.shape)

    def gguf_type(self, name: str) -> str | None:
        return str(self._lookup(name).type.name)

    def quantized(self, name: str) -> QuantizedMatrix | None:
        stored = self._lookup(name)
        repack = _REPACK.get(stored.type.name)
        if repack is None or len(stored.shape) != 2:
            return None
        matrix = repack(self._rows(name, stored))
        for floats in (matrix.scales, matrix.offsets):
            if floats is not None:
                require_finite(floats, name, self._path.name)
        return matrix

    def save_tokenizer(self, folder: Path) -> None:
        save_gguf_tokenizer(self._tokenizer, self._config, self.spec, folder)

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        """Read once, for a draft of this target is given it too, and transformers takes seconds."""
        return read_gguf_tokenizer(self._path, self._fields)

    def reference_model(self) -> PreTrainedModel:
        if find_spec("accelerate") is None:  # which transformers wants for GGUF files
            raise MissingExtra("accelerate", "export")
        with no_progress_bars():
            return AutoModelForCausalLM.from_pretrained(
                self._path.parent,
                gguf_file=self._path.name,
                config=self._config,
                dtype=torch.float32,
                attn_implementation="sdpa",
                trust_remote_code=False,
                local_files_only=True,
            ).eval()

    def _rope_factors(self) -> np.ndarray | None:
        stored = self._stored.get("rope_freqs.weight")
        return None if stored is None else np.fromfile(self._path, "<f4", stored.shape[0], offset=stored.offset)

    def _gguf_names(self) -> dict[str, str]:
        """GGUF's name of every tensor of the decoder, by its Hugging Face name."""
        architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == self._architecture)
        name_map = gguf.get_tensor_name_map(architecture, self.spec.num_layers)
        names = {}
        for name in tensor_shapes(self.spec):
            module, kind = name.rsplit(".", 1)
            names[name] = f"{name_map.get_name(module)}.{kind}"
        return names

    def _lookup(self, name: str) -> StoredTensor:
        if name not in self._names:
            raise UnsupportedModel(f"{self._path.name} has no tensor {name}")
        return self._stored[self._names[name]]

    def _rows(self, name: str, stored: StoredTensor) -> np.ndarray:
        """The bytes of a tensor, uint8 ``[rows, bytes of a row]``, its rows in Hugging Face's order."""
        # Read, not mapped: touched pages of a mapping would count as ours until the end.
        data = np.fromfile(self._path, np.uint8, stored.bytes, offset=stored.offset)
        if data.size != stored.bytes:
            raise UnsupportedModel(f"{self._path} was cut short while it was read: {name} ends beyond its end")
        rows = data.reshape(stored.shape[0] if len(stored.shape) > 1 else 1, -1)
        if self._architecture == "llama" and ".self_attn.q_proj." in name:
            return _restore_heads(rows, stored, self.spec.num_heads)
        if self._architecture == "llama" and ".self_attn.k_proj." in name:
            return _restore_heads(rows, stored, self.spec.num_kv_heads)
        return rows


def _restore_heads(rows: np.ndarray, stored: StoredTensor, num_heads: int) -> np.ndarray:
    """Rows of a weight, or elements of a bias, in Hugging Face's order."""
    if len(stored.shape) > 1:
        return interleave_to_halves(rows, num_heads)
    return interleave_to_halves(rows.reshape(stored.shape[0], -1), num_heads).reshape(1, -1)


def _read_header(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Metadata (without arrays: the vocabulary is left to transformers) and the place of every tensor."""
    try:
        reader = gguf.GGUFReader(path)
        fields = {
            name: field.contents()
            for name, field in reader.fields.items()
            if field.types[0] != gguf.GGUFValueType.ARRAY
        }
        stored = {
            tensor.name: StoredTensor(
                tensor.tensor_type,
                tuple(int(size) for size in reversed(tensor.shape)),
                int(tensor.data_offset),
                int(tensor.n_bytes),
            )
            for tensor in reader.tensors
        }
        size = reader.data.size
    except OSError as error:
        raise UnsupportedModel(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # the reader trusts the file: damage surfaces as any error numpy or Python knows
        raise UnsupportedModel(f"{path} is no GGUF file, or damaged ({one_line(error)}): download it again") from error
    for name, tensor in stored.items():
        if tensor.offset + tensor.bytes > size:
            raise UnsupportedModel(f"{path} is cut short: {name} ends beyond its end; download it again")
    if "general.architecture" not in fields:
        raise UnsupportedModel(f"{path} names no architecture: expected general.architecture in its metadata")
    return fields, stored
