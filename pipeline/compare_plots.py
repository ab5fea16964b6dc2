"""The plots of a comparison: how latencies spread, speed and temperature over time, t(S), memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from edgepipe.pipeline.compare import letter
from edgepipe.pipeline.compare_view import ReportView
from edgepipe.pipeline.markdown_parts import size
from edgepipe.pipeline.statistics import summarise
from edgepipe.pipeline.svg_plot import COLOURS, LEFT, RIGHT, TOP, WIDTH, Plot

_ROW = 34.0
# Beyond so many times the 90th percentile of the slowest, points are counted instead of drawn.
_OUTLIER = 3.0


class Figure(NamedTuple):
    """A plot, or two that belong together, with a heading and a sentence on how to read it.

    ``has_letters``: its series are named in it, and need no legend.
    """

    heading: str
    note: str
    svg: str
    has_letters: bool = False


def figures(reports: Sequence[ReportView]) -> list[Figure]:
    """Those that the reports have something for."""
    names = dict.fromkeys(chain.from_iterable(report.rounds_ms for report in reports))
    found = [_latencies(name, reports) for name in names]
    if any(chain.from_iterable(report.speed for report in reports)):
        found.append(_speed(reports))
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
    plot = Plot(f"Latency of {name}", (0.0, max(drawn) * 1.02), (0.0, float(len(rows))), height=_ROW * len(rows))
    plot.axes("ms", None)
    for place, (index, samples) in enumerate(rows):
        middle = len(rows) - place - 0.5
        statistics = summarise(samples)
        ordered = sorted(samples)
        box = (ordered[int(0.1 * (len(ordered) - 1))], statistics["p90"])
        plot.text(LEFT - 8, plot.y(middle) + 5, letter(index), "end", "letter")
        plot.rectangle(box, middle, 16.0, f"box s{index % COLOURS}")
        shifted = [(value, middle + 0.2 * _spread(number)) for number, value in enumerate(samples) if value <= limit]
        plot.points(shifted, index, "dot")
        bar = [(statistics["p50"], middle + end) for end in (-0.33, 0.33)]
        plot.line(bar, f"median s{index % COLOURS}")
        if more := len(samples) - len(shifted):
            plot.text(WIDTH - RIGHT, plot.y(middle) - 10, f"{more} up to {max(samples):.0f} ms", "end")
    return Figure(
        f"Latency of {name}",
        "A dot a sample; the box holds the middle 80 %, the bar is the median.",
        plot.svg(),
        has_letters=True,
    )


def _spread(number: int) -> float:
    """Shifts between -1 and 1 that keep neighbours apart: the golden ratio's low-discrepancy sequence."""
    return 2 * (number * 0.618034 % 1) - 1


def _speed(reports: Sequence[ReportView]) -> Figure:
    """Speed and, where it was read, temperature, one below the other over the same time."""
    points = [point for report in reports for run in report.speed for point in run]
    # One report may hold images where another holds text.
    units = " or ".join(dict.fromkeys(report.speed_unit for report in reports if any(report.speed)))
    plot = Plot(f"{units} over time", (0.0, _end(reports)), (0.0, max(y for _, y in points) * 1.05))
    plot.axes("seconds since the measurement began", units)
    for index, report in enumerate(reports):
        for run in report.speed:
            plot.line(run, f"thin s{index % COLOURS}")
            plot.points(run, index)
    note = "A line a repetition, prompt after prompt; one that falls as it grows warmer tells of throttling."
    heats = [heat for report in reports for _, heat in report.temperature]
    if not heats:
        return Figure(f"{units} over time", f"{note} No temperature could be read.", plot.svg())
    below = Plot("Temperature over time", (0.0, _end(reports)), (min(heats) - 3, max(heats) + 3), height=90.0)
    below.axes("seconds since the measurement began", "°C")
    for index, report in enumerate(reports):
        below.line(report.temperature, f"thin s{index % COLOURS}")
        below.points(report.temperature, index)
    return Figure(f"{units} and temperature over time", note, plot.svg() + below.svg())


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
    for index, report in enumerate(reports):
        points = [(float(width), cost) for width, _, cost in report.curve]
        if points:
            plot.line(points, f"s{index % COLOURS}")
            plot.points(points, index)
    alone = ", ".join(
        f"{letter(index)} {report.curve[0][1]:.1f} ms" for index, report in enumerate(reports) if report.curve
    )
    note = f"The further below the dashed line, the more guessing ahead can bring. t(1): {alone}."
    return Figure("Cost of a forward of S tokens", note, plot.svg())


def _memory(reports: Sequence[ReportView]) -> Figure:
    """A bar for each quantity and report, quantities apart."""
    names = list(dict.fromkeys(name for report in reports for name, _ in report.memory))
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
    return Figure("Memory", "Bars of one kind share a scale.", plot.svg(), has_letters=True)
