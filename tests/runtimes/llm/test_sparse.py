"""Drafting with a part of the target's own cache: exact, whatever part it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from edgepipe.runtimes.llm.drafters.lookup import Lookup
from edgepipe.runtimes.llm.drafters.sparse import SparseDrafter
from edgepipe.runtimes.llm.kv_policies.window import Window
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
from edgepipe.runtimes.llm.speculative import Round, SpeculativeDecoder

GREEDY = Sampler(SamplingParams())


def sparse(target: Any, budget: int, sinks: int, gamma: int, sampler: Sampler = GREEDY) -> SpeculativeDecoder:
    """A decoder that drafts for itself in a window."""
    return SpeculativeDecoder(target, sampler, SparseDrafter(target, Window(budget, sinks), gamma, sampler), gamma)


def decode(decoder: SpeculativeDecoder, prompt: list[int], count: int) -> list[Round]:
    rounds = [decoder.start(prompt)]
    while (left := len(prompt) + count - len(decoder.text)) > 0:
        rounds.append(decoder.step(left))
    return rounds


def plain(target: Any, prompt: list[int], count: int) -> list[int]:
    decoder = SpeculativeDecoder(target, GREEDY)
    decode(decoder, prompt, count)
    return decoder.text


@pytest.mark.every_engine
@pytest.mark.parametrize("model", ["llama", "qwen3"])  # all of them in all engines: test_speculative.py
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.lists(st.integers(0, 299), min_size=1, max_size=40),
    gamma=st.integers(1, 8),
    budget=st.integers(2, 100),
    changing=st.booleans(),
    data=st.data(),
)
def test_greedy_text_equals_plain_greedy_text(
    cached: Callable[..., Any],
    random_gamma: Callable[..., Any],
    model: str,
    prompt: list[int],
    gamma: int,
    budget: int,
    changing: bool,
    data: st.DataObject,
) -> None:
    sinks = data.draw(st.integers(0, min(budget - 1, 8)))
    decoder = sparse(cached(model), budget, sinks, gamma)
    if changing:
        decoder.gamma = random_gamma(gamma, budget)
    rounds = decode(decoder, prompt, 40)
    assert decoder.text == plain(cached(model), prompt, 40)
    if budget >= len(decoder.text):  # it sees all that the target sees
        assert all(entry.accepted == entry.drafted for entry in rounds)


@pytest.mark.every_engine
def test_the_window_holds_the_targets_own_rows(cached: Callable[..., Any]) -> None:
    """Before every draft: sinks and recent tokens, row for row, and no trace of guesses of the round before."""
    target = cached("llama")
    drafter = SparseDrafter(target, Window(20, 4), 5, GREEDY)
    decoder = SpeculativeDecoder(target, GREEDY, drafter, 5)
    prompt = np.random.default_rng(3).integers(0, 300, 50).tolist()
    rejected = 0
    decoder.start(prompt)
    for _ in range(20):
        entry = decoder.step(100)
        rejected += entry.drafted - entry.accepted
        ours, theirs = drafter.draft.cache, target.cache
        ours.follow(theirs, 4, 20)
        end = theirs.length
        assert end == len(decoder.text) - 1
        positions = ours.positions[0, 0, : ours.length]
        assert sorted(positions) == [*range(4), *range(end - 16, end)]
        np.testing.assert_array_equal(ours.rows[:, :, :, : ours.length], theirs.rows[:, :, :, positions])
    assert rejected > 0


def test_samples_follow_the_target(cached: Callable[..., Any]) -> None:
    """The second token after a prompt much longer than the window, against exact marginals."""
    prompt = np.random.default_rng(5).integers(0, 300, 24).tolist()
    sampler = Sampler(SamplingParams(temperature=0.7, top_k=4, seed=0))
    target, probe = cached("llama"), cached("llama")
    decoder = sparse(target, 6, 1, 2, sampler)
    first = sampler.distribution(probe.prefill(prompt))
    expected = np.zeros(first.size)
    for token in np.flatnonzero(first):
        probe.cache.truncate(len(prompt))
        expected += first[token] * sampler.distribution(probe.prefill([int(token)]))
    counts = np.zeros(first.size)
    trials, drafted, accepted = 4000, 0, 0
    for _ in range(trials):
        decoder.start(prompt)
        entry = decoder.step(3)
        drafted, accepted = drafted + entry.drafted, accepted + entry.accepted
        counts[decoder.text[len(prompt) + 1]] += 1
    assert 0 < accepted < drafted
    possible = expected * trials > 5
    assert counts[expected == 0].sum() == 0
    observed = np.append(counts[possible], counts[~possible].sum())
    wanted = np.append(expected[possible], expected[~possible].sum()) * trials
    keep = wanted > 0
    assert chisquare(observed[keep], wanted[keep]).pvalue > 1e-4


@pytest.mark.every_engine
def test_texts_that_go_on_fork_or_break_off(cached: Callable[..., Any]) -> None:
    prompt = list(range(50, 80))
    decoder = sparse(cached("llama"), 12, 2, 3)
    decode(decoder, prompt, 10)
    longer = [*decoder.text, 7, 8, 9]
    forks = [*decoder.text[:35], 9, 9, 9]
    for text in (longer, forks, prompt[:5]):
        decode(decoder, text, 12)
        assert decoder.text == plain(cached("llama"), text, 12)
    decoder.target.extend([1, 2])  # as if Ctrl-C came between the forward and the commit
    again = [*decoder.text, 4]
    decode(decoder, again, 12)
    assert decoder.text == plain(cached("llama"), again, 12)


def test_asked_only_now_and_then_it_catches_up(cached: Callable[..., Any]) -> None:
    """Rounds of other drafters lie between its own."""
    prompt = [9, 8, 7, 6] * 6
    target = cached("llama")
    drafters = [Lookup(longest=2, shortest=2), SparseDrafter(target, Window(10, 2), 4, GREEDY)]
    decoder = SpeculativeDecoder(target, GREEDY, drafters, 4)
    rounds = decode(decoder, prompt, 60)
    assert decoder.text == plain(cached("llama"), prompt, 60)
    assert {"lookup", "sparse"} <= {entry.drafter for entry in rounds}


def test_its_keys_and_values_are_counted(cached: Callable[..., Any]) -> None:
    target = cached("llama")
    decoder = sparse(target, 20, 4, 5)
    assert decoder.kv_bytes == target.cache.nbytes + (20 + 5) * target.decoder.spec.kv_bytes_per_token
