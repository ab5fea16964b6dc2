"""A head that reads the target's features (EAGLE): exact whatever it guesses, and right once it is trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from edgepipe.errors import EdgepipeWarning, EngineError
from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.drafters.drafter import Draft
from edgepipe.runtimes.llm.drafters.head import HeadDrafter
from edgepipe.runtimes.llm.engines.onnx import OnnxDecoder
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.full import Full
from edgepipe.runtimes.llm.kv_policies.h2o import H2O
from edgepipe.runtimes.llm.kv_policies.policy import Policy
from edgepipe.runtimes.llm.kv_policies.window import Window
from edgepipe.runtimes.llm.output_vocabulary import OutputVocabulary
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder

torch = pytest.importorskip("torch")

GREEDY = Sampler(SamplingParams())


class Pair:
    """A target that gives features and a head that reads them, both in float32."""

    def __init__(self, target: Path, draft: Path, folder: Path) -> None:
        from edgepipe.exporters.llm.onnx import write_onnx
        from edgepipe.exporters.llm.recipe import DecoderRecipe
        from edgepipe.exporters.sources import open_draft, open_source

        recipe = DecoderRecipe("tiny", precision="fp32", head_precision="fp32")
        weights = {"target": open_source(str(target))}
        weights["head"] = open_draft(str(draft), weights["target"])
        for name, each in weights.items():
            write_onnx(each, recipe, folder / name, gives_features=name == "target")
        self.folder = folder
        self.specs = {name: each.spec for name, each in weights.items()}
        self.ids = weights["head"].output_token_ids
        self._engines: dict[Any, OnnxDecoder] = {}

    def cached(self, name: str, policy: Policy | None = None, chunk: int = 16) -> CachedDecoder:
        policy, spec = policy or Full(512), self.specs[name]
        key = (name, policy.needs_scores)
        if key not in self._engines:
            graph = "model.scored.onnx" if policy.needs_scores else "model.onnx"
            model = self.folder / name / "onnx" / graph
            self._engines[key] = OnnxDecoder(model, spec, threads=1, scored=policy.needs_scores)
        cache = KVCache(spec, policy.budget, max(chunk, 9), scored=policy.needs_scores)
        return CachedDecoder(self._engines[key], cache, policy, chunk)

    def drafter(
        self, target: CachedDecoder, sampler: Sampler = GREEDY, policy: Policy | None = None, chunk: int = 16
    ) -> HeadDrafter:
        vocabulary = OutputVocabulary(self.ids, self.specs["head"].vocab_size)
        return HeadDrafter(self.cached("head", policy, chunk), target, sampler, vocabulary)


@pytest.fixture(scope="session")
def untrained(tiny_model: Any, tiny_draft: Any, tmp_path_factory: Any) -> Callable[[str], Pair]:
    pairs: dict[str, Pair] = {}

    def build(architecture: str) -> Pair:
        if architecture not in pairs:
            draft = tiny_draft(architecture, kind="head")
            pairs[architecture] = Pair(tiny_model(architecture), draft, tmp_path_factory.mktemp("pair"))
        return pairs[architecture]

    return build


PROMPT = [5, 17, 42, 8]


@pytest.fixture(scope="session")
def trained(tiny_model: Any, tmp_path_factory: Any) -> Iterator[Pair]:
    """A head that has learnt, by the formulas of the draft's folder, what a tiny Llama says after `PROMPT`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from edgepipe.exporters.llm.draft_folder import write_draft
    from edgepipe.exporters.sources.draft_head import HeadModel

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # handing such small products to other threads costs more than they do
    source, draft = tiny_model("llama"), tmp_path_factory.mktemp("trained")
    target = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    seen: list[Any] = []
    target.model.norm.register_forward_pre_hook(lambda norm, rows: seen.append(rows[0].detach()))
    with torch.no_grad():
        text = target.generate(torch.tensor([PROMPT]), max_new_tokens=60, do_sample=False, eos_token_id=None)
        seen.clear()
        target(text)
    features = seen[0]
    ids = torch.unique(torch.cat([text[0], torch.arange(100)]))
    config = AutoConfig.from_pretrained(source, num_hidden_layers=1, tie_word_embeddings=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = HeadModel(config, len(ids))
    shared = [head.model.embed_tokens, head.model.norm, head.lm_head]
    rows = [target.model.embed_tokens.weight, target.model.norm.weight, target.lm_head.weight[ids]]
    for module, weight in zip(shared, rows, strict=True):
        module.weight = torch.nn.Parameter(weight.detach().clone(), requires_grad=False)
    head.model.norm.register_forward_pre_hook(lambda norm, given: seen.append(given[0]))
    learning = [each for each in head.parameters() if each.requires_grad]
    optimizer = torch.optim.Adam(learning, lr=3e-3)
    answers = torch.searchsorted(ids, text[0, 2:])
    scale = features.pow(2).mean()
    for _ in range(150):
        given, loss = features[:, :-1], torch.zeros(())
        for _ in range(2):  # once from the target's features, once from the head's own
            seen.clear()
            logits = head.lm_head(head(text[:, 1:], given, use_cache=False).last_hidden_state)[0, :-1]
            loss = loss + torch.nn.functional.cross_entropy(logits, answers)
            loss = loss + (seen[0][:, :-1] - features[:, 1:-1]).pow(2).mean() / scale
            given = torch.cat([features[:, :1], seen[0][:, :-1]], 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fields = json.loads((source / "config.json").read_text())
    fields |= {"num_hidden_layers": 1, "output_vocab_size": len(ids), "edgepipe": {"kind": "head", "target": "tiny"}}
    own = {name: each.detach().numpy() for name, each in head.named_parameters() if each.requires_grad}
    write_draft(draft, fields, {**own, "output_token_ids": ids.numpy()})
    yield Pair(source, draft, tmp_path_factory.mktemp("pair"))
    torch.set_num_threads(threads)


def decode(
    decoder: SpeculativeDecoder, prompt: Sequence[int], count: int, limits: list[int] | None = None
) -> list[Any]:
    """All rounds; each adds at most as many tokens as the next of ``limits`` says, and guesses one less."""
    rounds, limit = [decoder.start(prompt)], cycle(limits or [count])
    while (left := len(prompt) + count - len(decoder.text)) > 0:
        rounds.append(decoder.step(min(left, next(limit))))
    return rounds


def plain(target: CachedDecoder, prompt: Sequence[int], count: int) -> list[int]:
    decoder = SpeculativeDecoder(target, GREEDY)
    decode(decoder, prompt, count)
    return decoder.text


def committed_rows(pair: Pair, text: Sequence[int], rows: int) -> np.ndarray:
    """Keys and values of the head's first rows, computed anew from the target's features of ``text``."""
    target, head = pair.cached("target"), pair.cached("head", chunk=512)
    target.extend(text)
    head.extend(text[1 : rows + 1], features=target.decoder.features[:rows])
    result: np.ndarray = head.cache.rows[:, :, :, :rows]
    return result


def test_a_trained_head_guesses_right(trained: Pair) -> None:
    """Features, embeddings and positions meet on the device as they did in training; its own features serve, too."""
    target = trained.cached("target")
    decoder = SpeculativeDecoder(target, GREEDY, trained.drafter(target), 4)
    rounds = decode(decoder, PROMPT, 58)
    assert decoder.text == plain(trained.cached("target"), PROMPT, 58)
    assert len(set(decoder.text)) > 10
    assert sum(entry.accepted for entry in rounds) >= 0.6 * sum(entry.drafted for entry in rounds)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.lists(st.integers(0, 299), min_size=1, max_size=40),
    gamma=st.integers(1, 8),
    limits=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    policy=st.sampled_from([None, "window", "h2o"]),
    chunk=st.sampled_from([1, 5, 16]),
)
def test_greedy_text_equals_plain_greedy_text(
    untrained: Callable[[str], Pair],
    architecture: str,
    prompt: list[int],
    gamma: int,
    limits: list[int],
    policy: str | None,
    chunk: int,
) -> None:
    pair = untrained(architecture)
    target = pair.cached("target", chunk=chunk)
    kept = Window(24) if policy == "window" else H2O(24) if policy == "h2o" else None
    decoder = SpeculativeDecoder(target, GREEDY, pair.drafter(target, policy=kept, chunk=chunk), gamma)
    decode(decoder, prompt, 40, limits)
    assert decoder.text == plain(pair.cached("target"), prompt, 40)


@pytest.mark.parametrize("gamma", [1, 4])
@pytest.mark.parametrize("policy", ["h2o", "window"])
def test_an_evicting_target_is_told_only_of_committed_tokens(trained: Pair, policy: str, gamma: int) -> None:
    """The same as one that is fed the tokens of each round and nothing else."""

    def evicting() -> CachedDecoder:
        return trained.cached("target", H2O(24, 9) if policy == "h2o" else Window(24))

    target, reference = evicting(), evicting()
    decoder = SpeculativeDecoder(target, GREEDY, trained.drafter(target, policy=Window(24)), gamma)
    entry = decoder.start(PROMPT)
    assert entry.tokens == [int(reference.prefill(PROMPT).argmax())]
    accepted = drafted = 0
    while len(decoder.text) < 90:
        last = decoder.text[-1]
        entry = decoder.step(90)
        logits = reference.extend([last, *entry.tokens[:-1]])
        assert logits.argmax(axis=1).tolist() == entry.tokens
        reference.commit(len(entry.tokens))
        accepted, drafted = accepted + entry.accepted, drafted + entry.drafted
    assert 0 < accepted < drafted
    assert target.cache.evicted


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_its_cache_holds_rows_of_committed_tokens_only(trained: Pair, chunk: int) -> None:
    """Those of the target's true features, after rounds in which guesses stood and fell, and in a later turn of a chat.

    Rows are fed when they are needed, so the last ones may still be missing.
    """
    target = trained.cached("target", chunk=chunk)
    drafter = trained.drafter(target, chunk=chunk)
    decoder = SpeculativeDecoder(target, GREEDY, drafter, 3)
    rounds = decode(decoder, PROMPT, 20, [4, 1, 1, 3])
    prompt = [*decoder.text, 7, 100, *PROMPT]
    rounds += decode(decoder, prompt, 30)
    assert decoder.text == plain(trained.cached("target"), prompt, 30)
    drafted, accepted = (sum(getattr(entry, name) for entry in rounds) for name in ("drafted", "accepted"))
    assert 0 < accepted < drafted
    cache = drafter.draft.cache
    assert cache.pending == 0
    assert len(decoder.text) - 2 - max(4, chunk) <= cache.length <= len(decoder.text) - 2
    expected = committed_rows(trained, decoder.text, cache.length)
    np.testing.assert_allclose(cache.rows[:, :, :, : cache.length], expected, atol=1e-3)


def test_a_text_that_forks_is_read_from_where_it_forks(trained: Pair) -> None:
    """The target does not feed again what both texts share, so the head goes on without those tokens."""
    target = trained.cached("target")
    drafter = trained.drafter(target)
    decoder = SpeculativeDecoder(target, GREEDY, drafter, 3)
    decode(decoder, PROMPT, 20)
    fork = [*decoder.text[:10], 9, 9, 9]
    decode(decoder, fork, 20)
    assert decoder.text == plain(trained.cached("target"), fork, 20)
    cache = drafter.draft.cache
    assert cache.length <= len(decoder.text) - 2 - 10
    target.extend([1, 2, 3])  # as if Ctrl-C came between the forward and the commit
    decode(decoder, PROMPT, 20)
    assert decoder.text == plain(trained.cached("target"), PROMPT, 20)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_samples_follow_the_target(trained: Pair, temperature: float) -> None:
    """The second token after a prompt, against its exact distribution: that of the target, summed over the first."""
    trials, params = 2500, SamplingParams(temperature=temperature, top_k=12, top_p=0.95, seed=1)
    target, probe, sampler = trained.cached("target"), trained.cached("target"), Sampler(params)
    decoder = SpeculativeDecoder(target, sampler, trained.drafter(target, sampler), 2)
    first = sampler.distribution(probe.prefill(PROMPT))
    expected = np.zeros(first.size)
    for token in np.flatnonzero(first):
        probe.cache.truncate(len(PROMPT))
        expected += first[token] * sampler.distribution(probe.prefill([int(token)]))
    counts = np.zeros(first.size)
    accepted = 0
    for _ in range(trials):
        decoder.start(PROMPT)
        accepted += decoder.step(3).accepted
        counts[decoder.text[len(PROMPT) + 1]] += 1
    assert 0 < accepted < 2 * trials
    assert counts[expected == 0].sum() == 0
    possible = expected * trials > 5
    observed = np.append(counts[possible], counts[~possible].sum())
    wanted = np.append(expected[possible], expected[~possible].sum()) * trials
    keep = wanted > 0
    assert chisquare(observed[keep], wanted[keep]).pvalue > 1e-4


def test_a_head_that_fails_while_it_reads_leaves_the_target_alone(untrained: Callable[[str], Pair]) -> None:
    pair = untrained("llama")
    target = pair.cached("target", chunk=4)
    drafter = pair.drafter(target, chunk=4)
    drafter.draft.cache.rows[:] = np.nan
    drafter.draft.cache.length = drafter.draft.cache.next_position = 1
    decoder = SpeculativeDecoder(target, GREEDY, drafter, 3)
    with pytest.warns(EdgepipeWarning, match="it is dropped, decoding goes on without it"):
        decode(decoder, list(range(20)), 10)
    assert decoder.text == plain(pair.cached("target"), list(range(20)), 10)


def test_a_head_that_was_dropped_reads_no_more(untrained: Callable[[str], Pair]) -> None:
    """Whatever it was dropped for: neither its time nor its memory is spent on the rest of the text."""
    pair = untrained("llama")
    target = pair.cached("target", chunk=4)
    drafter = pair.drafter(target, chunk=4)
    decoder = SpeculativeDecoder(target, GREEDY, drafter, 3)
    decoder.start(list(range(20)))
    drafter.propose = lambda text, count: Draft([-1])  # type: ignore[method-assign]
    with pytest.warns(EdgepipeWarning, match="token -1, .* it is dropped"):
        decoder.step(5)
    before = drafter.draft.cache.next_position
    while len(decoder.text) < 30:
        decoder.step(30 - len(decoder.text))
    assert drafter.draft.cache.next_position == before
    assert decoder.text == plain(pair.cached("target"), list(range(20)), 10)


def test_without_features_there_is_no_head(cached: Callable[..., Any], untrained: Callable[[str], Pair]) -> None:
    pair = untrained("llama")
    with pytest.raises(EngineError, match="do not share features"):
        pair.drafter(cached("llama"))
    with pytest.raises(EngineError, match="do not share features"):
        HeadDrafter(cached("llama"), pair.cached("target"), GREEDY)
