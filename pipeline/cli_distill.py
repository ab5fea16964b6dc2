"""`edgepipe distill`: parse, call `edgepipe.pipeline.distill`, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


class Numbers(click.ParamType):
    """Numbers with commas between them."""

    name = "numbers"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A tuple of them."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self.kind(part) for part in value.split(","))
        except ValueError:
            example = "0,1" if self.kind is int else "0,0.7"
            self.fail(f"{value!r} is not a list of numbers, as in {example}", param, ctx)


@click.command("distill", short_help="Train a small draft on what a target writes.")
@click.argument("target")
@click.option("--output", "-o", metavar="DRAFT", type=FOLDER, required=True, help="Folder to write.")
@click.option("--revision", metavar="COMMIT", help="Branch, tag or commit of the target's hub id.")
@click.option(
    "--kind",
    type=click.Choice(["decoder", "head"]),
    default="decoder",
    show_default=True,
    help="A small decoder, or one layer over the target's features.",
)
@click.option("--layers", type=Numbers(int), help="The target's layers that it starts from.  [0,1; head: the last]")
@click.option("--vocabulary", type=int, help="Tokens that it can guess.  [8192]")
@click.option("--start", metavar="DRAFT", help="Go on from this draft of TARGET, rather than from TARGET's layers.")
@click.option("--prompts", type=FILE, help="File with one prompt a line.  [built-in templates]")
@click.option("--text", type=FILE, help="File with text of your domain, for the target to continue.")
@click.option(
    "--temperatures",
    type=Numbers(float),
    default="0,0,0.3,0.5,0.7,0.9",
    show_default=True,
    help="That samples are drawn at; one given twice is drawn twice as often.",
)
@click.option("--samples", type=int, default=600_000, show_default=True, help="Tokens that the target writes.")
@click.option("--passes", type=float, default=5.0, show_default=True, help="How often the training sees each sample.")
@click.option("--minutes", type=float, help="End the training after so long, however far it is.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of prompts, samples and training.")
@click.option("--threads", type=int, help="Threads to use.  [the machine's cores]")
@click.option("--work", type=FOLDER, help="Folder for samples and checkpoint.  [DRAFT.work]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    target: str,
    output: Path,
    revision: str | None,
    kind: str,
    layers: tuple[int, ...] | None,
    vocabulary: int | None,
    start: str | None,
    prompts: Path | None,
    text: Path | None,
    temperatures: tuple[float, ...],
    samples: int,
    passes: float,
    minutes: float | None,
    seed: int,
    threads: int | None,
    work: Path | None,
    as_json: bool,
) -> None:
    """Train a draft for TARGET, a hub id, folder, .gguf file or smollm2-135m, on texts that it writes itself.

    The draft is for `edgepipe export --target TARGET --draft DRAFT`. Most of the time goes into
    sampling the target and into training, about half each. When interrupted, the same command goes on where it was;
    DRAFT appears when it is whole. The folder --work keeps the samples, so that other layers or budgets can be tried on
    them with another -o and the same --work; remove it in the end. For more samples later, go on from the DRAFT with
    --start, another --seed, and a --work of its own.

    \b
    edgepipe distill smollm2-135m -o draft
    edgepipe distill Qwen/Qwen3-0.6B -o draft --samples 200000 --minutes 60
    edgepipe distill smollm2-135m -o draft --text manuals.txt
    edgepipe distill smollm2-135m -o better --start draft --seed 1 --passes 2
    """
    import os

    from edgepipe.exporters.llm.distill.training import CONTINUED_RATE, RATE, TrainingSettings
    from edgepipe.pipeline.distill import distill
    from edgepipe.pipeline.distillation import Distillation
    from edgepipe.pipeline.progress import progress

    recipe = Distillation(
        target,
        revision=revision,
        kind=kind,
        start=start,
        layers=layers,
        output_vocab_size=vocabulary,
        prompts=prompts,
        text=text,
        temperatures=temperatures,
        sample_tokens=samples,
        training=TrainingSettings(passes, minutes, CONTINUED_RATE if start else RATE, seed=seed),
        seed=seed,
        threads=(os.cpu_count() or 1) if threads is None else threads,
    )
    work = work or Path(f"{output}.work")
    with progress(f"distill {output}", log_seconds=60) as report:
        facts = distill(recipe, output, work, report)
    size = sum(path.stat().st_size for path in output.iterdir())
    if as_json:
        click.echo(json.dumps({"draft": str(output), "bytes": size, "work": str(work), **facts}))
        return
    acceptance = facts["acceptance"]
    click.echo(f"{output}: {size / 1e6:.1f} MB, layers {', '.join(map(str, facts['layers']))} of {target}")
    click.echo(
        f"  held-out acceptance {acceptance['greedy']:.3f} greedy, {acceptance['sampled']:.3f} at temperature 1, after "
        f"{facts['training_tokens'] / 1e6:.2f} M tokens"
    )
    click.echo(f"  samples and checkpoint are in {work}: remove it, or train on them again with --work")
    click.echo(f"try: edgepipe export --target {target} --draft {output} -o BUNDLE")
