"""`edgepipe plan`: parse, call `edgepipe.pipeline.plan`, print."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgepipe.pipeline.byte_size import ByteSize

if TYPE_CHECKING:
    from rich.table import Table

    from edgepipe.pipeline.plan import Planning


@click.command("plan", short_help="Plan how a vision model fits into a microcontroller's memory.")
@click.argument("model")
@click.option("--sram", type=ByteSize(), help="SRAM of the microcontroller, as in 192K.")
@click.option("--flash", type=ByteSize(), help="Its flash for weights and requantisation tables, as in 1M.")
@click.option("--board", help="A board that has so much, as in nrf52840; --sram and --flash count before it.")
@click.option(
    "--mode",
    type=click.Choice(["streamed", "resident"]),
    default="streamed",
    show_default=True,
    help="Whether windows of the image come in one by one, or the image lies in SRAM.",
)
@click.option(
    "--reserve", type=ByteSize(), default="8K", show_default=True, help="SRAM kept for the stack and the like."
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw memory over layers into this file, as out.png.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(
    model: str,
    sram: int | None,
    flash: int | None,
    board: str | None,
    mode: str,
    reserve: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Find where to split MODEL, and into how many patches, so that it runs in little SRAM.

    MODEL is FILE.tflite (int8), FILE.onnx, FILE.pt2, module.py:factory, digits, or a built-in one like mobilenet_v2 or
    mobilenet_v2:0.35:144. The plan with the fewest multiply-accumulates (to the percent) of those that fit is chosen.
    """
    from edgepipe.pipeline import plan as job
    from edgepipe.pipeline.plan_picture import check_drawable, draw

    if plot is not None:
        check_drawable(plot)
    budget = job.Budget.of(sram, flash, board, reserve)
    planning = job.plan(model, budget, "resident" if mode == "resident" else "streamed")
    if plot is not None:
        draw(planning, plot)
    if as_json:
        click.echo(json.dumps(job.as_json(planning), ensure_ascii=False))
    else:
        _print(planning)


def _print(planning: Planning) -> None:
    from rich.console import Console

    from edgepipe.exporters.vision.search import describe, kib, model_flash_bytes
    from edgepipe.pipeline.model_card import tflite_micro_arenas

    console = Console(highlight=False)
    console.print(_layer_table(planning))
    console.print(_plan_table(planning))
    budget, best, whole = planning.budget, planning.plans[0], planning.whole
    flash = "" if budget.flash is None else f" of {kib(budget.flash)}"
    if best.patches is None:
        click.echo(f"plan    {describe(best)}, in {kib(best.arena_bytes)}")
    else:
        click.echo(f"plan    {describe(best)}: {kib(best.arena_bytes)} where the whole takes {kib(whole.arena_bytes)}")
    click.echo(f"SRAM    {kib(budget.sram)}, of which {kib(budget.reserve)} are kept for the stack and the like")
    click.echo(
        f"flash   {kib(model_flash_bytes(planning.graph))}{flash} for weights and requantisation tables; "
        "code, and all else that a .tflite file holds, come on top"
    )
    click.echo("The arena above is that of edgepipe's C runtime, runtimes/mcu, where operators work in place.")
    click.echo(tflite_micro_arenas(asdict(planning.tflite_micro.for_device())))
    for note in planning.tflite_micro.notes():
        click.echo(f"note    {note}")
    for note in planning.source.notes:
        click.echo(f"note    {note}")


def _layer_table(planning: Planning) -> Table:
    from rich.table import Table

    table = Table(title=f"{planning.source.name}: KiB of the arena in use (edgepipe's C runtime)", title_justify="left")
    table.add_column("node", justify="right")
    table.add_column("operator")
    table.add_column("output")
    table.add_column("largest tile")
    table.add_column("whole", justify="right")
    table.add_column("planned", justify="right")
    for layer in planning.layers:
        table.add_row(
            str(layer.node),
            layer.operator,
            _by(layer.output[1:]),
            _by(layer.tile[1:]) if layer.tile else "",
            f"{layer.whole_bytes / 1024:,.1f}",
            f"{layer.planned_bytes / 1024:,.1f}",
        )
    return table


def _plan_table(planning: Planning) -> Table:
    from rich.table import Table

    from edgepipe.pipeline.plan import stage_overhead

    macs = planning.graph.macs
    table = Table(title="the whole model, the chosen plan, the next best", title_justify="left")
    for column in ("patches", "after node", "window", "arena KiB", "MACs", "halo", "of stage", "graphs"):
        table.add_column(column, justify="right")
    for plan in [planning.whole, *(plan for plan in planning.plans if plan.patches)]:
        chosen = plan is planning.plans[0] or (plan.patches, planning.plans[0].patches) == (None, None)
        table.add_row(
            _by((plan.patches.rows, plan.patches.columns)) if plan.patches else "none",
            str(plan.patches.split - 1) if plan.patches else "",
            _by(plan.window),
            f"{plan.arena_bytes / 1024:,.1f}",
            f"{plan.macs / 1e6:,.1f}M",
            f"{plan.macs / max(macs, 1) - 1:+.1%}",
            f"{stage_overhead(planning.graph, plan):+.1%}",
            str(plan.tile_graphs or ""),
            style="bold" if chosen else None,
        )
    return table


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))
