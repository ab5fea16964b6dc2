"""Speculation changes nothing but the time: exact under every policy, drafter and gamma."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepipe.errors import EdgepipeWarning
from edgepipe.runtimes.llm.costs import Costs, MeasuredCosts
from edgepipe.runtimes.llm.drafters.drafter import Draft, Drafter
from edgepipe.runtimes.llm.drafters.lookup import Lookup
from edgepipe.runtimes.llm.drafters.model import ModelDrafter
from edgepipe.runtimes.llm.gamma import AutoGamma
from edgepipe.runtimes.llm.kv_policies.h2o import H2O
from edgepipe.runtimes.llm.kv_policies.window import Window
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder

GREEDY = Sampler(SamplingParams())


class NoisyOracle(Drafter):
    """Knows the right continuation and spoils some of it, so that every acceptance length occurs."""

    def __init__(self, text: list[int], vocab_size: int, seed: int) -> None:
        self.text, self.vocab_size = text, vocab_size
        self.random = np.random.default_rng(seed)

    def propose(self, text: list[int], count: int) -> Draft:
        guesses = self.text[len(text) : len(text) + count]
        return Draft([int(self.random.integers(self.vocab_size)) if self.random.random() < 0.3 else g for g in guesses])

    def reset(self) -> None:
        pass


class FailsAfter(Drafter):
    """Another drafter until it has been asked so many times."""

    name = "fails"

    def __init__(self, drafter: Drafter, calls: int) -> None:
        self.drafter, self.calls = drafter, calls

    def propose(self, text: list[int], count: int) -> Draft:
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("out of calls")
        return self.drafter.propose(text, count)

    def reset(self) -> None:
        self.drafter.reset()


def plain(target: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy decoding, a token at a time."""
    decoder = SpeculativeDecoder(target, GREEDY)
    decoder.start(prompt)
    while len(decoder.text) < len(prompt) + count:
        decoder.step(1)
    return decoder.text


def speculate(decoder: SpeculativeDecoder, prompt: list[int], count: int) -> list[Any]:
    rounds = [decoder.start(prompt)]
    while (left := len(prompt) + count - len(decoder.text)) > 0:
        rounds.append(decoder.step(left))
    return rounds


def make_drafter(kind: str, cached: Callable[..., Any], architecture: str, expected: list[int], seed: int) -> Drafter:
    if kind == "lookup":
        return Lookup(longest=3, shortest=1)
    if kind == "oracle":
        return NoisyOracle(expected, 300, seed)
    policy = Window(24) if kind == "window_model" else H2O(24) if kind == "h2o_model" else None
    changes = {"seed": 1} if kind == "other_model" else {}
    draft = cached(architecture, policy, **changes)
    reach = 5 if kind == "short_model" else None
    return ModelDrafter(draft, GREEDY, draft.decoder.spec.vocab_size, reach=reach)


@pytest.mark.every_engine
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.lists(st.integers(0, 299), min_size=1, max_size=40),
    gamma=st.integers(1, 8),
    kind=st.sampled_from(["lookup", "oracle", "same_model", "other_model", "window_model", "h2o_model", "short_model"]),
    seed=st.integers(0, 1000),
)
def test_greedy_text_equals_plain_greedy_text(
    cached: Callable[..., Any], architecture: str, prompt: list[int], gamma: int, kind: str, seed: int
) -> None:
    expected = plain(cached(architecture), prompt, 40)
    drafter = make_drafter(kind, cached, architecture, expected, seed)
    decoder = SpeculativeDecoder(cached(architecture), GREEDY, drafter, gamma)
    rounds = speculate(decoder, prompt, 40)
    assert decoder.text == expected
    assert all(0 <= r.accepted <= r.drafted <= gamma and len(r.tokens) == r.accepted + 1 for r in rounds)
    if kind == "same_model":
        assert all(entry.accepted == entry.drafted for entry in rounds)


@pytest.mark.every_engine
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.lists(st.integers(0, 299), min_size=1, max_size=40),
    automatic=st.booleans(),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 1000),
)
def test_chained_drafters_and_a_changing_gamma_leave_the_text_as_it_is(
    cached: Callable[..., Any],
    random_gamma: Callable[..., Any],
    architecture: str,
    prompt: list[int],
    automatic: bool,
    temperature: float,
    seed: int,
) -> None:
    """Greedy text, and, as no guess was drawn, sampled text of the same seed: one fails halfway, which changes nothing.

    Half of the examples choose gamma at random, half on costs that make guessing cheap.
    """
    params = SamplingParams(temperature, seed=seed)
    expected = SpeculativeDecoder(cached(architecture), Sampler(params))
    speculate(expected, prompt, 40)
    sampler = Sampler(params)
    model = ModelDrafter(cached(architecture, seed=1), GREEDY, 300)
    drafters = [Lookup(longest=3, shortest=1), NoisyOracle(expected.text, 300, seed), FailsAfter(model, 4)]
    cheap = Costs(MeasuredCosts({1: 1.0, 16: 1.5}, {}))
    gamma = AutoGamma(cheap, most=8) if automatic else random_gamma(8, seed)
    decoder = SpeculativeDecoder(cached(architecture), sampler, drafters, gamma)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgepipeWarning)
        rounds = speculate(decoder, prompt, 40)
    assert decoder.text == expected.text
    assert all(0 <= r.accepted <= r.drafted <= 8 and len(r.tokens) == r.accepted + 1 for r in rounds)


