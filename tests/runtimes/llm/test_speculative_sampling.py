"""Sampled text follows the target's distribution, whatever is guessed and however many guesses there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.drafters.drafter import Draft
from edgepipe.runtimes.llm.drafters.lookup import Lookup
from edgepipe.runtimes.llm.drafters.model import ModelDrafter
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder, verify


@pytest.mark.parametrize(("gamma", "drawn"), [(1, True), (2, True), (4, True), (1, False), (4, False), (4, None)])
def test_samples_follow_the_targets_distribution(gamma: int, drawn: bool | None) -> None:
    """50,000 draws of `verify` with a draft that is wrong on purpose; every prefix of the text is checked.

    The next-token distribution depends on the last token only (a Markov chain of 6 states), so that what any
    position must look like is known exactly. With ``drawn`` None both kinds of drafts take turns by chance, as those
    of chained drafters do, and the number of guesses changes every round, down to none.
    """
    random = np.random.default_rng(gamma)
    states = 6
    target = random.normal(size=(states, states)).astype(np.float32) * 1.5
    wrong = random.dirichlet(np.ones(states) * 0.5, size=states)
    sampler = Sampler(SamplingParams(temperature=0.8, top_k=5, top_p=0.95, seed=gamma))
    transition = np.stack([sampler.distribution(row) for row in target])

    trials = 50_000
    first, second = np.zeros(states), np.zeros((states, states))
    for _ in range(trials):
        tokens: list[int] = []
        last = 0
        while len(tokens) < 2:
            guesses: list[int] = []
            probabilities = []
            for _ in range(gamma if drawn is not None else random.integers(gamma + 1)):
                q = wrong[guesses[-1] if guesses else last]
                probabilities.append(q)
                guesses.append(sampler.draw(q))
            kind = random.random() < 0.5 if drawn is None else drawn
            draft = Draft(guesses, probabilities if kind else None)
            accepted, following = verify(target[[last, *guesses]], draft, sampler)
            tokens += [*guesses[:accepted], following]
            last = tokens[-1]
        first[tokens[0]] += 1
        second[tokens[0], tokens[1]] += 1
    possible = transition[0] > 0
    assert first[~possible].sum() == 0
    assert chisquare(first[possible], trials * transition[0][possible]).pvalue > 1e-4
    for state in np.flatnonzero(first > 500):
        possible = transition[state] > 0
        assert second[state, ~possible].sum() == 0
        assert chisquare(second[state, possible], first[state] * transition[state, possible]).pvalue > 1e-4


@pytest.mark.every_engine
def repeating_prompt(probe: CachedDecoder, sampler: Sampler) -> list[int]:
    """One that ends with a token after which what followed it before may follow again, and with it the next one."""
    for token in range(300):
        text = [5, token]
        for _ in range(2):
            probe.cache.clear()
            text.append(int(probe.prefill(text).argmax()))
        text.append(token)
        probe.cache.clear()
        first = sampler.distribution(probe.prefill(text))
        if 0 < first[text[2]] < 1 and 0 < sampler.distribution(probe.prefill([text[2]]))[text[3]] < 1:
            probe.cache.clear()
            return text
    raise AssertionError("no token is followed twice by the same")


@pytest.mark.parametrize("chained", [False, True])
def test_sampled_speculation_with_a_model_follows_the_target(
    cached: Callable[..., Any], random_gamma: Callable[..., Any], chained: bool
) -> None:
    """Through the whole loop: the second token after a prompt, drafted from its last two, against exact marginals.

    Chained, each round asks lookup, whose guesses are not drawn, or the model for up to two guesses, as chance has it.
    """
    prompt = [5, 17, 42]
    params = SamplingParams(temperature=0.7, top_k=4, seed=0)
    target, probe = cached("llama"), cached("llama")
    sampler = Sampler(params)
    drafter = ModelDrafter(cached("llama"), sampler, target.decoder.spec.vocab_size, reach=2)
    decoder = SpeculativeDecoder(target, sampler, drafter, gamma=2)
    if chained:
        decoder = SpeculativeDecoder(target, sampler, [Lookup(shortest=1), drafter], random_gamma(2, seed=0))
        prompt = repeating_prompt(probe, sampler)

    first = sampler.distribution(probe.prefill(prompt))
    expected = np.zeros(first.size)
    for token in np.flatnonzero(first):
        probe.cache.truncate(len(prompt))
        expected += first[token] * sampler.distribution(probe.prefill([int(token)]))
    counts = np.zeros(first.size)
    trials = 4000
    accepted, rejected = Counter[str | None](), Counter[str | None]()
    for _ in range(trials):
        decoder.start(prompt)
        entry = decoder.step(3)
        accepted[entry.drafter] += entry.accepted
        rejected[entry.drafter] += entry.drafted - entry.accepted
        counts[decoder.text[len(prompt) + 1]] += 1
    drafters = {"lookup", "model"} if chained else {"model"}
    assert all(accepted[name] and rejected[name] for name in drafters), (
        f"guesses of each stood and fell: {accepted}, {rejected}"
    )
    possible = expected * trials > 5
    assert counts[expected == 0].sum() == 0
    observed = np.append(counts[possible], counts[~possible].sum())
    wanted = np.append(expected[possible], expected[~possible].sum()) * trials
    keep = wanted > 0
    assert chisquare(observed[keep], wanted[keep]).pvalue > 1e-4
