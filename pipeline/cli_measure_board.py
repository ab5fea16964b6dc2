"""The part of `edgepipe measure` that has a microcontroller do the work: parse, call `measure_board`, print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgepipe.pipeline.cli_deployed import given_flags

if TYPE_CHECKING:
    from edgepipe.pipeline.board_report import BoardReport
    from edgepipe.pipeline.report_schema import Report

_TAKEN = ("output", "repeats", "warmup", "device", "baud", "as_json")


def measure_on_board(
    bundle: Path, device: str, baud: int | None, repeats: int, warmup: int, show: Callable[[str], None]
) -> Report:
    """The report of a firmware.

    Raises:
        click.UsageError: an option is given that is none of a board.
    """
    from edgepipe.pipeline.measure_board import measure_board

    if others := given_flags(_TAKEN):
        raise click.UsageError(f"{others[0]} is an option of an engine, and {device} runs the firmware: leave one out")
    return measure_board(bundle, device, baud=baud, repeats=repeats, warmup=warmup, progress=show)


def print_board(board: BoardReport) -> None:
    """A line of what an image takes, and one of memory."""
    memory, compute = board["memory"], board["compute"]
    if board["latency_ms"] is not None and compute["us"] is not None:
        computed = compute["us"]["statistics"]["p50"] / 1000
        figure = f"{board['latency_ms']['statistics']['p50']:.1f} ms, {computed:.1f} ms of it computing"
    elif compute["instructions"] is not None:
        figure = f"{compute['instructions']['statistics']['p50'] / 1e6:.2f} million instructions, emulated: not a time"
    click.echo(f"image on {board['device']}: {figure}")
    linked = memory["linked_flash_bytes"], memory["linked_ram_bytes"]
    placed = "" if None in linked else f" · flash {linked[0]:,} and RAM {linked[1]:,} bytes linked"
    click.echo(
        f"arena painted to {memory['painted_arena_bytes']:,} of {memory['planned_arena_bytes']:,} bytes planned · "
        f"stack to {memory['painted_stack_bytes']:,} of {memory['stack_bytes']:,}{placed}"
    )