@pytest.mark.every_engine
@pytest.mark.parametrize("gamma", [1, 4, "changing"])
@pytest.mark.parametrize("policy", ["h2o", "h2o_summed", "window"])
@pytest.mark.parametrize("every", [None, 6])
def test_evicting_target_equals_one_fed_only_committed_tokens(
    cached: Callable[..., Any],
    random_gamma: Callable[..., Any],
    torch_decoder: Callable[..., Any],
    victim_rules: dict[str, Callable[..., Any]],
    architecture: str,
    policy: str,
    every: int | None,
    gamma: Any,
) -> None:
    """Rejected tokens leave no trace: rows, positions, mass, victims, text. The recent window is 1 + 8 guesses.

    The reference evicts after every round, or when its text passes a multiple of ``every``.
    """
    budget, recent, chunk = 24, 9, 16
    if policy == "window":
        ours, rule = Window(budget, 4), victim_rules["window"](4)
    else:
        normalise = policy == "h2o"
        ours, rule = H2O(budget, recent, normalise=normalise), victim_rules["h2o"](recent, normalise)
    target = cached(architecture, ours, chunk=chunk)
    target.evict_every = every
    reference = torch_decoder(architecture, rule, budget)
    prompt = np.random.default_rng(7).integers(0, 300, 40).tolist()
    full = plain(cached(architecture, type(ours)(budget)), prompt, 30)
    decoder = SpeculativeDecoder(
        target, GREEDY, NoisyOracle(full, 300, 3), gamma if gamma != "changing" else random_gamma(8, 5)
    )

    victims = []
    choose = ours.victims

    def spy(cache: Any, count: int) -> np.ndarray:
        slots = choose(cache, count)
        doomed = np.take_along_axis(cache.positions, slots, axis=2)
        victims.extend((la, h, int(p)) for la, h in np.ndindex(doomed.shape[:2]) for p in doomed[la, h])
        return slots

    ours.victims = spy  # type: ignore[method-assign]
    decoder.start(prompt)
    for start in range(0, len(prompt), chunk):
        logits = reference.feed(prompt[start : start + chunk])
    assert decoder.text[-1] == int(logits[-1].argmax())
    rejected = 0
    while len(decoder.text) < 100:
        pending = decoder.text[-1]
        entry = decoder.step(100)
        rejected += entry.drafted - entry.accepted
        length = reference.fed + len(entry.tokens)
        logits = reference.feed(
            [pending, *entry.tokens[:-1]], evict=not every or length // every > reference.fed // every
        )
        assert logits.argmax(axis=1).tolist() == entry.tokens
    assert rejected > 0
    assert sorted(victims) == sorted(reference.victims)
    cache = target.cache
    assert cache.length == budget + (cache.next_position % every if every else 0)
    for layer in range(reference.layers):
        for head in range(reference.kv_heads):
            expected = reference.scores[layer][head]
            found = cache.positions[layer, head, : cache.length]
            assert sorted(found) == sorted(expected)
            rows = cache.rows[layer, :, head, : cache.length]
            np.testing.assert_allclose(rows[0], reference.keys[layer][0, head, found], atol=2e-4)
            np.testing.assert_allclose(rows[1], reference.values[layer][0, head, found], atol=2e-4)
            if cache.mass is not None:
                mass = cache.mass[layer, head, : cache.length]
                np.testing.assert_allclose(mass, [expected[position] for position in found], rtol=1e-3, atol=1e-4)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.lists(st.integers(0, 299), min_size=1, max_size=40),
    policy=st.sampled_from([lambda: H2O(24), lambda: H2O(20, 3, normalise=False), lambda: Window(20, 2)]),
    every=st.integers(1, 9),
    kind=st.sampled_from(["lookup", "oracle", "other_model", "window_model"]),
    temperature=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 1000),
)
def test_what_evicts_at_certain_lengths_writes_what_it_writes_plainly(
    cached: Callable[..., Any],
    random_gamma: Callable[..., Any],
    prompt: list[int],
    policy: Callable[[], Any],
    every: int,
    kind: str,
    temperature: float,
    seed: int,
) -> None:
    """Rounds of any sizes leave the same text, and the same rows alive; a second turn of a chat goes on from there."""
    params = SamplingParams(temperature, seed=seed)

    def evicting() -> Any:
        target = cached("llama", policy())
        target.evict_every = every
        return target

    expected = SpeculativeDecoder(evicting(), Sampler(params))
    speculate(expected, prompt, 40)
    drafter = make_drafter(kind, cached, "llama", expected.text, seed)
    decoder = SpeculativeDecoder(evicting(), Sampler(params), drafter, random_gamma(8, seed))
    speculate(decoder, prompt, 40)
    for again in (False, True):
        if again:
            more = [*decoder.text, 7, 8, 9]
            speculate(expected, more, 20)
            speculate(decoder, more, 20)
        assert decoder.text == expected.text
        ours, theirs = decoder.target.cache, expected.target.cache
        assert ours.length == theirs.length < decoder.target.policy.budget + every
        np.testing.assert_array_equal(ours.positions[:, :, : ours.length], theirs.positions[:, :, : ours.length])


