"""The conditions that a measurement must meet to be trusted. A gate that fails changes the status, never a sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

from edgepipe.devices.android import THERMAL_STATUS
from edgepipe.devices.vcgencmd import NOW, SINCE_BOOT
from edgepipe.pipeline.statistics import Summary

MAX_CV = 0.05
MIN_SAMPLES = 5
MAX_TEMPERATURE_C = 80.0  # where a Raspberry Pi begins to throttle
MAX_RISE_C = 15.0
MIN_CLOCK_SHARE = 0.9
MAX_BACKGROUND_SHARE = 0.1  # of all cores, over the whole measurement
MAX_LOAD_PER_CORE = 0.25  # the 1 min load average before it, where the former cannot be read


class Gate(TypedDict):
    """One condition: ``outcome`` is ``unknown`` where the device does not tell. ``details`` say what was found."""

    gate: str
    limit: str
    outcome: Literal["passed", "failed", "unknown"]
    details: list[str]


class Moment(TypedDict):
    """What was read before a ``step`` of a measurement, ``elapsed_s`` after its start; None if that was impossible."""

    step: str
    elapsed_s: float
    temperature_c: float | None


class Conditions(TypedDict):
    """What surrounded a measurement.

    ``before`` and ``after`` are readings of `edgepipe.devices.probes.device_conditions`; ``elapsed_s`` lies between
    them, and ``process_core_s`` is the CPU time of this process in it, all threads together. ``during`` has a reading
    for each step; a microcontroller has none.
    """

    before: dict[str, Any]
    after: dict[str, Any]
    elapsed_s: float
    process_core_s: float
    during: NotRequired[list[Moment]]


def judge(series: Mapping[str, Summary], conditions: Conditions, cores: int | None) -> list[Gate]:
    """All gates.

    Args:
        series: statistics of the timed series, by a name fit for a message.
        conditions: of the device, before and after.
        cores: of the device, if known.
    """
    before, after = conditions["before"], conditions["after"]
    return [
        variation(series),
        samples(series),
        throttling(before, after),
        temperature(conditions),
        clock(after),
        background(conditions, cores),
    ]


def variation(series: Mapping[str, Summary]) -> Gate:
    """No series spreads by more than `MAX_CV`."""
    limit = f"coefficient of variation at most {MAX_CV:.0%}"
    known = {name: summary["cv"] for name, summary in series.items() if summary["cv"] is not None}
    if not known:
        return gate("variation", limit, "unknown", "a single sample has no spread")
    wide = [f"{name}: {cv:.1%}" for name, cv in known.items() if cv > MAX_CV]
    if wide:
        return gate("variation", limit, "failed", *wide)
    worst = max(known, key=known.__getitem__)
    return gate("variation", limit, "passed", f"widest is {worst}: {known[worst]:.1%}")


def samples(series: Mapping[str, Summary]) -> Gate:
    """Every series has `MIN_SAMPLES` or more."""
    limit = f"at least {MIN_SAMPLES} samples a series"
    fewest = min(summary["count"] for summary in series.values())
    found = f"the shortest series has {fewest}" + (": raise --repeats" if fewest < MIN_SAMPLES else "")
    return gate("samples", limit, "failed" if fewest < MIN_SAMPLES else "passed", found)


def throttling(before: dict[str, Any], after: dict[str, Any]) -> Gate:
    """A Raspberry Pi's firmware neither throttles at the ends of the measurement nor has done so in between."""
    limit = "no under-voltage, capping, throttling or soft temperature limit since boot"
    bits = (before["throttled_bits"], after["throttled_bits"])
    if None in bits:
        return _thermal_status(before, after)
    first, last = bits
    found = [f"{name} at the start" for bit, name in NOW.items() if first >> bit & 1]
    found += [f"{name} at the end" for bit, name in NOW.items() if last >> bit & 1]
    found += [f"{name} during the run" for bit, name in SINCE_BOOT.items() if (last & ~first) >> bit & 1]
    old = [name for bit, name in SINCE_BOOT.items() if first >> bit & 1]
    if old:
        found.append(f"{', '.join(old)} since boot, before the run: another would not show, sudo reboot")
    return gate("throttling", limit, "failed", *found) if found else gate("throttling", limit, "passed", "none")


