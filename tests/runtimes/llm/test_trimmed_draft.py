"""A draft that can guess only some tokens: the text stays the target's own, in every way of choosing tokens."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from edgepipe.runtimes.llm.kv_policies.h2o import H2O
from edgepipe.runtimes.llm.kv_policies.window import Window
from edgepipe.runtimes.llm.output_vocabulary import OutputVocabulary
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder


def decode(decoder: SpeculativeDecoder, prompt: list[int], count: int, limits: list[int] | None = None) -> list[Any]:
    """All rounds; each adds at most as many tokens as the next of ``limits`` says, and guesses one less."""
    rounds, limit = [decoder.start(prompt)], cycle(limits or [count])
    while (left := len(prompt) + count - len(decoder.text)) > 0:
        rounds.append(decoder.step(min(left, next(limit))))
    return rounds


def test_logits_of_all_tokens() -> None:
    vocabulary = OutputVocabulary(np.array([1, 4], np.int32), 6)
    for logits in ([0.5, -2.0], [3.0, 1.0]):
        row = vocabulary.full(np.array(logits, np.float32))
        assert row.tolist() == [-np.inf, logits[0], -np.inf, -np.inf, logits[1], -np.inf]


@pytest.mark.every_engine
@pytest.mark.parametrize("model", ["llama", "qwen3"])  # all of them in all engines: test_speculative.py
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.lists(st.integers(0, 299), min_size=1, max_size=40),
    gamma=st.integers(1, 8),
    limits=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    policy=st.sampled_from([None, "window", "h2o"]),
    penalty=st.sampled_from([1.0, 1.3]),
    tokens=st.sampled_from([2, 120]),
)
def test_greedy_text_equals_plain_greedy_text(
    cached: Callable[..., Any],
    trimmed_drafter: Callable[..., Any],
    model: str,
    prompt: list[int],
    gamma: int,
    limits: list[int],
    policy: str | None,
    penalty: float,
    tokens: int,
) -> None:
    params = SamplingParams(repetition_penalty=penalty)
    plain = SpeculativeDecoder(cached(model), Sampler(params))
    decode(plain, prompt, 40)
    sampler = Sampler(params)
    kept = Window(24) if policy == "window" else H2O(24) if policy == "h2o" else None
    drafter = trimmed_drafter(model, sampler, kept, tokens=tokens)
    decoder = SpeculativeDecoder(cached(model), sampler, drafter, gamma)
    rounds = decode(decoder, prompt, 40, limits)
    assert decoder.text == plain.text
    assert all(len(entry.tokens) == entry.accepted + 1 for entry in rounds)


def test_the_targets_own_layers_guess_all_that_the_head_holds(
    cached: Callable[..., Any], trimmed_drafter: Callable[..., Any], architecture: str
) -> None:
    """With the target's layers and rows of its head, a guess is wrong only where the target's token has no row.

    So where a round ends is known from the plain text alone.
    """
    gamma, prompt = 4, [5, 17, 42, 8]
    greedy = Sampler(SamplingParams())
    same = {"seed": 0, "num_hidden_layers": cached(architecture).decoder.spec.num_layers, "int8": False}
    drafter = trimmed_drafter(architecture, greedy, tied=False, tokens=250, **same)
    held = set(drafter.vocabulary.ids.tolist())
    plain = SpeculativeDecoder(cached(architecture, tied=False), greedy)
    decode(plain, prompt, 60)
    decoder = SpeculativeDecoder(cached(architecture, tied=False), greedy, drafter, gamma)
    rounds = decode(decoder, prompt, 60)
    assert decoder.text == plain.text
    at = len(prompt) + 1
    for entry in rounds[1:]:
        following = plain.text[at : at + entry.drafted]
        expected = next((index for index, token in enumerate(following) if token not in held), entry.drafted)
        assert entry.accepted == expected
        at += len(entry.tokens)
    assert sum(entry.accepted for entry in rounds) > 20


def test_guesses_are_drawn_from_the_trimmed_softmax(trimmed_drafter: Callable[..., Any], architecture: str) -> None:
    sampler = Sampler(SamplingParams(temperature=0.7, seed=1))
    drafter = trimmed_drafter(architecture, sampler)
    text = [7, 11, 200, 31]
    draft = drafter.propose(text, 3)
    ids = drafter.vocabulary.ids
    probe = trimmed_drafter(architecture, sampler).draft
    logits = probe.extend([*text, *draft.tokens])[len(text) - 1 :].astype(np.float64)
    for index, (token, q) in enumerate(zip(draft.tokens, draft.probabilities, strict=True)):
        weights = np.exp(logits[index] / 0.7 - (logits[index] / 0.7).max())
        np.testing.assert_allclose(q[ids], weights / weights.sum(), atol=1e-4)
        assert np.delete(q, ids).max() == 0
        assert token in ids


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7, top_k=4, seed=0),
        SamplingParams(temperature=1.2, top_p=0.6, repetition_penalty=1.4, seed=1),
        SamplingParams(temperature=0.9, min_p=0.1, seed=2),
    ],
    ids=["top_k", "top_p_and_penalty", "min_p"],
)
def test_samples_follow_the_target(
    cached: Callable[..., Any], trimmed_drafter: Callable[..., Any], params: SamplingParams
) -> None:
    """The second token after a prompt, against its exact distribution: that of the target, summed over the first.

    The draft has the target's layers, rounded, and half of its head: some guesses are right, some tokens never guessed.
    """
    prompt, trials = [5, 17, 42], 4000
    target, probe = cached("llama", tied=False), cached("llama", tied=False)
    sampler = Sampler(params)
    same = {"seed": 0, "num_hidden_layers": 2, "tied": False}
    decoder = SpeculativeDecoder(target, sampler, trimmed_drafter("llama", sampler, tokens=150, **same), 2)

    exact = Sampler(params)
    exact.start(prompt)
    first = exact.distribution(probe.prefill(prompt))
    expected = np.zeros(first.size)
    for token in np.flatnonzero(first > 1e-7):
        probe.cache.truncate(len(prompt))
        expected += first[token] * exact.distribution(probe.prefill([int(token)]), [int(token)])
    counts = np.zeros(first.size)
    accepted = 0
    for _ in range(trials):
        decoder.start(prompt)
        accepted += decoder.step(3).accepted
        counts[decoder.text[len(prompt) + 1]] += 1
    assert 0 < accepted < 2 * trials
    possible = expected * trials > 5
    observed = np.append(counts[possible], counts[~possible].sum())
    wanted = np.append(expected[possible], expected[~possible].sum()) * trials
    keep = wanted > 0
    assert observed[~keep].sum() == 0
    assert chisquare(observed[keep], wanted[keep] * observed.sum() / wanted.sum()).pvalue > 1e-4