def test_it_evicts_when_the_text_passes_a_multiple(cached: Callable[..., Any]) -> None:
    target = cached("llama", Window(10, 2))
    target.evict_every = 4
    target.prefill(list(range(14)))
    lengths = []
    for count in (1, 1, 2, 1, 1, 3, 2):
        assert target.until_eviction == 4 - target.cache.next_position % 4
        target.extend([5] * (count + 1))
        target.commit(count)
        lengths.append((target.cache.next_position, target.cache.length))
    assert lengths == [(15, 11), (16, 10), (18, 12), (19, 13), (20, 10), (23, 13), (25, 10)]
    target.prefill([1])
    assert target.cache.length == 10, "a prompt is followed by an eviction wherever it ends"


@pytest.mark.every_engine
def test_victims_follow_the_reference_step_by_step(
    cached: Callable[..., Any],
    torch_decoder: Callable[..., Any],
    victim_rules: dict[str, Callable[..., Any]],
    architecture: str,
) -> None:
    """Plain decoding under H2O: after every token the same positions are alive in every layer and head."""
    budget, recent = 16, 8
    target = cached(architecture, H2O(budget, recent), chunk=8)
    reference = torch_decoder(architecture, victim_rules["h2o"](recent, True), budget)
    tokens = np.random.default_rng(11).integers(0, 300, 60).tolist()
    for start in range(0, 24, 8):
        target.prefill(tokens[start : start + 8])
        reference.feed(tokens[start : start + 8])
    for token in tokens[24:]:
        target.prefill([token])
        reference.feed([token])
        for layer in range(reference.layers):
            for head in range(reference.kv_heads):
                alive = target.cache.positions[layer, head, : target.cache.length]
                assert sorted(alive) == sorted(reference.scores[layer][head])


@pytest.mark.every_engine
def test_a_draft_with_a_reach_reads_no_more_and_guesses_on(cached: Callable[..., Any]) -> None:
    """Rows keep their true positions: the draft sees the end of the text as if all before it had been evicted."""
    text = np.random.default_rng(2).integers(0, 300, 60).tolist()
    draft = cached("llama")
    drafter = ModelDrafter(draft, GREEDY, 300, reach=9)
    guess = drafter.propose(text, 1).tokens
    assert (draft.cache.length, draft.cache.next_position) == (9, 60)
    assert draft.cache.positions[0, 0, :9].tolist() == list(range(51, 60))
    assert guess == [int(np.argmax(cached("llama").prefill(text[51:])[:300]))], "only distances count in RoPE"
    drafter.propose([*text, *guess, 5], 1)
    assert (draft.cache.length, draft.cache.next_position) == (11, 62)


def test_a_stop_token_inside_the_guesses_ends_the_text(cached: Callable[..., Any]) -> None:
    prompt = [3, 1, 4]
    text = plain(cached("llama"), prompt, 12)
    stop = text[len(prompt) + 5]
    end = text.index(stop, len(prompt) + 1) + 1
    oracle = NoisyOracle(text, 300, 0)
    oracle.random = np.random.default_rng(0)
    decoder = SpeculativeDecoder(cached("llama"), GREEDY, oracle, gamma=8, stop_tokens=[stop])
    decoder.start(prompt)
    while decoder.text[-1] != stop:
        decoder.step(20)
    assert decoder.text == text[:end]
    assert decoder.target.cache.next_position == end - 1


@pytest.mark.every_engine
def test_a_second_text_reuses_what_the_cache_shares_with_it(cached: Callable[..., Any]) -> None:
    prompt = list(range(50, 80))
    decoder = SpeculativeDecoder(cached("llama"), GREEDY, Lookup(), gamma=3)
    speculate(decoder, prompt, 10)
    longer = [*decoder.text, 7, 8, 9]
    forks = [*decoder.text[:35], 9, 9, 9]
    for text in (longer, forks):
        speculate(decoder, text, 10)
        assert decoder.text == plain(cached("llama"), text, 10)


@pytest.mark.every_engine
def test_an_interrupted_round_leaves_the_decoder_usable(cached: Callable[..., Any]) -> None:
    prompt = list(range(20))
    drafter = ModelDrafter(cached("llama"), GREEDY, 400)
    decoder = SpeculativeDecoder(cached("llama"), GREEDY, drafter, gamma=3)
    decoder.start(prompt)
    decoder.target.extend([1, 2, 3])  # as if Ctrl-C came between the forward and the commit
    drafter.draft.extend([1])
    speculate(decoder, [*prompt, 5], 10)
    assert decoder.text == plain(cached("llama"), [*prompt, 5], 10)
