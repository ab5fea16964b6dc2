"""The parts of a decoder between two attentions, in the operators that XNNPACK has for any number of tokens.

`edgepipe.exporters.llm.executorch` lowers each to one delegate; attention is an operator of ExecuTorch's own. XNNPACK
slices nothing whose size is dynamic, so projections are not fused, and RoPE turns channels with a constant matrix.

Sizes: S tokens, H query heads, Hkv KV heads, D channels a head, G = H / Hkv.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepipe.exporters.llm.xnnpack_layers import Matrix, Norm, quantized_inputs
from edgepipe.exporters.llm.xnnpack_weights import MatrixPrecision, Precisions
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.spec import DecoderSpec


class Part(nn.Module):
    """A part of a decoder that becomes one delegate."""

    def load(self, weights: DecoderWeights) -> None:
        """Read all of its matrices and norms from a source.

        Raises:
            UnsupportedModel: one is missing, or holds NaN or infinity.
        """
        for module in self.modules():
            if isinstance(module, (Matrix, Norm)):
                module.load(weights)

    def precisions(self) -> tuple[MatrixPrecision, ...]:
        """Of all matrices. Two parts of a kind and of the same precisions differ in their weights only."""
        return tuple(module.precision for module in self.modules() if isinstance(module, Matrix))

    # Takes what ``forward`` takes, and gives tensors of the same shapes without computing anything.
    outline: Callable[..., tuple[Tensor, ...]]


class BeforeAttention(Part):
    """The first part of a layer: its norm, the projections, and RoPE."""

    turn: Tensor

    def __init__(self, spec: DecoderSpec, layer: int, precisions: Precisions) -> None:
        super().__init__()
        self.spec = spec
        size, channels, epsilon = spec.hidden_size, spec.head_dim, spec.rms_norm_eps
        prefix = f"model.layers.{layer}"
        attention = f"{prefix}.self_attn"
        self.norm = Norm(f"{prefix}.input_layernorm", size, epsilon)
        rows = spec.num_kv_heads * channels
        self.q = Matrix("attention", f"{attention}.q_proj", spec.num_heads * channels, size, precisions, spec.qkv_bias)
        self.k = Matrix("attention", f"{attention}.k_proj", rows, size, precisions, spec.qkv_bias)
        self.v = Matrix("attention", f"{attention}.v_proj", rows, size, precisions, spec.qkv_bias)
        if spec.qk_norm:
            self.q_norm = Norm(f"{attention}.q_norm", channels, epsilon)
            self.k_norm = Norm(f"{attention}.k_norm", channels, epsilon)
        # A product with it makes [-x2, x1] of [x1, x2].
        turn = torch.eye(channels).roll(channels // 2, 0)
        turn[: channels // 2] *= -1
        self.register_buffer("turn", turn)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """Queries ``[Hkv, S, G, D]`` and keys ``[Hkv, S, 1, D]``, rotated, and values likewise, of ``hidden``.

        ``hidden`` is ``[S, hidden_size]``; ``cos`` and ``sin`` are ``[S, 1, D]``, those of pair i in channels i and
        D / 2 + i.
        """
        spec = self.spec
        normed = quantized_inputs(self.norm(hidden), self.q, self.k, self.v)
        query = self.q(normed).view(-1, spec.num_heads, spec.head_dim)
        key = self.k(normed).view(-1, spec.num_kv_heads, spec.head_dim)
        value = self.v(normed).view(-1, spec.num_kv_heads, spec.head_dim)
        if spec.qk_norm:
            query, key = _by_row(self.q_norm, query), _by_row(self.k_norm, key)
        query = query * cos + _by_row(self._turned, query) * sin
        key = key * cos + _by_row(self._turned, key) * sin
        return self._grouped(query), self._grouped(key), self._grouped(value)

    def outline(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        spec, width = self.spec, hidden.shape[0]
        group = spec.num_heads // spec.num_kv_heads
        counts = (group, 1, 1)
        return tuple(hidden.new_zeros(spec.num_kv_heads, width, count, spec.head_dim) for count in counts)

    def _turned(self, rows: Tensor) -> Tensor:
        return functional.linear(rows, self.turn)

    def _grouped(self, heads: Tensor) -> Tensor:
        """``[S, Hkv * n, D]`` as ``[Hkv, S, n, D]``."""
        count, channels = heads.shape[1:]
        kv_heads = self.spec.num_kv_heads
        return heads.view(-1, kv_heads, count // kv_heads, channels).permute(1, 0, 2, 3)


def _by_row(function: Callable[[Tensor], Tensor], heads: Tensor) -> Tensor:
    """``function`` of the rows of all heads: XNNPACK's products take matrices."""
    return function(heads.view(-1, heads.shape[2])).view(-1, heads.shape[1], heads.shape[2])


