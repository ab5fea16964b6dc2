"""The tokens that a draft can guess: the target's most frequent ones (FR-Spec, Zhao et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgepipe.exporters.llm.distill.samples import Sample


def frequent_tokens(samples: Iterable[Sample], size: int, vocab_size: int, always: Sequence[int] = ()) -> np.ndarray:
    """The ``size`` tokens that the target expects most often, and ``always`` among them.

    A token's frequency is the sum of the probabilities that the target gave it, which is known better than how often it
    was drawn. Where fewer tokens were ever likely, those with the least ids fill up: a tokenizer learnt them first.

    Returns:
        int32 ``[size]``, ascending.
    """
    frequencies = np.zeros(vocab_size)
    for sample in samples:
        np.add.at(frequencies, sample.teacher_ids, sample.teacher_probabilities.astype(np.float64))
    frequencies[list(always)] = np.inf
    order = np.argsort(-frequencies, kind="stable")
    return np.sort(order[: min(size, vocab_size)]).astype(np.int32)


def coverage(samples: Iterable[Sample], token_ids: np.ndarray) -> float:
    """The share of what the target wrote that ``token_ids`` has."""
    written = np.concatenate([sample.tokens[sample.written] for sample in samples])
    return float(np.isin(written, token_ids).mean())
