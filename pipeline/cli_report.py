"""`edgepipe report`: parse, call `edgepipe.pipeline.compare`, print."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("report", short_help="Compare reports that measure has written.")
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the comparison with plots, too, as one page that needs nothing else.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of Markdown.")
def command(reports: tuple[Path, ...], html: Path | None, as_json: bool) -> int:
    """Compare REPORTS, report.json files or their folders, with the first of them."""
    from edgepipe.pipeline.compare import compare
    from edgepipe.pipeline.compare_markdown import comparison_markdown
    from edgepipe.pipeline.compare_page import comparison_page
    from edgepipe.pipeline.whole_file import write_whole

    comparison = compare(reports)
    if html is not None:
        write_whole(html, comparison_page(comparison).encode(), "--html")
    if as_json:
        click.echo(json.dumps(comparison.to_json(), ensure_ascii=False))
    else:
        click.echo(comparison_markdown(comparison), nl=False)
        if html is not None:
            click.echo(html, err=True)
    return 0
