"""The decoder's graph: pre-norm layers of grouped-query attention and a gated MLP (Llama, Mistral, Qwen2, Qwen3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from edgepipe.exporters.llm.onnx_graph import MICROSOFT, GraphBuilder
from edgepipe.exporters.llm.onnx_projection import Projection
from edgepipe.exporters.llm.onnx_weights import StoredTensor
from edgepipe.runtimes.llm.spec import DecoderSpec

END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class StoredLayer:
    """One layer's parameters in the data file."""

    input_norm: StoredTensor
    qkv: Projection
    q_norm: StoredTensor | None
    k_norm: StoredTensor | None
    o: Projection
    post_attention_norm: StoredTensor
    gate_up: Projection
    down: Projection


@dataclass(frozen=True)
class StoredFusion:
    """How a draft of kind head joins embeddings and features (`edgepipe.exporters.llm.draft_folder`)."""

    embedding_norm: StoredTensor
    feature_norm: StoredTensor
    fc: Projection


@dataclass(frozen=True)
class StoredDecoder:
    """All parameters in the data file. ``head`` is ``embeddings`` itself when they are tied.

    ``fusion`` is that of a decoder that reads features beside tokens.
    """

    embeddings: Projection
    layers: tuple[StoredLayer, ...]
    norm: StoredTensor
    head: Projection
    cos_cache: StoredTensor
    sin_cache: StoredTensor
    fusion: StoredFusion | None = None


