"""`edgepipe measure`: parse, call `edgepipe.pipeline.measure`, write the report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgepipe.devices.device import is_board
from edgepipe.errors import MeasurementUntrustworthy
from edgepipe.pipeline.cli_deployed import measure_there
from edgepipe.pipeline.cli_measure_board import measure_on_board, print_board
from edgepipe.pipeline.decode_flags import (
    ALL,
    AUTO,
    decode_flags,
    decode_options,
    engine_flag,
    image_engine,
    image_threads,
)

if TYPE_CHECKING:
    from edgepipe.pipeline.bundle import Bundle
    from edgepipe.pipeline.report_schema import Decoding, Prompt, Report, Vision
    from edgepipe.pipeline.statistics import Series


class Lengths(click.ParamType):
    """Whole numbers of 1 or more, separated by commas."""

    name = "N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Sorted, each once."""
        try:
            lengths = sorted({int(part) for part in value.split(",")})
        except ValueError:
            self.fail(f"{value!r} is no list of numbers: expected something like 32,128,512", param, ctx)
        if lengths[0] < 1:
            self.fail(f"{value!r} has a length of {lengths[0]}: expected 1 or more", param, ctx)
        return tuple(lengths)


@click.command("measure", short_help="Measure a bundle's latency and memory on this device.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    default="report",
    show_default=True,
    help="Folder for report.json and report.md; earlier ones are replaced.",
)
@click.option(
    "--prompt-lengths", type=Lengths(), default="32,128,512", show_default=True, help="Tokens of the prompts."
)
@click.option(
    "--new-tokens", "-n", type=click.IntRange(min=2), default=64, show_default=True, help="Generated after each."
)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Timed repetitions.")
@click.option("--warmup", type=click.IntRange(min=1), default=1, show_default=True, help="Repetitions before those.")
@click.option(
    "--against",
    type=click.Choice(["plain"]),
    help="Interleave a baseline: full cache, no speculation; prints ratios.",
)
@click.option(
    "--max-width", type=click.IntRange(min=1), default=16, show_default=True, help="Last S of the cost curve t(S)."
)
@click.option(
    "--file",
    "-f",
    type=click.Path(exists=True, dir_okay=False),
    help="Text to cut the prompts from; speculation depends on it.  [default: a built-in text]",
)
@click.option(
    "--cool-to", type=float, metavar="C", help="Wait until the processor has so many degrees Celsius or less."
)
@click.option(
    "--cool-limit", type=click.FloatRange(min=0), default=600, show_default=True, help="Seconds to wait for that."
)
@click.option(
    "--device",
    metavar="DEVICE",
    help="Measure where the bundle was deployed: ssh:user@host, termux:user@host, adb:serial, local; or the firmware "
    "on a board: mcu:PORT, or qemu:BOARD for an emulated one.",
)
@click.option("--baud", type=click.IntRange(min=1), help="Of the board's serial port.  [115200]")
@engine_flag(AUTO, ALL)
@decode_flags
@click.option("--exact", is_flag=True, help="Images in litert: TFLite's reference kernels, to the byte.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object instead of a table.")
def command(
    bundle: Path,
    output: Path,
    prompt_lengths: tuple[int, ...],
    new_tokens: int,
    repeats: int,
    warmup: int,
    against: str | None,
    max_width: int,
    file: str | None,
    cool_to: float | None,
    cool_limit: float,
    device: str | None,
    baud: int | None,
    exact: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Measure BUNDLE on this device, or on --device, and write report.json and report.md.

    Of a vision model, an image is timed at once and patch by patch; --repeats, --warmup, --engine and --threads apply.
    On a microcontroller's board the firmware runs an image patch by patch; --repeats, --warmup and --baud apply.

    When a gate fails (the samples spread too far, the device throttles, is hot or busy), the report says so, is
    written all the same, and the exit code is 5.
    """
    from edgepipe.pipeline.bundle import Bundle
    from edgepipe.pipeline.measure import Plan, measure
    from edgepipe.pipeline.report import REPORT_JSON, REPORT_MD, require_writable, write_report
    from edgepipe.pipeline.report_markdown import failed_gates
    from edgepipe.pipeline.vision_session import COMPONENT, VisionOptions

    if exact and flags["engine"] not in (None, "litert", "tflite"):
        raise click.UsageError(f"--exact is an option of litert, and --engine is {flags['engine']}: leave one out")
    if baud and not (device or "").startswith("mcu:"):
        raise click.UsageError("--baud belongs to a --device mcu:PORT")
    if cool_to is not None and device is not None and is_board(device):
        raise click.UsageError("--cool-to reads the processor's temperature, which a board's firmware does not tell")
    if device is not None and is_board(device):
        require_writable(output)
        try:
            report = measure_on_board(bundle, device, baud, repeats, warmup, _show)
        finally:
            _show("")
    elif device is not None:
        require_writable(output)
        report = measure_there(bundle, device, file)
    else:
        plan = Plan(prompt_lengths, new_tokens, repeats, warmup, against, max_width, file, cool_to, cool_limit)
        opened = Bundle.open(bundle)
        has_images = COMPONENT in opened.manifest["components"]
        threads = image_threads(flags["threads"]) if has_images else None
        options = decode_options(flags, opened)
        engines = _all_engines(opened) if flags["engine"] == ALL else ()
        vision = VisionOptions(image_engine(flags["engine"], opened) if has_images else None, threads, exact=exact)
        require_writable(output)
        try:
            report = measure(bundle, options, plan, vision=vision, engines=engines, progress=_show)
        finally:
            _show("")
        if flags["threads"] == "auto":
            report["configuration"]["threads"] = "auto"  # a number alone would not bind it to the same cores
    write_report(report, output)
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        _print(report)
        click.echo(f"{output / REPORT_MD}\n{output / REPORT_JSON}")
    if report["status"] != "untrustworthy":
        return 0
    if as_json:
        return MeasurementUntrustworthy.exit_code
    raise MeasurementUntrustworthy(
        f"the measurement is not to be trusted, these gates failed: {failed_gates(report)}; "
        f"see {output / REPORT_MD}, mend what it names, and measure again"
    )


def _all_engines(bundle: Bundle) -> list[str]:
    """Those that are installed, of those that the bundle has files for; what is left out is said on stderr.

    Raises:
        click.UsageError: the bundle has no decoder.
    """
    from edgepipe.pipeline.decoder_engines import exported_engines
    from edgepipe.runtimes.llm.engines import is_installed

    if "target" not in bundle.manifest["components"]:
        raise click.UsageError("--engine all compares engines of a language model, and the bundle holds none")
    exported = exported_engines(bundle.manifest["components"]["target"])
    installed = [engine for engine in exported if is_installed(engine)]
    for engine in exported:
        if engine not in installed:
            click.echo(f"{engine} is not installed here and left out", err=True)
    return installed


def _show(step: str) -> None:
    """Overwrite one line of a terminal. A bar that redraws itself would take time from what is measured."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{step}", nl=False, err=True)


