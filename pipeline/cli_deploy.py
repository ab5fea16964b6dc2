"""`edgepipe deploy`: parse, call `edgepipe.pipeline.deploy`, print."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click


@click.command("deploy", short_help="Bring a bundle, and what runs it, to a device.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--device",
    required=True,
    metavar="DEVICE",
    help="ssh:user@host[:port], termux:user@host, adb:serial, or local for this computer.",
)
@click.option(
    "--engine",
    type=click.Choice(["all", "onnx", "litert", "tflite", "executorch"]),
    help="Of those the bundle has files for; all of them, for measure --engine all and run --engine auto.",
)
@click.option(
    "--wheels",
    metavar="FOLDER",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Wheels to install there instead of from a package index, as `pip download -d FOLDER` gathers them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(bundle: Path, device: str, engine: str | None, wheels: Path | None, as_json: bool) -> int:
    """Copy BUNDLE to a device, install edgepipe and one engine there, and replay the golden outputs.

    Broken off anywhere, it goes on when it is typed again; when all is there, nothing is copied. On the device it needs
    Python 3.11 or later (Termux: installed with pkg) and keeps everything in ~/.edgepipe.
    """
    from edgepipe.pipeline.deploy import deploy
    from edgepipe.pipeline.progress import progress

    with progress(f"deploy {bundle.name}") as tell:
        done = deploy(bundle, device, engine=engine, wheels=wheels, progress=tell)
    for warning in done.warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        click.echo(json.dumps(done.to_json()))
        return 0
    click.echo(done.verified)
    environment = "installed" if done.installed else "there already"
    click.echo(
        f"{done.device}: {', '.join(done.engines)} {environment}, {done.copied_bytes / 1e6:.1f} MB copied", err=True
    )
    click.echo(
        f"{done.folder}; from here: {shlex.join(['edgepipe', 'run', str(bundle), '--device', device])}", err=True
    )
    return 0
