"""Evens out the channels of activations before they are quantised row by row (SmoothQuant, Xiao et al. 2023).

A few channels of a decoder's activations are many times as large as the others, which then share few of the 256 codes.
A channel is divided by a factor where it comes from, a norm's weight or the up projection, and the matrix that reads
it is multiplied with it: the decoder computes the same.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgepipe.errors import MissingExtra
from edgepipe.exporters.llm.distill.prompt_words import PASSAGES
from edgepipe.exporters.llm.torch_decoder import DecoderLayer, RMSNorm, layer_parts, layer_state
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.rope import cos_sin_tables

try:
    import torch
    from tokenizers import Tokenizer
    from torch import Tensor
except ImportError as missing:
    raise MissingExtra(missing.name or "torch", "export") from missing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Of prose that channels are measured on. Random tokens are no match for it: they make channels large that it does not.
_TOKENS = 256
_SMALLEST = 1e-5


class SmoothedWeights(DecoderWeights):
    """The weights of an equal decoder whose activations are smooth.

    ``table_factors`` float32 ``[hidden_size]``, where embeddings and head are one matrix: the head's columns have been
    divided by them, so the rows that are looked up have to be multiplied with them. None otherwise.
    """

    def __init__(self, weights: DecoderWeights) -> None:
        self.spec, self.info, self.kind = weights.spec, weights.info, weights.kind
        self.output_token_ids = weights.output_token_ids
        self.table_factors: np.ndarray | None = None
        self._weights = weights
        self._columns: dict[str, np.ndarray] = {}  # tensor → what its columns are multiplied with
        self._rows: dict[str, np.ndarray] = {}
        with torch.inference_mode():
            self._calibrate()

    def tensor(self, name: str) -> np.ndarray:
        """See `DecoderWeights.tensor`."""
        values = self._weights.tensor(name)
        if name in self._columns:
            values *= self._columns[name]
        if name in self._rows:
            values *= self._rows[name].reshape(-1, *[1] * (values.ndim - 1))
        return values

    def gguf_type(self, name: str) -> str | None:
        """See `DecoderWeights.gguf_type`."""
        return self._weights.gguf_type(name)

    def save_tokenizer(self, folder: Path) -> None:
        """See `DecoderWeights.save_tokenizer`."""
        self._weights.save_tokenizer(folder)

    def reference_model(self) -> PreTrainedModel:
        """See `DecoderWeights.reference_model`."""
        return self._weights.reference_model()

    def _calibrate(self) -> None:
        """Run the decoder layer by layer, and set every matrix' factors."""
        spec, weights = self.spec, self._weights
        tokens = _prose(weights)
        count = len(tokens)
        table = weights.tensor("model.embed_tokens.weight")
        hidden = torch.from_numpy(table[tokens])
        cos, sin = map(torch.from_numpy, cos_sin_tables(spec, count))
        mask = torch.full((count, count), -1e30).triu(1)
        no_slots = torch.zeros(spec.num_kv_heads, 0, spec.head_dim)
        with torch.device("meta"):
            layer = DecoderLayer(spec)
        largest: dict[str, Tensor] = {}
        for name in ("qkv", "gate_up", "down"):
            module = layer.get_submodule(name)
            module.register_forward_pre_hook(lambda _, inputs, name=name: largest.update({name: _peaks(inputs[0])}))
        for index in range(spec.num_layers):
            layer.load_state_dict(layer_state(weights, index), assign=True)
            hidden = layer(hidden, cos, sin, mask, no_slots, no_slots)[0]
            factors = {name: _factors(peaks, layer.get_parameter(f"{name}.weight")) for name, peaks in largest.items()}
            self._smooth(f"model.layers.{index}.input_layernorm", layer_parts(index, "qkv.weight"), factors["qkv"])
            norm, gate_up = f"model.layers.{index}.post_attention_layernorm", layer_parts(index, "gate_up.weight")
            self._smooth(norm, gate_up, factors["gate_up"])
            self._smooth(None, layer_parts(index, "down.weight"), factors["down"])
            up = f"model.layers.{index}.mlp.up_proj"
            self._rows |= dict.fromkeys((f"{up}.weight", f"{up}.bias"), 1 / factors["down"])

        last_norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        last_norm.weight.copy_(torch.from_numpy(weights.tensor("model.norm.weight")))
        head = table if spec.tied_embeddings else weights.tensor("lm_head.weight")
        factor = _factors(_peaks(last_norm(hidden)), torch.from_numpy(head))
        matrix = "model.embed_tokens.weight" if spec.tied_embeddings else "lm_head.weight"
        self._smooth("model.norm", [matrix], factor)
        self.table_factors = 1 / factor if spec.tied_embeddings else None

    def _smooth(self, norm: str | None, matrices: list[str], factors: np.ndarray) -> None:
        self._columns |= dict.fromkeys(matrices, factors)
        if norm is not None:
            self._columns[f"{norm}.weight"] = 1 / factors


def _prose(weights: DecoderWeights) -> list[int]:
    """Tokens of prose, as many as fit the model's context."""
    with tempfile.TemporaryDirectory() as folder:
        weights.save_tokenizer(Path(folder))
        tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(" ".join(PASSAGES)).ids
    return ids[: min(_TOKENS, weights.spec.context_length)]


def _peaks(activations: Tensor) -> Tensor:
    return activations.abs().amax(0)


def _factors(peaks: Tensor, weight: Tensor) -> np.ndarray:
    """Equation 4 with alpha = 1/2, float32 ``[columns]``; their geometric mean is 1."""
    columns = weight.abs().amax(0)
    factors = (peaks.clamp(min=_SMALLEST) / columns.clamp(min=_SMALLEST)).sqrt()
    return (factors / factors.log().mean().exp()).numpy()
