"""A decoder of delegates, as the methods of an ExecuTorch program.

Keys and values are written in place, into the caller's cache, and so is attention mass. All sizes that a run decides,
tokens, slots and rows of logits, are dynamic.

Sizes: S new tokens, R rows of logits, C slots, V vocabulary, Hkv KV heads, G query heads a KV head, D channels a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 (registers llama::)
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, OutputKind

from edgepipe.exporters.llm.xnnpack_layers import Embeddings
from edgepipe.runtimes.llm.spec import DecoderSpec


class PlainMethod(nn.Module):
    """Tokens to logits."""

    def __init__(self, embeddings: Embeddings, delegates: Sequence[LoweredBackendModule]) -> None:
        """``delegates``: what is before the first attention, between two each, after the last, and the head."""
        super().__init__()
        self.embeddings = embeddings
        self.before, *self.between, self.after, self.head = delegates
        for index, delegate in enumerate(self.between):
            self.register_module(f"between_{index}", delegate)

    def forward(
        self, tokens: Tensor, logit_rows: Tensor, cos: Tensor, sin: Tensor, used: Tensor, cache: list[Tensor]
    ) -> Tensor:
        """Run ``tokens``, int64 ``[S]``.

        Args:
            tokens: that follow what is in the cache.
            logit_rows: int64 ``[R]``, the tokens whose logits are wanted.
            cos: ``[S, 1, D]``, of each token's true position; pair i in channels i and D / 2 + i.
            sin: likewise.
            used: int64, a scalar: slots in use. The next S are written.
            cache: keys and values of the first layer, of the second, ..., each ``[Hkv, C, 1, D]``.

        Returns:
            Logits ``[R, V]``.
        """
        return self._run(tokens, logit_rows, cos, sin, used, cache, lambda layer, query: None)

    def _run(
        self,
        tokens: Tensor,
        logit_rows: Tensor,
        cos: Tensor,
        sin: Tensor,
        used: Tensor,
        cache: list[Tensor],
        score: Callable[[int, Tensor], None],
    ) -> Tensor:
        start = used.item()
        torch._check(start >= 0)
        torch._check(start < cache[0].shape[1])
        torch._check(start + tokens.shape[0] <= cache[0].shape[1])
        hidden = self.embeddings(tokens)
        query, key, value = self.before(hidden, cos, sin)
        for layer in range(len(cache) // 2):
            keys, values = cache[2 * layer : 2 * layer + 2]
            torch.ops.llama.update_cache(key, keys, start)
            torch.ops.llama.update_cache(value, values, start)
            score(layer, query)
            # A KV head takes the place of a batch: so the cache may have its layout.
            attended = torch.ops.llama.custom_sdpa(query, keys, values, start, None, 0.0, True)
            if layer < len(self.between):
                hidden, query, key, value = self.between[layer](hidden, attended, cos, sin)
        (hidden,) = self.after(hidden, attended)
        (logits,) = self.head(hidden.index_select(0, logit_rows))
        return logits


class ScoredMethod(PlainMethod):
    """Tokens to logits, and the attention that each slot got."""

    def __init__(
        self, embeddings: Embeddings, delegates: Sequence[LoweredBackendModule], scores: LoweredBackendModule
    ) -> None:
        super().__init__(embeddings, delegates)
        self.scores = scores

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        logit_rows: Tensor,
        cos: Tensor,
        sin: Tensor,
        used: Tensor,
        cache: list[Tensor],
        mask: Tensor,
        flat_keys: list[Tensor],
        scores: list[Tensor],
    ) -> Tensor:
        """Run ``tokens``; see `PlainMethod.forward`.

        Args:
            tokens: int64 ``[S]``.
            logit_rows: int64 ``[R]``.
            cos: ``[S, 1, D]``.
            sin: likewise.
            used: int64, a scalar.
            cache: each ``[Hkv, C, 1, D]``.
            mask: ``[S * G, C]``, 0 for slots that a token sees, its own included, a large negative number for others.
            flat_keys: the keys in ``cache`` once more, each ``[Hkv, C, D]``.
            scores: written, a layer each ``[Hkv, S * G, 1, C]``: the softmax rows of all query heads.
        """

        def score(layer: int, query: Tensor) -> None:
            (rows,) = self.scores(query, flat_keys[layer], mask)
            torch.ops.llama.update_cache(rows.unsqueeze(2), scores[layer], 0)

        return self._run(tokens, logit_rows, cos, sin, used, cache, score)


class Examples:
    """Arguments to trace with, by the names of parameters, and which of their sizes are dynamic."""

    def __init__(self, spec: DecoderSpec, widest: int, most_logits: int, slots: int) -> None:
        self.spec = spec
        self._tokens = Dim("tokens", min=1, max=widest)
        self._logits = Dim("logits", min=1, max=most_logits)
        self._slots = Dim("slots", min=2, max=slots)

    def of(self, names: Sequence[str]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The arguments, and their dynamic sizes."""
        pairs = [self._one(name) for name in names]
        return tuple(argument for argument, _ in pairs), tuple(shape for _, shape in pairs)

    def _one(self, name: str) -> tuple[Any, Any]:
        spec = self.spec
        layers, heads, channels = spec.num_layers, spec.num_kv_heads, spec.head_dim
        group = spec.num_heads // heads
        width, slots = 7, 19  # torch.export takes a size of 1 for one that is always so
        if name in ("tokens", "logit_rows"):
            length, size = (width, self._tokens) if name == "tokens" else (3, self._logits)
            return torch.zeros(length, dtype=torch.int64), {0: size}
        if name == "used":
            return torch.tensor(5), None
        if name == "cache":
            return [torch.zeros(heads, slots, 1, channels) for _ in range(2 * layers)], [{1: self._slots}] * 2 * layers
        if name == "hidden":
            return torch.randn(width, spec.hidden_size), {0: self._tokens}
        if name in ("cos", "sin"):
            return torch.randn(width, 1, channels), {0: self._tokens}
        if name in ("query", "attended"):
            return torch.randn(heads, width, group, channels), {1: self._tokens}
        rows = group * self._tokens if group > 1 else self._tokens
        if name == "mask":
            return torch.zeros(group * width, slots), {0: rows, 1: self._slots}
        if name == "scores":
            shape = {1: rows, 3: self._slots}
            return [torch.zeros(heads, group * width, 1, slots) for _ in range(layers)], [shape] * layers
        if name == "flat_keys":
            return [torch.zeros(heads, slots, channels) for _ in range(layers)], [{1: self._slots}] * layers
        assert name == "keys", name
        return torch.zeros(heads, slots, channels), {1: self._slots}


def forget_mutations(program: ExportedProgram) -> None:
    """Let a method write into its caller's memory, and not return that as well: the runtime would put a copy there."""
    signature, node = program.graph_signature, program.graph.output_node()
    kept = [index for index, output in enumerate(signature.output_specs) if output.kind is OutputKind.USER_OUTPUT]
    node.args = (tuple(node.args[0][index] for index in kept),)
    program._graph_signature = ExportGraphSignature(
        signature.input_specs, [signature.output_specs[index] for index in kept]
    )
    program.graph_module.recompile()
