"""A comparison as Markdown, with columns padded so that it reads in a terminal, too."""

from __future__ import annotations

from collections.abc import Sequence

from edgepipe.pipeline.compare import Cell, Comparison, letter
from edgepipe.pipeline.compare_view import Metric, ReportView
from edgepipe.pipeline.gates import MAX_CV
from edgepipe.pipeline.markdown_parts import bullets, number

SIGNS = {"better": "better", "worse": "worse", "same": "~"}
NOTE = (
    "Medians, and their ratio to A. Where the samples of both overlap, or what was read once differs by no more than "
    f"{MAX_CV:.0%}, neither is called better: ~."
)


def comparison_markdown(comparison: Comparison) -> str:
    """The reports, what they measured, and in what they differ."""
    letters = [letter(index) for index in range(len(comparison.reports))]
    parts = [bullets(f"{name}: {headline(report)}" for name, report in zip(letters, comparison.reports, strict=True))]
    rows = [(metric_name(row.metric), *map(cell_text, row.cells)) for row in comparison.rows]
    parts.append(_padded(("", *letters), rows))
    if len(letters) > 1:
        parts.append(NOTE)
        differences = [(name, *(value or "-" for value in values)) for name, values in comparison.differences.items()]
        parts.append("## What differs\n\n" + (_padded(("", *letters), differences) if differences else "Nothing."))
    return "\n\n".join(parts) + "\n"


def headline(report: ReportView) -> str:
    """What a report is of, when it was made, and whether to trust it."""
    said = "" if report.status == "ok" else f", **{report.status}**"
    failed = f" ({', '.join(report.failed)})" if report.failed else ""
    return f"{report.title}, {report.created}{said}{failed}"


def metric_name(metric: Metric) -> str:
    """What was measured, at what, in which unit."""
    return f"{metric.group}: {metric.name}" + (f", {metric.unit}" if metric.unit else "")


def cell_text(cell: Cell | None) -> str:
    """The figure, its ratio to the first report's, and what that means."""
    if cell is None:
        return "-"
    parts = [figure_text(cell.figure.median)]
    if cell.ratio is not None:
        sign = f" {SIGNS[cell.verdict]}" if cell.verdict else ""
        parts.append(f"({cell.ratio:.2f}x{sign})")
    return " ".join(parts)


def figure_text(value: float) -> str:
    """Two decimals for what is small, thousands apart for what is large."""
    return number(value) if value < 1e4 else f"{value:,.0f}"


def _padded(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(header))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in cells
    )
