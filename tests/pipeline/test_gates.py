"""Each gate at both sides of its limit, with conditions made up for it."""

from __future__ import annotations

from typing import Any

import pytest

from edgepipe.pipeline import gates
from edgepipe.pipeline.gates import Conditions, judge
from edgepipe.pipeline.statistics import summarise

READINGS = ("clocks", "arm_clock_mhz", "busy_core_s", "throttled_bits", "temperature_c", "load_average_1min")
READINGS += ("thermal_status",)


def state(**readings: Any) -> dict[str, Any]:
    values = {name: readings.get(name) for name in READINGS}
    return {**values, "unreadable": {name: f"no {name} here" for name, value in values.items() if value is None}}


def policy(current: float, full: float) -> dict[str, Any]:
    return {"cpus": "0", "governor": "schedutil", "current_mhz": current, "full_mhz": full, "hardware_max_mhz": full}


def conditions(before: dict[str, Any], after: dict[str, Any], own: float = 0.0) -> Conditions:
    return Conditions(before=before, after=after, elapsed_s=10.0, process_core_s=own)


STEADY = summarise([10.0, 10.1, 9.9, 10.0, 10.05])


def test_variation_names_every_series_that_spreads_too_far() -> None:
    wide = summarise([10.0, 12.0, 8.0, 10.0, 10.0])  # std = sqrt(2), cv 14.1 %
    gate = gates.variation({"a": STEADY, "b": wide})
    assert gate["outcome"] == "failed"
    assert gate["details"] == ["b: 14.1%"]
    gate = gates.variation({"a": STEADY})
    assert gate["outcome"] == "passed"
    assert gates.variation({"a": summarise([1.0])})["outcome"] == "unknown"


def test_samples() -> None:
    assert gates.samples({"a": STEADY})["outcome"] == "passed"
    gate = gates.samples({"a": STEADY, "b": summarise([10.0] * 4)})
    assert gate["outcome"] == "failed"
    assert gate["details"] == ["the shortest series has 4: raise --repeats"]


@pytest.mark.parametrize(
    ("before", "after", "outcome", "found"),
    [
        (0x0, 0x0, "passed", "none"),
        (0x0, 0x1, "failed", "under-voltage at the end"),
        (0x4, 0x0, "failed", "throttled at the start"),
        (0x0, 0x80000, "failed", "soft temperature limit during the run"),
        (0x20000, 0x60000, "failed", "throttled during the run"),
        (0x20000, 0x20000, "failed", "Arm frequency capped since boot"),
        (None, 0x0, "unknown", "no throttled_bits here"),
        (0x0, None, "unknown", "no throttled_bits here"),
    ],
)
def test_throttling(before: int | None, after: int | None, outcome: str, found: str) -> None:
    gate = gates.throttling(state(throttled_bits=before), state(throttled_bits=after))
    assert gate["outcome"] == outcome
    assert found in "; ".join(gate["details"])


@pytest.mark.parametrize(
    ("before", "after", "outcome"), [(0, 0, "passed"), (0, 1, "failed"), (3, 0, "failed"), (None, 0, "unknown")]
)
def test_android_throttles_from_a_light_thermal_status_on(before: int | None, after: int | None, outcome: str) -> None:
    gate = gates.throttling(state(thermal_status=before), state(thermal_status=after))
    assert gate["outcome"] == outcome


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (50.0, 65.0, "passed"),
        (50.0, 65.1, "failed"),
        (75.0, 80.0, "passed"),
        (75.0, 80.1, "failed"),
        (60.0, 45.0, "passed"),
        (None, 45.0, "unknown"),
    ],
)
def test_temperature(before: float | None, after: float, outcome: str) -> None:
    gate = gates.temperature(conditions(state(temperature_c=before), state(temperature_c=after)))
    assert gate["outcome"] == outcome


@pytest.mark.parametrize(("hottest", "outcome"), [(80.0, "passed"), (84.0, "failed"), (None, "passed")])
def test_the_hottest_moment_counts(hottest: float | None, outcome: str) -> None:
    surrounded = conditions(state(temperature_c=70.0), state(temperature_c=72.0))
    surrounded["during"] = [gates.Moment(step="prompt of 32", elapsed_s=1.0, temperature_c=hottest)]
    assert gates.temperature(surrounded)["outcome"] == outcome


@pytest.mark.parametrize(
    ("policies", "arm_clock", "outcome"),
    [
        ([policy(2160, 2400)], None, "passed"),
        ([policy(2159, 2400)], None, "failed"),
        # little cores at full speed do not make up for big ones that are not
        ([policy(1800, 1800), policy(1500, 2400)], None, "failed"),
        # of equal cores one that works is enough: the others may be idle
        ([policy(2400, 2400), policy(600, 2400)], None, "passed"),
        # the kernel asks for a clock that the firmware does not give
        ([policy(2400, 2400)], 1500.0, "failed"),
    ],
)
def test_clock(policies: list[dict[str, Any]], arm_clock: float | None, outcome: str) -> None:
    assert gates.clock(state(clocks=policies, arm_clock_mhz=arm_clock))["outcome"] == outcome


def test_clock_without_cpufreq() -> None:
    gate = gates.clock(state())
    assert gate["outcome"] == "unknown"
    assert gate["details"] == ["no clocks here"]


@pytest.mark.parametrize(("others", "outcome"), [(0.0, "passed"), (3.9, "passed"), (4.1, "failed"), (-0.5, "passed")])
def test_background_load_is_what_others_use(others: float, outcome: str) -> None:
    """10 s on 4 cores: a tenth is 4 core seconds. This process's own 15 do not count."""
    before, after = state(busy_core_s=100.0), state(busy_core_s=115.0 + others)
    assert gates.background(conditions(before, after, own=15.0), 4)["outcome"] == outcome


@pytest.mark.parametrize(("load", "outcome"), [(1.0, "passed"), (1.1, "failed"), (None, "unknown")])
def test_background_load_by_load_average(load: float | None, outcome: str) -> None:
    gate = gates.background(conditions(state(load_average_1min=load), state()), 4)
    assert gate["outcome"] == outcome


def test_a_device_that_tells_nothing_fails_no_gate() -> None:
    found = judge({"a": STEADY}, conditions(state(), state()), None)
    assert [gate["outcome"] for gate in found] == ["passed", "passed", "unknown", "unknown", "unknown", "unknown"]
    assert all(gate["details"] for gate in found)
