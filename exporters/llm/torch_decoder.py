"""The decoder in torch as engines with static shapes run it: the cache goes in, the rows of the new tokens come out.

Llama, Mistral, Qwen2 and Qwen3 differ in switches of `DecoderSpec` only. A decoder is three kinds of module, an
embedding table, layers and a head, each of which can be traced alone; all layers have the same graph.

Sizes: S new tokens, C slots of the cache, L layers, H query heads, Hkv KV heads, D channels a head, G = H / Hkv.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from edgepipe.errors import MissingExtra, UnsupportedModel
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.spec import DecoderSpec

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as missing:
    raise MissingExtra("torch", "export") from missing


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis (Zhang and Sennrich 2019), written out in plain operators."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * torch.rsqrt((hidden * hidden).mean(-1, keepdim=True) + self.epsilon) * self.weight


class DecoderLayer(nn.Module):
    """One pre-norm layer: grouped-query attention over cache and new rows, and a gated MLP.

    Query, key and value projections are one matrix, and so are gate and up: fewer, larger products.
    """

    def __init__(self, spec: DecoderSpec, *, scored: bool = False) -> None:
        """``scored``: also return the attention mass."""
        super().__init__()
        self.spec = spec
        self.scored = scored
        hidden, inner = spec.hidden_size, spec.intermediate_size
        rows = spec.num_heads * spec.head_dim
        self.input_norm = RMSNorm(hidden, spec.rms_norm_eps)
        self.qkv = nn.Linear(hidden, rows + 2 * spec.num_kv_heads * spec.head_dim, spec.qkv_bias)
        if spec.qk_norm:
            self.q_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps)
            self.k_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps)
        self.o = nn.Linear(rows, hidden, spec.o_bias)
        self.post_attention_norm = RMSNorm(hidden, spec.rms_norm_eps)
        self.gate_up = nn.Linear(hidden, 2 * inner, spec.mlp_bias)
        self.down = nn.Linear(inner, hidden, spec.mlp_bias)

    def forward(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the layer.

        Args:
            hidden: ``[S, hidden_size]``.
            cos: ``[S, D / 2]``, of the new tokens' true positions (`edgepipe.runtimes.llm.rope`).
            sin: likewise.
            mask: ``[S, S + C]``, added to the scores of new rows, then slots: 0 for those that a token sees, a large
                negative number for all others.
            keys: ``[Hkv, C, D]``, after RoPE.
            values: ``[Hkv, C, D]``.

        Returns:
            The next layer's ``hidden``; the new rows of keys and of values, each ``[Hkv, S, D]``; and if scored the
            mass ``[Hkv, S, S + C]``, softmax rows summed over the query heads of a group.
        """
        query, new_keys, new_values = self._project(self.input_norm(hidden), cos, sin)
        attended, mass = self._attend(query, mask, keys, values, new_keys, new_values)
        hidden = hidden + self.o(attended)
        gate, up = self.gate_up(self.post_attention_norm(hidden)).split(self.spec.intermediate_size, dim=-1)
        hidden = hidden + self.down(functional.silu(gate) * up)
        return (hidden, new_keys, new_values) if mass is None else (hidden, new_keys, new_values, mass)

    def _project(self, normed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries ``[Hkv, G * S, D]`` (heads of a group one after another), new rows of keys and values."""
        spec = self.spec
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        # [H + 2 Hkv, S, D]
        packed = self.qkv(normed).unflatten(-1, (heads + 2 * kv_heads, spec.head_dim)).transpose(0, 1)
        query_key, value = packed.split([heads + kv_heads, kv_heads])
        if spec.qk_norm:
            query, key = query_key.split([heads, kv_heads])
            query_key = torch.cat([self.q_norm(query), self.k_norm(key)])
        first, second = query_key.split(spec.head_dim // 2, dim=-1)
        rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        query, key = rotated.split([heads, kv_heads])
        return query.reshape(kv_heads, -1, spec.head_dim), key, value

    def _attend(
        self, query: Tensor, mask: Tensor, keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Attention ``[S, H * D]`` of queries over cache and new rows, which are never put together; and the mass."""
        spec = self.spec
        slots, width = keys.shape[1], new_keys.shape[1]
        query = query * (1 / math.sqrt(spec.head_dim))
        scores = torch.cat([query @ new_keys.transpose(1, 2), query @ keys.transpose(1, 2)], dim=-1)
        grouped = scores.view(spec.num_kv_heads, -1, width, width + slots)
        probabilities = (grouped + mask).softmax(-1)
        of_new, of_cache = probabilities.view(scores.shape).split([width, slots], dim=-1)
        attended = of_cache @ values + of_new @ new_values  # [Hkv, G * S, D]
        rows = attended.view(spec.num_heads, width, spec.head_dim).transpose(0, 1).flatten(1)
        return rows, probabilities.sum(1) if self.scored else None


class OutputHead(nn.Module):
    """The final norm and the projection to logits."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.lm_head = nn.Linear(spec.hidden_size, spec.num_logits, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits ``[R, num_logits]`` of ``hidden`` ``[R, hidden_size]``."""
        return self.lm_head(self.norm(hidden))


class TorchDecoder(nn.Module):
    """The whole decoder."""

    def __init__(self, spec: DecoderSpec, *, scored: bool = False) -> None:
        """With uninitialised weights; see `load_decoder`."""
        super().__init__()
        self.spec = spec
        self.embeddings = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(spec, scored=scored) for _ in range(spec.num_layers))
        self.head = OutputHead(spec)
        if spec.tied_embeddings:
            self.head.lm_head.weight = self.embeddings.weight

    def forward(
        self, tokens: Tensor, logit_rows: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, *cache: Tensor
    ) -> tuple[Tensor, ...]:
        """Run ``tokens`` (integers ``[S]``).

        ``logit_rows``, integers ``[R]``, are the tokens whose logits are wanted. ``cache`` holds the first layer's keys
        and values, the second's, .... They and the others are as in `DecoderLayer.forward`.

        Returns:
            Logits ``[R, num_logits]``, new rows ``[L, 2, Hkv, S, D]``, and if scored the mass ``[L, Hkv, S, S + C]``.
        """
        hidden = self.embeddings(tokens)
        rows, masses = [], []
        for index, layer in enumerate(self.layers):
            hidden, new_keys, new_values, *mass = layer(hidden, cos, sin, mask, *cache[2 * index : 2 * index + 2])
            rows += [new_keys, new_values]
            masses += mass
        logits = self.head(hidden.index_select(0, logit_rows))
        new_rows = torch.stack(rows).unflatten(0, (len(self.layers), 2))
        return (logits, new_rows, torch.stack(masses)) if masses else (logits, new_rows)


