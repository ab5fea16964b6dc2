"""The part of `edgepipe run` that has a microcontroller do the work: parse, call `run_on_board`, print."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from edgepipe.pipeline.board_work import LayerWork

Command = TypeVar("Command", bound=Callable[..., Any])


def device_flags(command: Command) -> Command:
    """Add --device and --baud."""
    device = click.option(
        "--device",
        metavar="DEVICE",
        help="Run where the bundle was deployed: ssh:user@host, termux:user@host, adb:serial, local; "
        "an image also on a board: mcu:PORT, or qemu:BOARD for an emulated one.",
    )
    baud = click.option("--baud", type=click.IntRange(min=1), help="Of the board's serial port.  [115200]")
    return device(baud(command))


def check_device_flags(device: str | None, baud: int | None, image: Path | None, others: dict[str, Any]) -> None:
    """See that they stand with an image, and without ``others``, options of this computer's engines.

    Raises:
        click.UsageError: they do not.
    """
    if image is None and (device or baud):
        raise click.UsageError("--device and --baud belong to an --image FILE")
    if baud and not (device or "").startswith("mcu:"):
        raise click.UsageError("--baud belongs to a --device mcu:PORT")
    given = [name for name, value in others.items() if value]
    if device and given:
        raise click.UsageError(f"--device runs the firmware, --{given[0]} is of an engine here: leave one out")


def image_on_board(bundle: Path, image: Path, device: str, baud: int | None, top_k: int, as_json: bool) -> int:
    """Print what a board says of an image."""
    from edgepipe.pipeline.run_on_board import run_on_board

    found = run_on_board(bundle, image, device, baud=baud, top_k=top_k)
    if as_json:
        click.echo(json.dumps(found.to_json(), ensure_ascii=False))
        return 0
    print_guesses(found)
    click.echo(layer_table(found.layers, found.unit), err=True)
    memory, line = found.memory, found.line
    parts = [
        device,
        f"{found.patches} patch{'es' if found.patches > 1 else ''}",
        str(found.work)
        + (" by an emulator's clock: no time" if found.is_emulated and found.work.us is not None else ""),
        *([] if found.run_ms is None else [f"{found.run_ms:.0f} ms with the line"]),
        f"{line.bytes_sent} bytes sent, {line.bytes_resent} of them again",
        f"arena painted to {memory.arena_peak_bytes} of {found.planned_arena_bytes} bytes planned",
        f"stack to {memory.stack_peak_bytes} of {memory.stack_bytes}",
    ]
    click.echo(" · ".join(parts), err=True)
    return 0


def layer_table(layers: Sequence[LayerWork], unit: str) -> str:
    """A line for each layer: its share, its work, how often it ran, its name."""
    figures = [f"{layer.work.count:,.0f}" for layer in layers]
    width = max(map(len, [unit, *figures]))
    lines = [f" share  {unit:>{width}}  calls  layer"]
    lines += [
        f"{layer.share:6.1%}  {figure:>{width}}  {layer.calls:5}  {layer.layer}"
        for layer, figure in zip(layers, figures, strict=True)
    ]
    return "\n".join(lines)


def print_guesses(found: Any) -> None:
    """The classes of an `ImageAnswer` or a `BoardImageAnswer`, or what else its output is."""
    for guess in found.top:
        click.echo(f"{guess.score:8.4f}  {guess.label or f'class {guess.index}'}")
    if not found.top:
        shape = "x".join(map(str, found.output.shape))
        click.echo(f"{shape} values from {found.output.min():g} to {found.output.max():g}: --json prints them")
