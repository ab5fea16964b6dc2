"""Sampling in batches: what each conversation gets is what it would get alone, and what transformers says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edgepipe.errors import EngineError
from edgepipe.exporters.llm.distill.samples import TEACHER_TOKENS, Sample
from edgepipe.exporters.llm.distill.sampling import BatchSampler, Request


def same(one: Sample, other: Sample) -> bool:
    return np.array_equal(one.tokens, other.tokens) and np.array_equal(one.written, other.written)


def test_a_batch_gives_what_each_conversation_gives_alone(
    tiny_target: Any, requests_: list[Request], tiny_samples: list[Sample]
) -> None:
    alone = tiny_target.sampler(batch=1).run(requests_, max_answer=24)
    assert all(map(same, tiny_samples, alone))


def test_greedy_answers_are_those_of_transformers(tiny_target: Any) -> None:
    model = tiny_target.weights.reference_model()
    prompts = [list(range(start, start + length)) for start, length in ((40, 5), (90, 11), (200, 3), (120, 20))]
    samples = tiny_target.sampler(batch=3).run([Request((prompt,), 0.0, (0,)) for prompt in prompts], max_answer=12)
    for prompt, sample in zip(prompts, samples, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)[0]
        assert sample.tokens.tolist() == expected.tolist()
        assert sample.written.tolist() == [False] * len(prompt) + [True] * (len(expected) - len(prompt))


def test_teacher_probabilities_are_those_of_transformers(tiny_target: Any, tiny_samples: list[Sample]) -> None:
    model = tiny_target.weights.reference_model()
    for sample in tiny_samples:
        with torch.no_grad():
            logits = model(torch.from_numpy(sample.tokens).long()[None]).logits[0]
        steps = np.flatnonzero(sample.written) - 1
        expected, ids = logits[steps].softmax(-1).topk(TEACHER_TOKENS)
        np.testing.assert_allclose(sample.teacher_probabilities, expected.numpy(), atol=2e-3)
        assert (sample.teacher_ids[:, 0] == ids[:, 0].numpy()).all()


def test_every_turn_is_asked_and_only_answers_are_marked(
    tiny_target: Any, requests_: list[Request], tiny_samples: list[Sample]
) -> None:
    ends = tiny_target.weights.spec.eos_token_ids
    for request, sample in zip(requests_, tiny_samples, strict=True):
        boundaries = np.flatnonzero(np.diff(sample.written.astype(int))) + 1
        parts = np.split(sample.tokens, boundaries)
        asked, answers = parts[::2], parts[1::2]
        assert [part.tolist() for part in asked] == list(request.turns[: len(asked)])
        assert len(asked) == len(answers)
        assert all(answer.size <= 24 and not np.isin(answer[:-1], ends).any() for answer in answers)
        assert all(answer[-1] in ends for answer in answers[:-1])


def test_a_follow_up_comes_after_an_answer_that_ended(tiny_target: Any) -> None:
    """A model of random weights hardly ever ends: what it writes fourth is taken for its end."""
    first = tiny_target.sampler(batch=1).run([Request(([50, 60],), 0.0, (0,))], max_answer=4)[0]
    sampler = tiny_target.sampler(batch=2)
    sampler.ends = (int(first.tokens[3]),)
    end = int(first.tokens[3])
    sample = sampler.run([Request(([50, 60], [70, 80, 90]), 0.0, (0,))], max_answer=4)[0]
    answer = first.tokens[2 : first.tokens.tolist().index(end, 2) + 1].tolist()
    start = 2 + len(answer)
    assert sample.tokens[: start + 3].tolist() == [50, 60, *answer, 70, 80, 90]
    assert sample.written[start : start + 4].tolist() == [False, False, False, True]


def test_conversations_end_where_the_capacity_does(tiny_target: Any) -> None:
    sample = tiny_target.sampler(batch=1, capacity=20).run([Request((list(range(40, 52)),), 1.0, (1,))], 500)[0]
    assert sample.tokens.size <= 20


def test_draws_follow_the_temperature(tiny_target: Any) -> None:
    """Pearson's chi-square of first tokens against the 64 most likely ones at that temperature."""
    prompt, temperature, count = [40, 41, 42], 0.7, 600
    requests = [Request((prompt,), temperature, (index,)) for index in range(count)]
    samples = tiny_target.sampler(batch=100).run(requests, max_answer=1)
    drawn = np.array([sample.tokens[-1] for sample in samples])
    model = tiny_target.weights.reference_model()
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1] / temperature
    top, ids = logits.softmax(-1).topk(64)
    expected = (top / top.sum() * count).numpy()
    large = expected >= 5
    found = np.array([(drawn == int(id)).sum() for id in ids])
    chi_square = (((found - expected) ** 2) / expected)[large].sum()
    # The 0.9999 quantile is below this for any number of degrees of freedom up to 100 (normal approximation).
    degrees = int(large.sum())
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees) + 10
    assert np.isin(drawn, ids.numpy()).all()


def test_a_damaged_graph_is_one_error(tiny_target: Any, tmp_path: Any) -> None:
    (tmp_path / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(EngineError, match=r"model\.onnx: onnxruntime cannot load it"):
        BatchSampler(tmp_path / "model.onnx", tiny_target.weights.spec, 1, 64, threads=1)
