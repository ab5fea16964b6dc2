"""Statistics against scipy, the standard library, and arithmetic."""

from __future__ import annotations

import statistics as stdlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepipe.pipeline.statistics import summarise

mstats = pytest.importorskip("scipy.stats.mstats")

samples = st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=50)


def test_by_hand() -> None:
    summary = summarise([4.0, 1.0, 3.0, 2.0, 10.0])
    assert summary["count"] == 5
    assert summary["mean"] == 4.0
    assert summary["std"] == pytest.approx(12.5**0.5)  # (0 + 9 + 1 + 4 + 36) / 4
    assert summary["cv"] == pytest.approx(12.5**0.5 / 4)
    assert (summary["min"], summary["p50"], summary["max"]) == (1.0, 3.0, 10.0)
    assert summary["p90"] == pytest.approx(4 + 0.6 * 6)  # position 0.9 * 4 = 3.6
    assert summary["p99"] == pytest.approx(4 + 0.96 * 6)


@given(samples)
def test_against_other_implementations(values: list[float]) -> None:
    summary = summarise(values)
    assert summary["mean"] == pytest.approx(stdlib.fmean(values))
    assert summary["std"] == pytest.approx(stdlib.stdev(values), abs=1e-9 * max(values))
    assert summary["p50"] == pytest.approx(stdlib.median(values))
    # scipy's alphap = betap = 1 is definition 7 of Hyndman and Fan.
    p90, p99 = mstats.mquantiles(values, [0.9, 0.99], alphap=1, betap=1)
    assert summary["p90"] == pytest.approx(p90)
    assert summary["p99"] == pytest.approx(p99)


def test_a_single_sample_has_no_spread() -> None:
    summary = summarise([7.0])
    assert summary["std"] is None
    assert summary["cv"] is None
    assert summary["p50"] == summary["p99"] == 7.0


def test_a_mean_of_zero_has_no_coefficient() -> None:
    assert summarise([0.0, 0.0])["cv"] is None
