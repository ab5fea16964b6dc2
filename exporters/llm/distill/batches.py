"""Samples as batches for training: of about as many tokens each, in an order that the seed draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from edgepipe.exporters.llm.distill.samples import Sample

# Samples that are sorted by length together: little is padded, and batches still differ from pass to pass.
SORTED_TOGETHER = 512


@dataclass(frozen=True)
class Batch:
    """Texts padded on the right, which causal attention needs no mask for, and what follows where the target wrote.

    Attributes:
        tokens: int64 ``[B, S]``.
        predicts: bool ``[B, S]``, the tokens after which the target wrote the next one; ``W`` of them.
        next_tokens: int64 ``[W]``, what it wrote.
        teacher_ids: int64 ``[W, K]``.
        teacher_probabilities: float32 ``[W, K]``.
        size: tokens without padding.
        features: float32 ``[B, S, hidden]``, the target's; None where samples have none.
    """

    tokens: torch.Tensor
    predicts: torch.Tensor
    next_tokens: torch.Tensor
    teacher_ids: torch.Tensor
    teacher_probabilities: torch.Tensor
    size: int
    features: torch.Tensor | None = None


def collate(samples: Sequence[Sample]) -> Batch:
    """One batch of ``samples``. The first token of each is a prompt's."""
    longest = max(sample.tokens.size for sample in samples)
    tokens = torch.zeros(len(samples), longest, dtype=torch.int64)
    predicts = torch.zeros(len(samples), longest, dtype=torch.bool)
    for row, sample in enumerate(samples):
        tokens[row, : sample.tokens.size] = torch.from_numpy(sample.tokens)
        predicts[row, : sample.tokens.size - 1] = torch.from_numpy(sample.written[1:])
    return Batch(
        tokens,
        predicts,
        torch.from_numpy(np.concatenate([sample.tokens[sample.written] for sample in samples])).long(),
        torch.from_numpy(np.concatenate([sample.teacher_ids for sample in samples])).long(),
        torch.from_numpy(np.concatenate([sample.teacher_probabilities for sample in samples])).float(),
        sum(sample.tokens.size for sample in samples),
        _padded_features(samples, longest),
    )


def _padded_features(samples: Sequence[Sample], longest: int) -> torch.Tensor | None:
    if samples[0].features is None:
        return None
    features = torch.zeros(len(samples), longest, samples[0].features.shape[1])
    for row, sample in enumerate(samples):
        assert sample.features is not None
        features[row, : sample.tokens.size] = torch.from_numpy(sample.features.astype(np.float32))
    return features


def batches(samples: Sequence[Sample], batch_tokens: int, seed: tuple[int, ...]) -> Iterator[Batch]:
    """All samples once, in batches of at most ``batch_tokens``, padding included; a longer sample is a batch alone."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(samples))
    groups: list[list[Sample]] = []
    for start in range(0, len(order), SORTED_TOGETHER):
        group: list[Sample] = []
        chunk = [samples[index] for index in order[start : start + SORTED_TOGETHER]]
        for sample in sorted(chunk, key=lambda sample: sample.tokens.size):
            if group and (len(group) + 1) * sample.tokens.size > batch_tokens:
                groups.append(group)
                group = []
            group.append(sample)
        groups.append(group)
    for index in random.permutation(len(groups)):
        yield collate(groups[index])