class AfterAttention(Part):
    """The rest of a layer: the output projection, and the gated MLP."""

    def __init__(self, spec: DecoderSpec, layer: int, precisions: Precisions) -> None:
        super().__init__()
        size, inner, self.rows = spec.hidden_size, spec.intermediate_size, spec.num_heads * spec.head_dim
        prefix = f"model.layers.{layer}"
        self.o = Matrix("attention", f"{prefix}.self_attn.o_proj", size, self.rows, precisions, spec.o_bias)
        self.norm = Norm(f"{prefix}.post_attention_layernorm", size, spec.rms_norm_eps)
        self.gate = Matrix("mlp", f"{prefix}.mlp.gate_proj", inner, size, precisions, spec.mlp_bias)
        self.up = Matrix("mlp", f"{prefix}.mlp.up_proj", inner, size, precisions, spec.mlp_bias)
        self.down = Matrix("mlp", f"{prefix}.mlp.down_proj", size, inner, precisions, spec.mlp_bias)

    def forward(self, hidden: Tensor, attended: Tensor) -> tuple[Tensor, ...]:
        """The layer's output ``[S, hidden_size]``, alone; ``attended`` is ``[Hkv, S, G, D]``."""
        rows = attended.permute(1, 0, 2, 3).contiguous().view(-1, self.rows)
        hidden = hidden + self.o(quantized_inputs(rows, self.o))
        normed = quantized_inputs(self.norm(hidden), self.gate, self.up)
        gate = self.gate(normed)
        inner = gate * torch.sigmoid(gate) * self.up(normed)
        return (hidden + self.down(quantized_inputs(inner, self.down)),)

    def outline(self, hidden: Tensor, attended: Tensor) -> tuple[Tensor, ...]:
        return (torch.zeros_like(hidden),)


class BetweenAttentions(Part):
    """The rest of a layer and the beginning of the next: one delegate where the two would be two calls."""

    def __init__(self, spec: DecoderSpec, layer: int, precisions: Precisions) -> None:
        super().__init__()
        self.after = AfterAttention(spec, layer, precisions)
        self.before = BeforeAttention(spec, layer + 1, precisions)

    def forward(self, hidden: Tensor, attended: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """``hidden`` for the next layer, then what `BeforeAttention` gives."""
        (hidden,) = self.after(hidden, attended)
        return hidden, *self.before(hidden, cos, sin)

    def outline(self, hidden: Tensor, attended: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        return torch.zeros_like(hidden), *self.before.outline(hidden, cos, sin)


class Head(Part):
    """The final norm and the projection to logits."""

    def __init__(self, spec: DecoderSpec, precisions: Precisions) -> None:
        super().__init__()
        self.norm = Norm("model.norm", spec.hidden_size, spec.rms_norm_eps)
        self.lm_head = Matrix("head", "lm_head", spec.num_logits, spec.hidden_size, precisions)

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Logits ``[R, num_logits]``, alone, of ``hidden`` ``[R, hidden_size]``."""
        return (self.lm_head(quantized_inputs(self.norm(hidden), self.lm_head)),)

    def outline(self, hidden: Tensor) -> tuple[Tensor, ...]:
        codes = self.lm_head.weight if self.lm_head.precision.bits == 32 else self.lm_head.codes
        return (hidden.new_zeros(hidden.shape[0], codes.shape[0]),)


class AttentionWeights(Part):
    """The softmax rows of attention over a cache: ExecuTorch's operator for attention does not give them."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.kv_heads, self.channels = spec.num_kv_heads, spec.head_dim
        self.scale = 1 / math.sqrt(spec.head_dim)

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """``[Hkv, S * G, C]``, alone.

        ``query`` is ``[Hkv, S, G, D]``, ``keys`` ``[Hkv, C, D]``, and ``mask``, added to the scores, ``[S * G, C]``.
        Keys are the left factor: XNNPACK copies the right one before it multiplies.
        """
        rows = query.view(self.kv_heads, -1, self.channels) * self.scale
        scores = torch.bmm(keys, rows.permute(0, 2, 1)).permute(0, 2, 1)
        return (torch.softmax(scores + mask, dim=-1),)

    def outline(self, query: Tensor, keys: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return (mask.new_zeros(self.kv_heads, mask.shape[0], mask.shape[1]),)
