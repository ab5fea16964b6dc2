"""Waiting for a temperature, on a clock and a thermometer of the test's own."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from edgepipe.devices.readings import Unreadable
from edgepipe.errors import EdgepipeError, RecipeError
from edgepipe.pipeline.cooling import EVERY_S, cool_down


def cool(temperatures: Iterable[float], target: float, limit_s: float = 60.0) -> tuple[float, list[str]]:
    """Seconds waited, and what was said."""
    readings, waits, said = iter(temperatures), [], []
    cool_down(target, limit_s, said.append, lambda: next(readings), waits.append)
    return sum(waits), said


def test_a_cool_device_is_not_kept_waiting() -> None:
    assert cool([50.0], 50.0) == (0, [])


def test_a_warm_one_is() -> None:
    waited, said = cool([70.0, 64.0, 54.9], 55.0)
    assert waited == 2 * EVERY_S
    assert said == ["cooling down: 70.0 °C, to 55 °C", "cooling down: 64.0 °C, to 55 °C"]


def test_one_that_stays_warm_is_told() -> None:
    with pytest.raises(EdgepipeError, match=r"61\.0 °C after 20 s, expected 55: .*--cool-to"):
        cool([61.0] * 100, 55.0, limit_s=20)


def test_one_without_a_thermometer_is_told() -> None:
    def unreadable() -> float:
        raise Unreadable("no zone")

    with pytest.raises(EdgepipeError, match=r"no temperature can be read \(no zone\): leave it out"):
        cool_down(55.0, 60.0, lambda step: None, unreadable)


@pytest.mark.parametrize(("target", "limit_s"), [(math.nan, 60.0), (55.0, math.nan)])
def test_what_no_temperature_is_below_is_not_waited_for(target: float, limit_s: float) -> None:
    with pytest.raises(RecipeError, match="is nan.*: expected numbers"):
        cool([61.0], target, limit_s)
