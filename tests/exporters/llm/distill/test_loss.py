"""Losses and acceptance against direct computation, token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from edgepipe.exporters.llm.distill.loss import OutputIds, acceptances, distillation_loss

OUTPUT_IDS = np.array([2, 5, 6, 11], np.int32)
TEACHER = torch.tensor([[5, 3, 11], [3, 2, 6], [11, 5, 2]])  # 3 is not among the draft's tokens
PROBABILITIES = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.25, 0.125], [0.4, 0.3, 0.2]])
LOGITS = torch.tensor([[0.0, 2.0, -1.0, 0.5], [1.0, 0.0, 0.0, 0.0], [3.0, 0.0, 1.0, 2.0]])


def q(step: int, token: int) -> float:
    """The draft's probability of a token."""
    weights = [math.exp(value) for value in LOGITS[step].tolist()]
    return weights[OUTPUT_IDS.tolist().index(token)] / sum(weights)


def direct(hard_share: float) -> float:
    total = 0.0
    for step in range(3):
        pairs = list(zip(TEACHER[step].tolist(), PROBABILITIES[step].tolist(), strict=True))
        soft = -sum(p * math.log(q(step, token)) for token, p in pairs if token != 3)
        best = pairs[0][0]
        hard = 0.0 if best == 3 else -math.log(q(step, best))
        total += (1 - hard_share) * soft + hard_share * hard
    return total / 3


def teacher() -> torch.Tensor:
    return OutputIds(OUTPUT_IDS, vocab_size=12).find(TEACHER)


def test_token_ids_are_found_among_the_outputs() -> None:
    assert teacher().tolist() == [[1, -1, 3], [-1, 0, 2], [3, 1, 0]]


@pytest.mark.parametrize("hard_share", [0.0, 0.3, 1.0])
def test_loss_is_the_cross_entropy_computed_directly(hard_share: float) -> None:
    found = distillation_loss(LOGITS, teacher(), PROBABILITIES, hard_share).item()
    assert found == pytest.approx(direct(hard_share), rel=1e-6)


def test_a_token_that_the_draft_cannot_guess_moves_nothing() -> None:
    logits = LOGITS.clone().requires_grad_()
    distillation_loss(logits[1:2], teacher()[1:2], PROBABILITIES[1:2], hard_share=1.0).backward()
    assert logits.grad is not None
    assert not logits.grad.any()


def test_acceptance_is_agreement_and_the_overlap_of_both_distributions() -> None:
    greedy, sampled = acceptances(LOGITS, teacher(), PROBABILITIES)
    assert greedy.tolist() == [1.0, 0.0, 0.0]
    for step in range(3):
        pairs = zip(TEACHER[step].tolist(), PROBABILITIES[step].tolist(), strict=True)
        expected = sum(min(p, q(step, token)) for token, p in pairs if token != 3)
        assert sampled[step].item() == pytest.approx(expected, rel=1e-5)