def load_decoder(weights: DecoderWeights, *, scored: bool = False) -> TorchDecoder:
    """The decoder of ``weights`` in float32, for inference.

    Raises:
        UnsupportedModel: a tensor is missing, or the model reads features beside its tokens.
    """
    check_kind(weights)
    spec = weights.spec
    with torch.device("meta"):
        decoder = TorchDecoder(spec, scored=scored)
    decoder.embeddings.weight = _parameter(weights.tensor("model.embed_tokens.weight"))
    for index, layer in enumerate(decoder.layers):
        layer.load_state_dict(layer_state(weights, index), assign=True)
    decoder.head.norm.weight = _parameter(weights.tensor("model.norm.weight"))
    tied = spec.tied_embeddings
    head = decoder.embeddings.weight if tied else _parameter(weights.tensor("lm_head.weight"))
    decoder.head.lm_head.weight = head
    return decoder.eval().requires_grad_(False)


def check_kind(weights: DecoderWeights) -> None:
    """Refuse a draft that reads its target's features.

    Raises:
        UnsupportedModel: it is one.
    """
    if weights.kind == "head":
        raise UnsupportedModel(
            f"{weights.info.name} is a draft of kind head: TFLite and ExecuTorch run drafts of kind decoder only, "
            "give --formats onnx"
        )


# The parts of every parameter of a layer, in Hugging Face's names.
_PARTS: Mapping[str, Sequence[str]] = {
    "input_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "q_norm": ("self_attn.q_norm",),
    "k_norm": ("self_attn.k_norm",),
    "o": ("self_attn.o_proj",),
    "post_attention_norm": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def layer_parts(index: int, parameter: str) -> list[str]:
    """The source's tensors that are joined along their rows to a layer's ``parameter``, such as ``"qkv.weight"``."""
    module, _, kind = parameter.rpartition(".")
    return [f"model.layers.{index}.{part}.{kind}" for part in _PARTS[module]]


def layer_parameters(spec: DecoderSpec) -> list[str]:
    """The names of a `DecoderLayer`'s parameters."""
    with torch.device("meta"):
        return list(DecoderLayer(spec).state_dict())


def layer_state(weights: DecoderWeights, index: int) -> dict[str, Tensor]:
    """The state dict of a `DecoderLayer`, read from a source.

    Raises:
        UnsupportedModel: a tensor is missing.
    """
    return {
        name: torch.from_numpy(np.concatenate([weights.tensor(part) for part in layer_parts(index, name)]))
        for name in layer_parameters(weights.spec)
    }


def _parameter(values: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(values), requires_grad=False)
