"""The plots of a comparison: how latencies spread, speed and temperature over time, t(S), memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from edgepipe.pipeline.compare import letter, merged
from edgepipe.pipeline.compare_view import ReportView
from edgepipe.pipeline.markdown_parts import size
from edgepipe.pipeline.statistics import summarise
from edgepipe.pipeline.svg_plot import COLOURS, LEFT, RIGHT, TOP, WIDTH, Plot

# Heights of a report: in it, or above it where points are counted.
_ROW, _COUNT = 34.0, 14.0
# Beyond so many times the 90th percentile of the slowest, points are counted instead of drawn.
_OUTLIER = 3.0


class Figure(NamedTuple):
    """A plot, or two that belong together, with a heading and a sentence on how to read it.

    ``legend``: numbers of the reports in it; none where it names them itself.
    """

    heading: str
    note: str
    svg: str
    legend: tuple[int, ...] = ()


def figures(reports: Sequence[ReportView]) -> list[Figure]:
    """Those that the reports have something for."""
    names = dict.fromkeys(chain.from_iterable(report.rounds_ms for report in reports))
    found = [_latencies(name, reports) for name in names]
    for unit in dict.fromkeys(report.speed_unit for report in reports if any(report.speed)):
        found.append(_speed(unit, reports))
    if any(len(report.curve) > 1 for report in reports):
        found.append(_curve(reports))
    if any(report.memory for report in reports):
        found.append(_memory(reports))
    return found


def _latencies(name: str, reports: Sequence[ReportView]) -> Figure:
    """One row a report: every sample, a box from the 10th to the 90th percentile, a bar at the median."""
    rows = [(index, report.rounds_ms[name]) for index, report in enumerate(reports) if name in report.rounds_ms]
    limit = _OUTLIER * max(summarise(samples)["p90"] for _, samples in rows)
    drawn = [value for _, samples in rows for value in samples if value <= limit]
    height = sum(_ROW + _COUNT * (max(samples) > limit) for _, samples in rows)
    plot = Plot(f"Latency of {name}", (0.0, max(drawn) * 1.02), (0.0, height), height=height)
    plot.axes("ms", None)
    above = height
    for index, samples in rows:
        if more := sum(value > limit for value in samples):
            above -= _COUNT
            plot.text(WIDTH - RIGHT, plot.y(above) - 1, f"{more} up to {max(samples):.0f} ms", "end")
        middle = above - _ROW / 2
        above -= _ROW
        statistics = summarise(samples)
        ordered = sorted(samples)
        box = (ordered[int(0.1 * (len(ordered) - 1))], statistics["p90"])
        plot.text(LEFT - 8, plot.y(middle) + 5, letter(index), "end", "letter")
        plot.rectangle(box, middle, 16.0, f"box s{index % COLOURS}")
        shifted = [(value, middle + 7 * _spread(number)) for number, value in enumerate(samples) if value <= limit]
        plot.points(shifted, index, "dot")
        plot.line([(statistics["p50"], middle + end) for end in (-11, 11)], f"median s{index % COLOURS}")
    return Figure(
        f"Latency of {name}",
        "A dot a sample; the box holds the middle 80\u00a0%, the bar is the median.",
        plot.svg(),
    )


def _spread(number: int) -> float:
    """Shifts between -1 and 1 that keep neighbours apart: the golden ratio's low-discrepancy sequence."""
    return 2 * (number * 0.618034 % 1) - 1


def _speed(unit: str, reports: Sequence[ReportView]) -> Figure:
    """Speed in one unit and, where it was read, temperature, one below the other over the same time."""
    shown = {index: report for index, report in enumerate(reports) if any(report.speed) and report.speed_unit == unit}
    end = _end(list(shown.values()))
    fastest = max(y for report in shown.values() for run in report.speed for _, y in run)
    plot = Plot(f"{unit} over time", (0.0, end), (0.0, fastest * 1.05))
    plot.axes("seconds since the measurement began", unit)
    for index, report in shown.items():
        for run in report.speed:
            plot.line(run, f"thin s{index % COLOURS}")
            plot.points(run, index)
    note = "A line a repetition, prompt after prompt; one that falls as it grows warmer tells of throttling."
    heats = [heat for report in shown.values() for _, heat in report.temperature]
    if not heats:
        note = f"{note} No temperature could be read."
        return Figure(f"Speed over time, {unit}", note, plot.svg(), tuple(shown))
    below = Plot("Temperature over time", (0.0, end), (min(heats) - 3, max(heats) + 3), height=90.0)
    below.axes("seconds since the measurement began", "°C")
    for index, report in shown.items():
        below.line(report.temperature, f"thin s{index % COLOURS}")
        below.points(report.temperature, index)
    return Figure(f"Speed, {unit}, and temperature over time", note, plot.svg() + below.svg(), tuple(shown))


def _end(reports: Sequence[ReportView]) -> float:
    """Seconds at which the last thing was seen."""
    series = [run for report in reports for run in (*report.speed, report.temperature)]
    return max((x for run in series for x, _ in run), default=1.0)


def _curve(reports: Sequence[ReportView]) -> Figure:
    widest = max(width for report in reports for width, _, _ in report.curve)
    top = max(cost for report in reports for _, _, cost in report.curve)
    plot = Plot("Cost of a forward of S tokens", (1.0, float(widest)), (0.0, top * 1.05))
    plot.axes("S, tokens in one forward", "t(S) / t(1)")
    shown = min(float(widest), top)
    plot.line([(1.0, 1.0), (shown, shown)], "diagonal")
    drawn = {index: report.curve for index, report in enumerate(reports) if report.curve}
    for index, curve in drawn.items():
        points = [(float(width), cost) for width, _, cost in curve]
        plot.line(points, f"s{index % COLOURS}")
        plot.points(points, index)
    alone = ", ".join(f"{letter(index)}\u00a0{curve[0][1]:.1f}\u00a0ms" for index, curve in drawn.items())
    note = f"The further below the dashed line, the more guessing ahead can bring. t(1): {alone}."
    return Figure("Cost of a forward of S tokens", note, plot.svg(), tuple(drawn))


def _memory(reports: Sequence[ReportView]) -> Figure:
    """A bar for each quantity and report, quantities apart."""
    names = merged([[name for name, _ in report.memory] for report in reports])
    amounts = [dict(report.memory) for report in reports]
    rows = [(name, index) for name in names for index, found in enumerate(amounts) if name in found]
    heading, bar = 22.0, 19.0
    height = heading * len(names) + bar * len(rows)
    plot = Plot("Memory", (0.0, 1.0), (0.0, height), height=height)
    at, last = 0.0, ""
    for name, index in rows:
        if name != last:
            at, last = at + heading, name
            plot.text(LEFT - 40, TOP + at - 6, name, kind="name")
        largest = max(found.get(name, 0.0) for found in amounts) or 1.0
        share = 0.72 * amounts[index][name] / largest
        middle = at + bar / 2
        plot.text(LEFT - 8, TOP + middle + 5, letter(index), "end", "letter")
        plot.rectangle((0.0, share), height - middle, 12.0, f"bar s{index % COLOURS}")
        plot.text(plot.x(share) + 6, TOP + middle + 4, size(amounts[index][name]))
        at += bar
    return Figure("Memory", "Bars of one kind share a scale.", plot.svg())
