"""Pieces of report.md: numbers, reasons, lists and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from edgepipe.pipeline.gates import MAX_CV
from edgepipe.pipeline.statistics import Summary


def median(summary: Summary) -> str:
    """The median, and a mark if the series spreads too far."""
    cv = summary["cv"]
    return number(summary["p50"]) + (" (!)" if cv is not None and cv > MAX_CV else "")


def number(value: float) -> str:
    """Two decimals below 100, one below 1000, none above."""
    return f"{value:.{2 if value < 100 else 1 if value < 1000 else 0}f}"


def mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"


def size(count: float) -> str:
    """Bytes as people write them."""
    for unit, bytes_ in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count:.0f} bytes"


def why(readings: dict[str, Any], key: str) -> str:
    return f"not readable: {readings['unreadable'][key]}"


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def ratio(summary: Summary) -> str:
    """The median and the spread of ratios."""
    return f"{summary['p50']:.2f} ({summary['min']:.2f} to {summary['max']:.2f})"
