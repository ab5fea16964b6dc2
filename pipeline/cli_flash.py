"""`edgepipe flash`: parse, call `edgepipe.pipeline.flash`, print."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click


@click.command("flash", short_help="Write a bundle's firmware into the flash of a board.")
@click.argument("source", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option("--board", metavar="NAME", help="What a program is for, if one is given instead of a bundle.")
@click.option("--baud", type=click.IntRange(min=1), help="Of the board's serial port, from 115200 up.  [115200]")
@click.option("--dry-run", is_flag=True, help="Print the command that writes it, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(source: Path, board: str | None, baud: int | None, dry_run: bool, as_json: bool) -> None:
    """Build the firmware in BUNDLE, if need be, and write it with the board's usual tool.

    That is st-flash, openocd or picotool, as devices/boards.toml says. BUNDLE may also be an ELF file, with --board.
    Building compiles the C source in the bundle, with edgepipe's own Makefile; nothing else in the bundle is run.

    \b
    edgepipe flash person
    edgepipe flash person --baud 921600
    edgepipe flash firmware.elf --board stm32f746
    """
    from edgepipe.pipeline.flash import flash

    done = flash(source, board=board, baud=baud, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps(done.to_json(), ensure_ascii=False))
    elif dry_run:
        click.echo(shlex.join(done.command))
    else:
        click.echo(f"{done.flash_bytes} bytes written to {done.board} by {done.command[0]}")
