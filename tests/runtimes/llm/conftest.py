"""Tiny exported decoders, and a decoder in plain torch that evicts by the book, to compare ours with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.drafters.model import ModelDrafter
from edgepipe.runtimes.llm.engines.onnx import OnnxDecoder
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.full import Full
from edgepipe.runtimes.llm.kv_policies.policy import Policy
from edgepipe.runtimes.llm.output_vocabulary import OutputVocabulary
from edgepipe.runtimes.llm.sampling import Sampler


@pytest.fixture(scope="session")
def exported(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """``exported(architecture, **changes)`` → (Hugging Face folder, fp32 ONNX component folder, spec)."""
    from edgepipe.exporters.llm.onnx import write_onnx
    from edgepipe.exporters.llm.recipe import DecoderRecipe
    from edgepipe.exporters.sources import open_source

    done: dict[Path, Any] = {}

    def build(architecture: str, **changes: Any) -> Any:
        source = tiny_model(architecture, **changes)
        if source not in done:
            folder = tmp_path_factory.mktemp("component")
            weights = open_source(str(source))
            write_onnx(weights, DecoderRecipe(str(source), precision="fp32", head_precision="fp32"), folder)
            done[source] = (source, folder, weights.spec)
        return done[source]

    return build


@pytest.fixture(scope="session")
def engine(exported: Callable[..., Any]) -> Callable[..., OnnxDecoder]:
    """``engine(architecture, scored=False, **changes)`` → a loaded fp32 decoder."""
    loaded: dict[Any, OnnxDecoder] = {}

    def load(architecture: str, scored: bool = False, **changes: Any) -> OnnxDecoder:
        _, folder, spec = exported(architecture, **changes)
        if (folder, scored) not in loaded:
            name = "model.scored.onnx" if scored else "model.onnx"
            loaded[folder, scored] = OnnxDecoder(folder / "onnx" / name, spec, threads=1, scored=scored)
        return loaded[folder, scored]

    return load


@pytest.fixture(scope="session")
def cached(engine: Callable[..., OnnxDecoder]) -> Callable[..., CachedDecoder]:
    """``cached(architecture, policy=None, chunk=16, **changes)`` → a decoder with an empty cache of its own."""

    def build(architecture: str, policy: Policy | None = None, chunk: int = 16, **changes: Any) -> CachedDecoder:
        policy = policy or Full(512)
        decoder = engine(architecture, policy.needs_scores, **changes)
        cache = KVCache(decoder.spec, policy.budget, max(chunk, 9), scored=policy.needs_scores)
        return CachedDecoder(decoder, cache, policy, chunk)

    return build


@pytest.fixture(scope="session")
def draft_component(
    tiny_model: Callable[..., Path], tiny_draft: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """``draft_component(architecture, tied=True, **changes)`` → (fp32 ONNX component folder, spec, token ids).

    It is ``tiny_draft(architecture, **changes)`` over ``tiny_model(architecture, tied)``.
    """
    from edgepipe.exporters.llm.onnx import write_onnx
    from edgepipe.exporters.llm.recipe import DecoderRecipe
    from edgepipe.exporters.sources import open_draft, open_source

    done: dict[str, Any] = {}

    def build(architecture: str, tied: bool = True, **changes: Any) -> Any:
        key = repr((architecture, tied, sorted(changes.items())))
        if key not in done:
            folder = tmp_path_factory.mktemp("draft_component")
            target = open_source(str(tiny_model(architecture, tied)))
            weights = open_draft(str(tiny_draft(architecture, **changes)), target)
            write_onnx(weights, DecoderRecipe("draft", precision="fp32", head_precision="fp32"), folder)
            done[key] = (folder, weights.spec, weights.output_token_ids)
        return done[key]

    return build


@pytest.fixture(scope="session")
def trimmed_drafter(draft_component: Callable[..., Any]) -> Callable[..., ModelDrafter]:
    """``trimmed_drafter(architecture, sampler, policy=None, tied=True, **changes)`` → drafts with `draft_component`."""
    loaded: dict[Any, OnnxDecoder] = {}

    def build(
        architecture: str, sampler: Sampler, policy: Policy | None = None, tied: bool = True, **changes: Any
    ) -> ModelDrafter:
        folder, spec, ids = draft_component(architecture, tied, **changes)
        policy = policy or Full(512)
        key = (folder, policy.needs_scores)
        if key not in loaded:
            name = "model.scored.onnx" if policy.needs_scores else "model.onnx"
            loaded[key] = OnnxDecoder(folder / "onnx" / name, spec, threads=1, scored=policy.needs_scores)
        cache = KVCache(spec, policy.budget, 16, scored=policy.needs_scores)
        draft = CachedDecoder(loaded[key], cache, policy, 16)
        return ModelDrafter(draft, sampler, spec.vocab_size, OutputVocabulary(ids, spec.vocab_size))

    return build


@pytest.fixture(scope="session")
def torch_decoder(tiny_model: Callable[..., Path]) -> Iterator[Callable[..., TorchDecoder]]:
    """``torch_decoder(architecture, choose, budget)`` → a `TorchDecoder` over the same weights as `cached`'s."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # handing such small products to other threads costs more than they do

    def build(architecture: str, choose: Callable[..., Any], budget: int) -> TorchDecoder:
        from transformers import AutoModelForCausalLM

        return TorchDecoder(AutoModelForCausalLM.from_pretrained(tiny_model(architecture)).eval(), choose, budget)

    yield build
    torch.set_num_threads(threads)


