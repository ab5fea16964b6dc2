"""Batches: every sample once, every prediction beside what the target wrote there."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from edgepipe.exporters.llm.distill.batches import Batch, batches, collate
from edgepipe.exporters.llm.distill.samples import Sample


def test_a_step_is_predicted_from_the_token_before(tiny_samples: list[Sample]) -> None:
    batch = collate(tiny_samples)
    followers = torch.roll(batch.tokens, -1, dims=1)[batch.predicts]
    assert followers.tolist() == [token for sample in tiny_samples for token in sample.tokens[sample.written].tolist()]
    assert batch.next_tokens.tolist() == followers.tolist()
    assert len(batch.teacher_ids) == len(batch.teacher_probabilities) == len(followers)
    assert batch.size == sum(sample.tokens.size for sample in tiny_samples)


@pytest.mark.parametrize("batch_tokens", [1, 100, 250, 10_000])
def test_a_pass_has_every_sample_once(tiny_samples: list[Sample], batch_tokens: int) -> None:
    found: Counter[tuple[int, ...]] = Counter()
    for batch in batches(tiny_samples, batch_tokens, (0, 0)):
        assert batch.tokens.numel() <= batch_tokens or len(batch.tokens) == 1
        found.update(_texts(batch))
    assert found == Counter(tuple(sample.tokens.tolist()) for sample in tiny_samples)


def test_the_seed_draws_the_order(tiny_samples: list[Sample]) -> None:
    def order(seed: tuple[int, ...]) -> list[list[tuple[int, ...]]]:
        return [_texts(batch) for batch in batches(tiny_samples, 150, seed)]

    assert order((0, 0)) == order((0, 0))
    assert order((0, 0)) != order((0, 1))


def _texts(batch: Batch) -> list[tuple[int, ...]]:
    """The texts of a batch: a text ends with a token that the target wrote, which the last prediction tells."""
    ends = [int(row.nonzero().max()) + 2 for row in batch.predicts]
    return [tuple(row[:end].tolist()) for row, end in zip(batch.tokens, ends, strict=True)]
