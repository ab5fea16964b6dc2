"""`edgepipe doctor`: parse, call `edgepipe.pipeline.doctor`, print."""

from __future__ import annotations

import json

import click


@click.command("doctor", short_help="Say what keeps a device from running well, and how to mend it.")
@click.option(
    "--device",
    metavar="DEVICE",
    help="ssh:user@host[:port], termux:user@host, adb:serial, or local for what was deployed here.  [this computer]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, all facts included.")
def command(device: str | None, as_json: bool) -> int:
    """Examine this computer, or a DEVICE: system, memory, processor, engines, clocks, heat, and known traps.

    Nothing is installed on a device. The exit code is 1 where something will not work, 0 where there is only advice.
    """
    from edgepipe.pipeline.doctor import doctor

    examination = doctor(device)
    if as_json:
        click.echo(json.dumps(examination.to_json(), ensure_ascii=False))
        return 0 if examination.works else 1
    width = max(len(finding.check) for finding in examination.findings)
    for finding in examination.findings:
        click.echo(f"{finding.outcome:<7}  {finding.check:<{width}}  {finding.found}")
        if finding.remedy:
            click.echo(f"{'':<7}  {'':<{width}}  -> {finding.remedy}")
    return 0 if examination.works else 1
