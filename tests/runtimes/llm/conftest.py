"""Tiny exported decoders, and a decoder in plain torch that evicts by the book, to compare ours with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.lazy import load
from edgepipe.runtimes.llm.decoder import CachedDecoder, Decoder
from edgepipe.runtimes.llm.drafters.model import ModelDrafter
from edgepipe.runtimes.llm.engines import ENGINES
from edgepipe.runtimes.llm.gamma import Choice
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.full import Full
from edgepipe.runtimes.llm.kv_policies.policy import Policy
from edgepipe.runtimes.llm.output_vocabulary import OutputVocabulary
from edgepipe.runtimes.llm.sampling import Sampler

# Tests guess 8 tokens a round at most.
WIDTHS, CHUNK = (1, 5, 9), 16


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of `every_engine` runs in all of them, others in onnx."""
    if "engine_name" in metafunc.fixturenames:
        names = list(ENGINES) if metafunc.definition.get_closest_marker("every_engine") else ["onnx"]
        metafunc.parametrize("engine_name", names, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Other formats than onnx take long to export."""
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if parameters.get("engine_name", "onnx") != "onnx":
            item.add_marker(pytest.mark.slow)


class Component:
    """A decoder in float32 in one engine's format."""

    def __init__(self, engine_name: str, weights: Any, folder: Path) -> None:
        from edgepipe.exporters.llm.recipe import DecoderRecipe
        from edgepipe.exporters.llm.static_shape import StaticShape
        from edgepipe.pipeline.export_decoder import write_format

        recipe = DecoderRecipe("tiny", precision="fp32", head_precision="fp32")
        written = write_format(engine_name, weights, recipe, StaticShape(WIDTHS, CHUNK), folder)
        self.engine_name, self.folder, self.paths, self.spec = engine_name, folder, written.paths, weights.spec
        self._loaded: dict[bool, Decoder] = {}

    def load(self, scored: bool = False) -> Decoder:
        """In its engine, with attention mass or without."""
        if scored not in self._loaded:
            path = self.folder / self.paths["scored" if scored else "plain"]
            decoder: Decoder = load(ENGINES[self.engine_name])(path, self.spec, threads=1, scored=scored)
            self._loaded[scored] = decoder
        return self._loaded[scored]

    def cached(self, policy: Policy | None, chunk: int) -> CachedDecoder:
        """With an empty cache of its own."""
        policy = policy or Full(512)
        decoder = self.load(policy.needs_scores)
        widest = max(chunk, WIDTHS[-1])
        cache = KVCache(self.spec, policy.budget, widest, scored=policy.needs_scores)
        return CachedDecoder(decoder, cache, policy, chunk)


@pytest.fixture(scope="session")
def exported(
    engine_name: str, tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Component]:
    """``exported(architecture, **changes)`` → a `Component` for the engine."""
    from edgepipe.exporters.sources import open_source

    done: dict[Path, Component] = {}

    def build(architecture: str, **changes: Any) -> Component:
        source = tiny_model(architecture, **changes)
        if source not in done:
            done[source] = Component(engine_name, open_source(str(source)), tmp_path_factory.mktemp("component"))
        return done[source]

    return build


@pytest.fixture(scope="session")
def cached(exported: Callable[..., Component]) -> Callable[..., CachedDecoder]:
    """``cached(architecture, policy=None, chunk=16, **changes)`` → a decoder with an empty cache of its own."""

    def build(architecture: str, policy: Policy | None = None, chunk: int = CHUNK, **changes: Any) -> CachedDecoder:
        return exported(architecture, **changes).cached(policy, chunk)

    return build


@pytest.fixture(scope="session")
def trimmed_drafter(
    engine_name: str,
    tiny_model: Callable[..., Path],
    tiny_draft: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., ModelDrafter]:
    """``trimmed_drafter(architecture, sampler, policy=None, tied=True, **changes)`` → drafts with a trimmed head.

    It is ``tiny_draft(architecture, **changes)`` over ``tiny_model(architecture, tied)``.
    """
    from edgepipe.exporters.sources import open_draft, open_source

    done: dict[str, tuple[Component, Any]] = {}

    def build(
        architecture: str, sampler: Sampler, policy: Policy | None = None, tied: bool = True, **changes: Any
    ) -> ModelDrafter:
        key = repr((architecture, tied, sorted(changes.items())))
        if key not in done:
            target = open_source(str(tiny_model(architecture, tied)))
            weights = open_draft(str(tiny_draft(architecture, **changes)), target)
            component = Component(engine_name, weights, tmp_path_factory.mktemp("draft_component"))
            done[key] = component, weights.output_token_ids
        component, ids = done[key]
        vocabulary = OutputVocabulary(ids, component.spec.vocab_size)
        return ModelDrafter(component.cached(policy, CHUNK), sampler, component.spec.vocab_size, vocabulary)

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

    def feed(self, tokens: Sequence[int], evict: bool = True) -> np.ndarray:
        """Logits ``[S, vocab]`` of ``tokens``; then, perhaps, evict down to the budget."""
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
        if evict:
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


class RandomGamma:
    """Another source and another number of guesses each round, none now and then."""

    resting = False

    def __init__(self, most: int, seed: int) -> None:
        self.most = most
        self.random = np.random.default_rng(seed)

    def choose(self, sources: Any, limit: int) -> Choice:
        count = int(self.random.integers(min(self.most, limit) + 1))
        if not sources or not count:
            return Choice(watched=tuple(sources))
        return Choice(sources[self.random.integers(len(sources))], count)

    def observe_guesses(self, source: Any, checked: int, accepted: int) -> None:
        pass

    def observe_round(self, choice: Choice, guesses: int, tokens: int, draft_ns: int, other_ns: int) -> None:
        assert guesses <= choice.count <= self.most
        assert other_ns > 0


@pytest.fixture(scope="session")
def random_gamma() -> Callable[..., RandomGamma]:
    """``random_gamma(most, seed)``"""
    return RandomGamma