class DecoderGraph:
    """Builds the graph over stored parameters.

    With ``scored`` it has one more output, ``attention_mass`` ``[L, Hkv, S, T]``: the post-softmax attention of each
    new token to each slot, summed over the query heads of a KV group (batch 1 only). Asking attention for its
    probabilities makes the engine compute them in full, so the graph without is the one that runs flash attention.

    With ``gives_features`` it has the output ``hidden_states`` ``[batch, S, hidden_size]``, what the last layer gives
    to the final norm. A decoder with a `StoredFusion` has it, too, and the input ``features`` of the same shape.

    Limits of the engine's GroupQueryAttention: with a past, more than one new token needs batch 1; without a past, only
    the first of ``position_ids`` is read, and the others follow it one by one.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        parameters: StoredDecoder,
        data_location: str,
        scored: bool,
        gives_features: bool = False,
    ) -> None:
        self.spec = spec
        self.parameters = parameters
        self.scored = scored
        self.gives_features = gives_features or parameters.fusion is not None
        self.graph = GraphBuilder("decoder", data_location)

    def build(self, metadata: dict[str, str]) -> ModelProto:
        """The whole model."""
        graph, spec, parameters = self.graph, self.spec, self.parameters
        ids = graph.input("input_ids", np.int64, ("batch", "new_tokens"))
        graph.input("attention_mask", np.int64, ("batch", "total_tokens"))
        graph.input("position_ids", np.int64, ("batch", "new_tokens"))
        feature_rows = ("batch", "new_tokens", spec.hidden_size)
        if parameters.fusion:
            graph.input("features", np.float32, feature_rows)
        cache = ("batch", spec.num_kv_heads, "capacity", spec.head_dim)
        for index in range(spec.num_layers):
            for part in ("key", "value"):
                graph.input(f"past_key_values.{index}.{part}", np.float32, cache)
        self._overridable_inputs()
        graph.output("logits", np.float32, ("batch", "logit_rows", spec.num_logits))
        for index in range(spec.num_layers):
            for part in ("key", "value"):
                graph.output(f"present.{index}.{part}", np.float32, cache)

        if self.gives_features:
            graph.output("hidden_states", np.float32, feature_rows)

        self._lengths()
        hidden = parameters.embeddings.embedding(graph, "model.embed_tokens", ids)
        if parameters.fusion:
            hidden = self._fuse(hidden, parameters.fusion)
        residual, branch = hidden, ""
        masses = []
        for index, layer in enumerate(parameters.layers):
            prefix = f"model.layers.{index}"
            normed, residual = self._add_norm(residual, branch, layer.input_norm, f"{prefix}.input_layernorm")
            attended = self._attention(index, layer, normed)
            if self.scored:
                masses.append(self._group_mass(index))
            branch = layer.o.linear(graph, f"{prefix}.self_attn.o_proj", attended)
            name = f"{prefix}.post_attention_layernorm"
            normed, residual = self._add_norm(residual, branch, layer.post_attention_norm, name)
            branch = self._mlp(layer, normed, f"{prefix}.mlp")
        total = "hidden_states" if self.gives_features else ""
        normed, _ = self._add_norm(residual, branch, parameters.norm, "model.norm", total)
        last_axis = graph.constant("axis_1", [1])
        rows = graph.node("Slice", [normed, "logits_from", graph.constant("end", [END]), last_axis], "logit_rows")
        parameters.head.linear(graph, "logits", rows)
        if self.scored:
            graph.output(
                "attention_mass", np.float32, (spec.num_layers, spec.num_kv_heads, "new_tokens", "total_tokens")
            )
            graph.node("Concat", masses, "attention_mass", axis=0)
        return graph.model(metadata)

    def _overridable_inputs(self) -> None:
        """Inputs with a default: an initializer of the same name."""
        graph, half = self.graph, self.spec.head_dim // 2
        graph.input("logits_from", np.int64, (1,))
        graph.constant("logits_from", [0])
        for name, table in (("cos_cache", self.parameters.cos_cache), ("sin_cache", self.parameters.sin_cache)):
            graph.input(name, np.float32, ("positions", half))
            graph.stored(name, table)

    def _lengths(self) -> None:
        """``seqlens_k`` int32 ``[batch]`` (live slots less one), ``total_tokens`` int32 scalar: once for all layers."""
        graph = self.graph
        live = graph.node("ReduceSum", ["attention_mask", graph.constant("axis_1", [1])], "live_slots", keepdims=0)
        last = graph.node("Sub", [live, graph.constant("one", 1)], "last_slot")
        graph.node("Cast", [last], "seqlens_k", to=6)
        width = graph.node("Shape", ["attention_mask"], "mask_width", start=1, end=2)
        graph.node("Cast", [graph.node("Squeeze", [width], "mask_length")], "total_tokens", to=6)
        if self.scored:
            new = graph.node("Shape", ["input_ids"], "ids_width", start=1, end=2)
            spec = self.spec
            heads = graph.constant("grouped_heads", [1, spec.num_kv_heads, spec.num_heads // spec.num_kv_heads])
            graph.node("Concat", [heads, new, width], "grouped_shape", axis=0)

    def _fuse(self, embeddings: str, fusion: StoredFusion) -> str:
        graph = self.graph
        embeddings, _ = self._add_norm(embeddings, "", fusion.embedding_norm, "model.embedding_norm")
        features, _ = self._add_norm("features", "", fusion.feature_norm, "model.feature_norm")
        both = graph.node("Concat", [embeddings, features], "model.embeddings_and_features", axis=-1)
        return fusion.fc.linear(graph, "model.fc", both)

    def _add_norm(
        self, residual: str, branch: str, weight: StoredTensor, name: str, total: str = ""
    ) -> tuple[str, str]:
        """RMS norm of ``residual + branch``; returns it and the sum, which is called ``total`` if that is given.

        The embeddings (``branch`` "") have nothing to be added to: they are added to themselves, and with an epsilon
        four times as large x and 2x have the same norm exactly.
        """
        graph = self.graph
        scale = graph.stored(f"{name}.weight", weight)
        epsilon = self.spec.rms_norm_eps
        outputs = [name, "", "", total or f"{name}.residual"]
        if not branch:
            branch, epsilon, outputs = residual, 4 * epsilon, [name]
        graph.node(
            "SkipSimplifiedLayerNormalization",
            [residual, branch, scale],
            name,
            outputs,
            domain=MICROSOFT,
            epsilon=epsilon,
        )
        return name, outputs[-1] if len(outputs) > 1 else residual

    def _attention(self, index: int, layer: StoredLayer, normed: str) -> str:
        graph, spec = self.graph, self.spec
        prefix = f"model.layers.{index}.self_attn"
        query, key, value = layer.qkv.linear(graph, f"{prefix}.qkv_proj", normed), "", ""
        if layer.q_norm and layer.k_norm:
            query, key, value = self._split_qkv(query, prefix)
            query = self._head_norm(query, layer.q_norm, f"{prefix}.q_norm")
            key = self._head_norm(key, layer.k_norm, f"{prefix}.k_norm")
        past = [f"past_key_values.{index}.{part}" for part in ("key", "value")]
        outputs = [f"{prefix}.attended", f"present.{index}.key", f"present.{index}.value"]
        scores = {}
        if self.scored:
            outputs.append(f"{prefix}.probabilities")
            scores["qk_output"] = 2  # after the softmax
        return graph.node(
            "GroupQueryAttention",
            [query, key, value, *past, "seqlens_k", "total_tokens", "cos_cache", "sin_cache", "position_ids"],
            f"{prefix}.attended",
            outputs,
            domain=MICROSOFT,
            num_heads=spec.num_heads,
            kv_num_heads=spec.num_kv_heads,
            scale=1 / math.sqrt(spec.head_dim),
            do_rotary=1,
            **scores,
        )

    def _split_qkv(self, packed: str, prefix: str) -> list[str]:
        spec = self.spec
        rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        sizes = self.graph.constant("qkv_sizes", [rows, kv_rows, kv_rows])
        outputs = [f"{prefix}.{part}" for part in ("query", "key", "value")]
        self.graph.node("Split", [packed, sizes], f"{prefix}.split", outputs, axis=-1)
        return outputs

    def _head_norm(self, heads: str, weight: StoredTensor, name: str) -> str:
        """RMS norm of each head apart: ``[batch, S, heads * D]`` to the same shape."""
        graph, head_dim = self.graph, self.spec.head_dim
        apart = graph.constant("heads_apart", [0, -1, head_dim])
        rows = graph.node("Reshape", [heads, apart], f"{name}.heads")
        normed, _ = self._add_norm(rows, "", weight, name)
        width = self.spec.num_heads if name.endswith("q_norm") else self.spec.num_kv_heads
        together = graph.constant(f"heads_together_{width}", [0, -1, width * head_dim])
        return graph.node("Reshape", [normed, together], f"{name}.together")

    def _group_mass(self, index: int) -> str:
        """Probabilities ``[1, H, S, T]`` to ``[1, Hkv, S, T]``, summed over the query heads of a group."""
        graph, prefix = self.graph, f"model.layers.{index}.self_attn"
        if self.spec.num_heads == self.spec.num_kv_heads:
            return f"{prefix}.probabilities"
        grouped = graph.node("Reshape", [f"{prefix}.probabilities", "grouped_shape"], f"{prefix}.grouped")
        return graph.node("ReduceSum", [grouped, graph.constant("axis_2", [2])], f"{prefix}.mass", keepdims=0)

    def _mlp(self, layer: StoredLayer, normed: str, prefix: str) -> str:
        """``down(silu(gate) * up)``; QuickGelu with alpha 1 is SiLU, in one pass."""
        graph = self.graph
        both = layer.gate_up.linear(graph, f"{prefix}.gate_up_proj", normed)
        gate, up = f"{prefix}.gate", f"{prefix}.up"
        graph.node("Split", [both], f"{prefix}.split", [gate, up], axis=-1, num_outputs=2)
        active = graph.node("QuickGelu", [gate], f"{prefix}.silu", domain=MICROSOFT, alpha=1.0)
        product = graph.node("Mul", [active, up], f"{prefix}.product")
        return layer.down.linear(graph, f"{prefix}.down_proj", product)