class TorchDecoder:
    """The same rule without any of the product's machinery.

    Keys and values of all tokens ever fed are kept; what is evicted is only masked out. Scores are summed in a
    Python loop over layers and heads. ``choose(scores, positions, next_position)`` names the victim among a head's
    live positions, one at a time.
    """

    def __init__(self, model: Any, choose: Callable[..., int], budget: int) -> None:
        self.model, self.choose, self.budget = model, choose, budget
        config = model.config
        self.layers, self.kv_heads = config.num_hidden_layers, config.num_key_value_heads
        self.group = config.num_attention_heads // config.num_key_value_heads
        self.keys: list[Any] = [None] * self.layers
        self.values: list[Any] = [None] * self.layers
        self.fed = 0
        # Per layer and head: live position -> accumulated attention.
        self.scores = [[{} for _ in range(self.kv_heads)] for _ in range(self.layers)]
        self.victims: list[tuple[int, int, int]] = []

    def feed(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits ``[S, vocab]`` of ``tokens``; then evict down to the budget."""
        import torch
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        with torch.no_grad():
            hidden = self.model.model.embed_tokens(torch.tensor([list(tokens)]))
            positions = torch.arange(self.fed, self.fed + len(tokens))[None]
            cos, sin = self.model.model.rotary_emb(hidden, positions)
            for index, layer in enumerate(self.model.model.layers):
                attention = layer.self_attn
                normed = layer.input_layernorm(hidden)
                shape = (1, len(tokens), -1, attention.head_dim)
                q = attention.q_proj(normed).view(shape)
                k = attention.k_proj(normed).view(shape)
                v = attention.v_proj(normed).view(shape).transpose(1, 2)
                if hasattr(attention, "q_norm"):
                    q, k = attention.q_norm(q), attention.k_norm(k)
                q, k = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
                old_k, old_v = self.keys[index], self.values[index]
                self.keys[index] = k = k if old_k is None else torch.cat([old_k, k], 2)
                self.values[index] = v = v if old_v is None else torch.cat([old_v, v], 2)
                hidden = hidden + attention.o_proj(self._attend(index, q, k, v))
                hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            logits = self.model.lm_head(self.model.model.norm(hidden))[0]
        self.fed += len(tokens)
        self._evict()
        return logits.numpy()

    def _attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        import torch

        count, total = q.shape[2], k.shape[2]
        outputs = []
        for head in range(q.shape[1]):
            scores = self.scores[layer][head // self.group]
            for position in range(total - count, total):
                scores.setdefault(position, 0.0)
            mask = torch.full((count, total), -torch.inf)
            for row in range(count):
                mask[row, [position for position in scores if position <= total - count + row]] = 0.0
            kv = head // self.group
            probabilities = torch.softmax(q[0, head] @ k[0, kv].T / q.shape[3] ** 0.5 + mask, dim=-1)
            for position in scores:
                scores[position] += float(probabilities[:, position].sum())
            outputs.append(probabilities @ v[0, kv])
        return torch.stack(outputs, 1).reshape(1, count, -1)

    def _evict(self) -> None:
        for layer in range(self.layers):
            for head in range(self.kv_heads):
                scores = self.scores[layer][head]
                while len(scores) > self.budget:
                    victim = self.choose(scores, self.fed)
                    del scores[victim]
                    self.victims.append((layer, head, victim))


def h2o_victim(recent: int, normalise: bool) -> Callable[[dict[int, float], int], int]:
    """The rule of H2O (Zhang et al. 2023, algorithm 1): least attention outside the recent window."""

    def choose(scores: dict[int, float], fed: int) -> int:
        old = [position for position in scores if position < fed - recent]
        return min(old, key=lambda position: scores[position] / (fed - position if normalise else 1))

    return choose


def window_victim(sinks: int) -> Callable[[dict[int, float], int], int]:
    """The rule of StreamingLLM: the oldest that is not a sink."""
    return lambda scores, fed: min(position for position in scores if position >= sinks)


@pytest.fixture(scope="session")
def victim_rules() -> dict[str, Callable[..., Any]]:
    return {"h2o": h2o_victim, "window": window_victim}
