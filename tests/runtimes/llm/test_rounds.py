"""What rounds come to, by counting on paper."""

from __future__ import annotations

import pytest

from edgepipe.runtimes.llm.generate import Generation
from edgepipe.runtimes.llm.rounds import Round, speculation, time_split

ROUNDS = [
    Round([1, 2, 3, 4], 3, 3, 10, 200, 30, 4, "model"),
    Round([5], 3, 0, 10, 200, 30, 4, "model"),
    Round([6, 7], 2, 1, 0, 150, 30, 4, "lookup"),
    Round([8], 0, 0, 0, 100, 20, 0),
    Round([9], 0, 0, 0, 80, 20, 0),
]


def test_acceptance_by_position_leaves_out_what_follows_a_rejection() -> None:
    found = speculation(ROUNDS)
    assert found["by_position"] == [
        {"checked": 3, "accepted": 2},
        {"checked": 2, "accepted": 1},
        {"checked": 1, "accepted": 1},
    ]


def test_guesses_by_drafter_and_rounds_by_guesses() -> None:
    found = speculation(ROUNDS)
    assert found["by_drafter"] == {
        "lookup": {"checked": 2, "accepted": 1},
        "model": {"checked": 6, "accepted": 3},
    }
    assert found["gamma_histogram"] == {"0": 2, "2": 1, "3": 2}
    assert speculation(ROUNDS[3:]) == {"gamma_histogram": {"0": 2}, "by_position": [], "by_drafter": {}}


def test_time_split_sums_to_one() -> None:
    split = time_split(ROUNDS, 1000)
    assert split == pytest.approx({"draft": 0.02, "verify": 0.73, "sample": 0.13, "kv": 0.012, "other": 0.108})
    assert Generation(1, rounds=ROUNDS).time_split == pytest.approx(
        {"draft": 20 / 892, "verify": 730 / 892, "sample": 130 / 892, "kv": 12 / 892, "other": 0}
    )
    assert Generation(1).time_split is None


def test_speedup_is_estimated_from_plain_rounds_of_the_same_run() -> None:
    # 9 tokens at the median of 120 and 100 each, in 244 + 244 + 184 + 120 + 100
    assert Generation(1, rounds=ROUNDS).estimated_speedup == pytest.approx(9 * 110 / 892)
    assert Generation(1, rounds=ROUNDS[:3]).estimated_speedup is None, "no plain round"
    assert Generation(1, rounds=ROUNDS[3:]).estimated_speedup is None, "nothing guessed"