def _thermal_status(before: dict[str, Any], after: dict[str, Any]) -> Gate:
    """Android, which throttles from a thermal status of light on, does not."""
    limit = "no throttling at the start or the end"
    states = (before.get("thermal_status"), after.get("thermal_status"))
    if None in states:
        return gate("throttling", limit, "unknown", _why("throttled_bits", before, after))
    found = ", ".join(THERMAL_STATUS[min(state, len(THERMAL_STATUS) - 1)] for state in states if state is not None)
    return gate("throttling", limit, "failed" if any(states) else "passed", f"thermal status before and after: {found}")


def temperature(conditions: Conditions) -> Gate:
    """The processor is never hot, and at the end not much hotter than at the start."""
    limit = f"at most {MAX_TEMPERATURE_C:g} °C, a rise of at most {MAX_RISE_C:g} °C"
    before, after = conditions["before"], conditions["after"]
    first, last = before["temperature_c"], after["temperature_c"]
    if first is None or last is None:
        return gate("temperature", limit, "unknown", _why("temperature_c", before, after))
    during = [moment["temperature_c"] for moment in conditions.get("during", ())]
    hottest = max(first, last, *(heat for heat in during if heat is not None))
    failed = hottest > MAX_TEMPERATURE_C or last - first > MAX_RISE_C
    found = f"{first:.1f} °C before, {last:.1f} °C after" + (f", {hottest:.1f} °C at most" if during else "")
    return gate("temperature", limit, "failed" if failed else "passed", found)


def clock(after: dict[str, Any]) -> Gate:
    """The fastest cores still run at full clock when the last sample is taken."""
    limit = f"at least {MIN_CLOCK_SHARE:.0%} of the full clock at the end"
    if after["clocks"] is None:
        return gate("clock", limit, "unknown", _why("clocks", after))
    full = max(policy["full_mhz"] for policy in after["clocks"])
    fastest = [policy for policy in after["clocks"] if policy["full_mhz"] >= MIN_CLOCK_SHARE * full]
    # The governor's view of the clock does not show the throttling of a Raspberry Pi's firmware.
    current = after["arm_clock_mhz"] or max(policy["current_mhz"] for policy in fastest)
    governors = ", ".join(sorted({policy["governor"] for policy in fastest}))
    failed = current < MIN_CLOCK_SHARE * full
    return gate(
        "clock", limit, "failed" if failed else "passed", f"{current:.0f} of {full:.0f} MHz, governor {governors}"
    )


def background(conditions: Conditions, cores: int | None) -> Gate:
    """Other programs leave the cores alone."""
    limit = f"others use at most {MAX_BACKGROUND_SHARE:.0%} of the cores"
    before, after = conditions["before"], conditions["after"]
    if cores is None:
        return gate("background load", limit, "unknown", "the number of cores is not known")
    if before["busy_core_s"] is not None and after["busy_core_s"] is not None:
        others = after["busy_core_s"] - before["busy_core_s"] - conditions["process_core_s"]
        share = max(0.0, others) / (conditions["elapsed_s"] * cores)
        failed = share > MAX_BACKGROUND_SHARE
        return gate("background load", limit, "failed" if failed else "passed", f"others used {share:.0%} of {cores}")
    limit = f"load average before the run at most {MAX_LOAD_PER_CORE} a core"
    load = before["load_average_1min"]
    if load is None:
        return gate("background load", limit, "unknown", _why("busy_core_s", before, after))
    failed = load > MAX_LOAD_PER_CORE * cores
    return gate("background load", limit, "failed" if failed else "passed", f"{load:.2f} on {cores} cores")


def gate(name: str, limit: str, outcome: Literal["passed", "failed", "unknown"], *details: str) -> Gate:
    """A gate of that name; ``details`` say what was found."""
    return Gate(gate=name, limit=limit, outcome=outcome, details=list(details))


def _why(reading: str, *states: dict[str, Any]) -> str:
    """The reason why a reading is missing from one of the states."""
    reason: str = next(state["unreadable"][reading] for state in states if reading in state["unreadable"])
    return reason
