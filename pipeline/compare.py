"""The job behind `edgepipe report`: what several reports say of the same things, beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from edgepipe.pipeline.compare_view import Figure, Metric, ReportView, view
from edgepipe.pipeline.gates import MAX_CV

_GROUPS = ("prompt", "vision", "board", "process")

Verdict = Literal["better", "worse", "same"]
_Name = TypeVar("_Name")


@dataclass(frozen=True)
class Cell:
    """What one report says: its figure, the ratio of the medians to the first report's, and which is better.

    ``verdict`` is "same" while the samples of both overlap, or what was read once differs by no more than `MAX_CV`;
    None for the first report, and where neither is better.
    """

    figure: Figure
    ratio: float | None
    verdict: Verdict | None


@dataclass(frozen=True)
class Row:
    """A metric, and a cell for each report: None where a report does not have it."""

    metric: Metric
    cells: list[Cell | None]


@dataclass(frozen=True)
class Comparison:
    """Several reports. ``differences`` are settings that are not the same in all, None where one has none."""

    reports: list[ReportView]
    rows: list[Row]
    differences: dict[str, list[str | None]]

    def to_json(self) -> dict[str, Any]:
        """One object, JSON-ready."""
        return {
            "reports": [
                {"letter": letter(index), "path": str(report.path), "title": report.title, "status": report.status}
                for index, report in enumerate(self.reports)
            ],
            "rows": [
                {**vars(row.metric), "cells": [cell and _cell_json(cell) for cell in row.cells]} for row in self.rows
            ],
            "differences": self.differences,
        }


def compare(paths: Sequence[Path]) -> Comparison:
    """Read reports and compare them with the first.

    Args:
        paths: report.json files, or folders that hold one.

    Raises:
        EdgepipeError: one of them is missing, damaged, or no report.
    """
    reports = [view(path) for path in paths]
    metrics = merged([list(report.figures) for report in reports])
    names = merged([list(report.settings) for report in reports])
    settings = {name: [report.settings.get(name) for report in reports] for name in names}
    return Comparison(
        reports=reports,
        rows=[Row(metric, _cells(metric, reports)) for metric in sorted(metrics, key=_group_order)],
        differences={name: values for name, values in settings.items() if len(set(values)) > 1},
    )


def merged(orders: Sequence[Sequence[_Name]]) -> list[_Name]:
    """All that is named, each once: what only a later order has stands beside its neighbours there, else at the end."""
    merged: list[_Name] = []
    for order in orders:
        place = next((merged.index(name) for name in order if name in merged), len(merged))
        for name in order:
            if name in merged:
                place = merged.index(name) + 1
            else:
                merged.insert(place, name)
                place += 1
    return merged


def _group_order(metric: Metric) -> tuple[int, float]:
    """Prompts by their length, then what is measured once."""
    kind, _, length = metric.group.partition(" ")
    return _GROUPS.index(kind), float(length or 0)


def letter(index: int) -> str:
    """A, B, ... Z, AA, AB, ..."""
    return (letter(index // 26 - 1) if index >= 26 else "") + chr(ord("A") + index % 26)


def _cells(metric: Metric, reports: Sequence[ReportView]) -> list[Cell | None]:
    first = reports[0].figures.get(metric)
    cells: list[Cell | None] = []
    for index, report in enumerate(reports):
        figure = report.figures.get(metric)
        if figure is None:
            cells.append(None)
        elif index == 0 or first is None or not first.median:
            cells.append(Cell(figure, None, None))
        else:
            cells.append(Cell(figure, figure.median / first.median, _verdict(metric, first, figure)))
    return cells


def _verdict(metric: Metric, first: Figure, figure: Figure) -> Verdict | None:
    if metric.better is None:
        return None
    read_once = first.low == first.high and figure.low == figure.high
    if read_once and abs(figure.median - first.median) <= MAX_CV * first.median:
        return "same"
    if figure.low <= first.high and first.low <= figure.high:
        return "same"
    return "better" if (figure.median < first.median) == (metric.better == "lower") else "worse"


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {**vars(cell.figure), "ratio": cell.ratio, "verdict": cell.verdict}