def _print(report: Report) -> None:
    """A line for each prompt length and configuration, with the medians; then the other engines."""
    others = report.get("other_engines", [])
    _print_prompts(report["prompts"], f"{report['configuration']['engines'][0]}, " if others else "")
    for other in others:
        _print_prompts(other["prompts"], f"{other['engine']}, ")
    if "vision" in report:
        _print_vision(report["vision"])
    if "board" in report:
        print_board(report["board"])


def _print_prompts(prompts: list[Prompt], engine: str) -> None:
    for prompt in prompts:
        head = f"{engine}prompt {prompt['prompt_tokens']}"
        _print_decoding(head, prompt["measured"])
        if prompt["plain"] and prompt["speedup"]:
            _print_decoding(f"{head}, plain", prompt["plain"])
            parts = (
                f"{name} {ratio['p50']:.2f} times as fast ({ratio['min']:.2f} to {ratio['max']:.2f})"
                for name, ratio in (("TTFT", prompt["speedup"]["ttft"]), ("decode", prompt["speedup"]["decode"]))
            )
            predicted = prompt["predicted_speedup"]
            said = "" if predicted is None else f" · costs and acceptance predict {predicted:.2f} times"
            click.echo(f"{head}, against plain: {' · '.join(parts)}{said}")


def _print_vision(vision: Vision) -> None:
    """An image at once and patch by patch: medians, and the activations that the plan and the engine have."""
    memory = vision["activations"]
    _print_image("image at once", vision["whole_ms"], memory["planned_whole_bytes"], memory["seen_whole_bytes"])
    if vision["streamed_ms"] is not None:
        head = f"image in {'x'.join(map(str, vision['grid']))} patches"
        _print_image(head, vision["streamed_ms"], memory["planned_bytes"], memory["seen_bytes"])


def _print_image(head: str, taken: Series, planned: int, seen: int | None) -> None:
    memory = f"activations {planned / 1024:.1f} KiB planned"
    if seen is not None:
        memory += f", {seen / 1024:.1f} KiB allocated"
    click.echo(f"{head}: {taken['statistics']['p50']:.2f} ms · {memory}")


def _print_decoding(head: str, decoding: Decoding) -> None:
    parts = [
        f"TTFT {decoding['ttft_ms']['p50']:.1f} ms",
        f"prefill {decoding['prefill_tokens_per_s']['p50']:.0f} tokens/s",
        f"decode {decoding['decode_tokens_per_s']['p50']:.1f} tokens/s",
        f"{decoding['tokens_per_round']:.2f} tokens per round",
        f"KV {decoding['kv_bytes'] / 2**20:.1f} MiB",
    ]
    click.echo(f"{head}: {' · '.join(parts)}")
