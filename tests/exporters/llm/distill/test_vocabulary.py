"""The trimmed vocabulary: the tokens that the target expects most often."""

from __future__ import annotations

import numpy as np

from edgepipe.exporters.llm.distill.samples import Sample
from edgepipe.exporters.llm.distill.vocabulary import coverage, frequent_tokens


def sample(tokens: list[int], teacher: list[dict[int, float]]) -> Sample:
    """A prompt of one token, then ``tokens``."""
    return Sample(
        np.array([0, *tokens], np.int32),
        np.array([False] + [True] * len(tokens)),
        np.array([list(step) for step in teacher], np.int32),
        np.array([list(step.values()) for step in teacher], np.float16),
    )


# Expected counts: 7: 0.9 + 0.25 + 0.5, 3: 0.5 + 0.25, 9: 0.75, 5: 0.1
SAMPLES = [
    sample([7, 3], [{7: 0.9, 5: 0.1}, {3: 0.5, 9: 0.5}]),
    sample([9, 7], [{3: 0.25, 7: 0.25}, {7: 0.5, 9: 0.25}]),
]


def test_the_most_expected_tokens_are_kept_in_order_of_their_ids() -> None:
    assert frequent_tokens(SAMPLES, 1, 20).tolist() == [7]
    assert frequent_tokens(SAMPLES, 3, 20).tolist() == [3, 7, 9]
    assert frequent_tokens(SAMPLES, 4, 20).tolist() == [3, 5, 7, 9]


def test_tokens_that_must_be_there_come_first() -> None:
    assert frequent_tokens(SAMPLES, 2, 20, always=(19,)).tolist() == [7, 19]


def test_the_least_ids_fill_up() -> None:
    found = frequent_tokens(SAMPLES, 6, 20)
    assert found.tolist() == [0, 1, 3, 5, 7, 9]
    assert found.dtype == np.int32
    assert frequent_tokens(SAMPLES, 100, 20).tolist() == list(range(20))


def test_coverage_is_the_share_of_written_tokens() -> None:
    assert coverage(SAMPLES, np.array([7, 9])) == 0.75
