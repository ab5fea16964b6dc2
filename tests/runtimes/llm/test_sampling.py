"""The distribution against Hugging Face's logits processors, the draws against the distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from edgepipe.errors import RecipeError
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    temperature=st.floats(0.1, 3.0),
    top_k=st.sampled_from([0, 1, 5, 40, 1000]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    penalty=st.sampled_from([1.0, 1.3, 0.8]),
    absent=st.sampled_from([0, 60, 99]),
)
def test_equals_transformers(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, penalty: float, absent: int
) -> None:
    """``absent`` tokens have a logit of minus infinity, as those that a trimmed head lacks."""
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as hf

    random = np.random.default_rng(seed)
    logits = random.normal(size=100).astype(np.float32) * 4
    logits[random.permutation(100)[:absent]] = -np.inf
    text = random.integers(0, 100, 20).tolist()
    sampler = Sampler(SamplingParams(temperature, top_k, top_p, min_p, penalty))
    sampler.start(text[:12])
    sampler.observe(text[12:15])

    processors = hf.LogitsProcessorList([hf.RepetitionPenaltyLogitsProcessor(penalty)] if penalty != 1 else [])
    processors.append(hf.TemperatureLogitsWarper(temperature))
    if top_k:
        processors.append(hf.TopKLogitsWarper(top_k))
    processors.append(hf.TopPLogitsWarper(top_p))
    processors.append(hf.MinPLogitsWarper(min_p))
    scores = processors(torch.tensor([text]), torch.tensor(logits[None]).double())
    expected = torch.softmax(scores, -1)[0].numpy()

    found = sampler.distribution(logits, text[15:])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.sum() == pytest.approx(1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [1e-320, 1e-6, 1e6, 1e308])
@pytest.mark.parametrize("penalty", [0.01, 1.0, 100.0])
def test_the_ends_of_every_range_still_give_a_distribution(temperature: float, penalty: float) -> None:
    sampler = Sampler(SamplingParams(temperature, 50, 1e-9, 0.99, penalty))
    sampler.start(range(100))
    found = sampler.distribution(np.random.default_rng(0).normal(size=100).astype(np.float32) * 30)
    assert found.sum() == pytest.approx(1.0)
    assert found.min() >= 0.0


def test_draws_follow_the_distribution_and_never_leave_it() -> None:
    sampler = Sampler(SamplingParams(1.0, seed=1))
    probabilities = np.array([0.0, 0.3, 0.0, 0.5, 0.2, 0.0])
    counts = np.bincount([sampler.draw(probabilities) for _ in range(20_000)], minlength=6)
    assert counts[probabilities == 0].sum() == 0
    assert chisquare(counts[[1, 3, 4]], 20_000 * probabilities[[1, 3, 4]]).pvalue > 1e-4


def test_the_same_seed_draws_the_same_tokens() -> None:
    logits = np.random.default_rng(0).normal(size=50).astype(np.float32)
    first, second = ([Sampler(SamplingParams(1.0, seed=9)).choose(logits) for _ in range(1)] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("kept", [0, 1, 4, 9])
def test_draws_that_are_forgotten_come_again(kept: int) -> None:
    logits = np.random.default_rng(0).normal(size=50).astype(np.float32)
    plain, ahead = Sampler(SamplingParams(1.0, seed=9)), Sampler(SamplingParams(1.0, seed=9))
    expected = [plain.choose(logits) for _ in range(20)]
    assert [ahead.choose(logits) for _ in range(9)] == expected[:9]
    ahead.forget(9 - kept)
    assert [ahead.choose(logits) for _ in range(20 - kept)] == expected[kept:]


def test_greedy_takes_the_penalised_best() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=2.0))
    sampler.start([0])
    logits = np.array([3.0, 2.0, 1.0], np.float32)
    assert sampler.choose(logits) == 1
    assert sampler.best(logits, [1]) == 0  # 1.5, 1.0, 1.0
    assert logits.tolist() == [3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 1.0},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-40},
        {"repetition_penalty": 1e300},
        {"seed": -1},
    ],
)
def test_a_value_out_of_range_is_named(bad: dict[str, float]) -> None:
    with pytest.raises(RecipeError, match=next(iter(bad))):
        SamplingParams(**bad)  # type: ignore[arg-type]
