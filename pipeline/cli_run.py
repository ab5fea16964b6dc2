"""`edgepipe run`: parse, call `edgepipe.pipeline.run` or `run_image`, print."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.core import ParameterSource

from edgepipe.devices.device import is_board
from edgepipe.errors import ContextError, EdgepipeError
from edgepipe.pipeline.cli import INTERRUPTED
from edgepipe.pipeline.cli_deployed import run_there
from edgepipe.pipeline.cli_run_board import check_device_flags, device_flags, image_on_board, print_guesses
from edgepipe.pipeline.decode_flags import (
    AUTO,
    TEXT_FLAGS,
    decode_flags,
    decode_options,
    engine_flag,
    image_engine,
    image_threads,
    tell,
)

# Classes that are printed of an image, without --top-k.
TOP_CLASSES = 5

# Parameters that say nothing of an image.
OF_TEXT = TEXT_FLAGS | {"system", "raw", "max_new_tokens", "stop", "stop_tokens"}

if TYPE_CHECKING:
    from edgepipe.pipeline.bundle import Bundle
    from edgepipe.pipeline.run import Conversation


@click.command("run", short_help="Run a bundle: answer a prompt, chat, or say what an image shows.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@click.option("--file", "-f", type=click.File("r", encoding="utf-8"), help="Read the prompt from a file; - is stdin.")
@click.option("--chat", is_flag=True, help="Several turns: a line of stdin is a prompt, end of input ends.")
@click.option("--system", help="System message before the first prompt.")
@click.option("--raw", is_flag=True, help="Continue the text as it stands, without the chat template.")
@click.option(
    "--image", metavar="FILE", type=click.Path(path_type=Path), help="Say what this image, or .npy array, shows."
)
@click.option("--whole", is_flag=True, help="Run the image at once, not patch by patch.")
@click.option("--exact", is_flag=True, help="litert: TFLite's reference kernels, to the byte.")
@device_flags
@click.option("--verify", is_flag=True, help="Replay the bundle's golden outputs on this device instead.")
@click.option("--max-new-tokens", "-n", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--stop", multiple=True, help="Text that ends the answer; may be given several times.")
@click.option("--stop-token", "stop_tokens", multiple=True, help="Token, as text or id, that ends the answer.")
@engine_flag(AUTO)
@decode_flags
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of streaming text.")
def command(
    bundle: Path,
    prompt: str | None,
    file: Any,
    chat: bool,
    system: str | None,
    raw: bool,
    image: Path | None,
    whole: bool,
    exact: bool,
    device: str | None,
    baud: int | None,
    verify: bool,
    max_new_tokens: int,
    stop: tuple[str, ...],
    stop_tokens: tuple[str, ...],
    as_json: bool,
    **flags: Any,
) -> int:
    """Answer PROMPT with BUNDLE. Without PROMPT and --file, the prompt is read from stdin.

    With --image, say which classes the vision model of BUNDLE sees in it. A .npy file holds one image of the model's
    size, rows, columns and channels: uint8 pixels; floating-point real values, as pixels are normalised to (0 to 1
    without mean and std); or the model's own codes.
    """
    if device is not None and not is_board(device):
        if baud:
            raise click.UsageError("--baud belongs to a --device mcu:PORT")
        return run_there(bundle, device, prompt, file, image, as_json)
    if image is not None and (chat or prompt or file or verify):
        raise click.UsageError("--image takes no prompt: leave out PROMPT, --file, --chat and --verify")
    if image is not None and (given := _given(OF_TEXT)):
        raise click.UsageError(f"{given[0]} is an option of a language model, and --image is given: leave one out")
    if exact and flags["engine"] not in (None, "litert", "tflite"):
        raise click.UsageError(f"--exact is an option of litert, and --engine is {flags['engine']}: leave one out")
    if image is None and (whole or exact):
        raise click.UsageError("--whole and --exact belong to an --image FILE")
    engine_flags = {"whole": whole, "exact": exact, "engine": flags["engine"], "threads": flags["threads"]}
    check_device_flags(device, baud, image, engine_flags)
    if chat and (prompt or file or as_json):
        raise click.UsageError("--chat reads its prompts from stdin: leave out PROMPT, --file and --json")
    if verify and (chat or prompt or file):
        raise click.UsageError("--verify has prompts of its own: leave out PROMPT, --file and --chat")
    if prompt is not None and file:
        raise click.UsageError("the prompt is given twice: leave out PROMPT or --file")
    if image is not None and device is not None:
        return image_on_board(bundle, image, device, baud, flags["top_k"] or TOP_CLASSES, as_json)
    from edgepipe.pipeline.bundle import Bundle

    opened = Bundle.open(bundle)
    if image is not None:
        return _image(opened, image, flags, whole, exact, as_json)
    if verify:
        return _verify(opened, flags, as_json)
    from edgepipe.pipeline.run import Conversation
    from edgepipe.pipeline.session import Session

    session = Session(opened, decode_options(flags, opened), tell)
    turns = None if chat else 1
    conversation = Conversation(session, max_new_tokens, stop, stop_tokens, system=system, raw=raw, turns=turns)
    if chat:
        return _chat(conversation)
    if prompt is None:
        prompt = "".join(_lines(file or sys.stdin))
    return _answer(conversation, prompt, as_json)


def _given(names: frozenset[str]) -> list[str]:
    """Those of the options that are on the command line, as they are typed."""
    context = click.get_current_context()
    return [
        max(parameter.opts, key=len)
        for parameter in context.command.params
        if parameter.name in names and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def _answer(conversation: Conversation, prompt: str, as_json: bool) -> int:
    """Print one answer as it comes; Ctrl-C ends it with what there is."""
    from edgepipe.pipeline.run import Answer

    text = ""
    try:
        for piece in conversation.say(prompt):
            text += piece
            if not as_json:
                click.echo(piece, nl=False)
                sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    except EdgepipeError:
        if text and not as_json:
            click.echo()  # the error is a line of its own
        raise
    generation = conversation.generation
    if as_json:
        answer = Answer(text, generation, conversation.kv_bytes, conversation.session.engine)
        click.echo(json.dumps(answer.to_json(), ensure_ascii=False))
    else:
        click.echo()
        click.echo(_end_line(conversation), err=True)
    return INTERRUPTED if generation.finish_reason == "interrupted" else 0


def _chat(conversation: Conversation) -> int:
    """Answer every line of stdin."""
    for line in _prompts():
        code = _answer(conversation, line, as_json=False)
        if code and not sys.stdin.isatty():
            return code
    return 0


def _prompts() -> Iterator[str]:
    """Lines of stdin that are not blank, asked for with a prompt on a terminal."""
    lines = _lines(sys.stdin)
    while True:
        if sys.stdin.isatty():
            click.echo("> ", nl=False, err=True)
        line = next(lines, None)
        if line is None:
            return
        if line.strip():
            yield line.rstrip("\n")


def _lines(stream: TextIO) -> Iterator[str]:
    """The stream's lines, as UTF-8 whatever the locale.

    Raises:
        ContextError: they are not text.
    """
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8")
    try:
        yield from iter(stream.readline, "")
    except UnicodeDecodeError as error:
        raise ContextError(
            f"the prompt is not UTF-8 text: byte {error.start} of what was read: {error.reason}"
        ) from error


def _end_line(conversation: Conversation) -> str:
    """One line of figures; what a run did not have is left out."""
    generation = conversation.generation
    ended = "the model's context is full" if generation.finish_reason == "context" else generation.finish_reason
    parts = [f"{len(generation.tokens)} tokens ({ended.replace('_', ' ')})"]
    if generation.ttft_ms is not None:
        parts.append(f"first after {generation.ttft_ms:.0f} ms")
    if generation.decode_tokens_per_s is not None:
        parts.append(f"{generation.decode_tokens_per_s:.1f} tokens/s")
    if generation.acceptance_rate is not None:
        parts.append(f"acceptance {generation.acceptance_rate:.0%}")
    if generation.tokens_per_round is not None:
        parts.append(f"{generation.tokens_per_round:.2f} tokens per round")
    if generation.estimated_speedup is not None:
        parts.append(f"about {generation.estimated_speedup:.2f} times plain")
    parts.append(f"KV {conversation.kv_bytes / 2**20:.1f} MiB")
    if len(conversation.session.bundle.manifest["components"]["target"]["formats"]) > 1:
        parts.append(conversation.session.engine)
    return " · ".join(parts)


def _image(bundle: Bundle, image: Path, flags: dict[str, Any], whole: bool, exact: bool, as_json: bool) -> int:
    """Print the classes of highest score."""
    from edgepipe.pipeline.run_image import answer
    from edgepipe.pipeline.vision_session import VisionOptions, VisionSession

    options = VisionOptions(image_engine(flags["engine"], bundle), image_threads(flags["threads"]), whole, exact)
    found = answer(VisionSession(bundle, options), image, flags["top_k"] or TOP_CLASSES)
    if as_json:
        click.echo(json.dumps(found.to_json(), ensure_ascii=False))
        return 0
    print_guesses(found)
    patches = "at once" if found.grid == (1, 1) else f"in {found.grid[0]}x{found.grid[1]} patches"
    click.echo(f"{found.engine}, {patches}, {found.run_ms:.1f} ms with loading", err=True)
    return 0


def _verify(bundle: Bundle, flags: dict[str, Any], as_json: bool) -> int:
    """Print the outcome of replaying the golden outputs of decoders and of the vision model."""
    from edgepipe.pipeline.session import Session
    from edgepipe.pipeline.verify import verify_reference
    from edgepipe.pipeline.vision_reference import verify_vision
    from edgepipe.pipeline.vision_session import COMPONENT, VisionOptions, VisionSession, decoders

    lines: list[str] = []
    outcome: dict[str, Any] = {"verified": True}
    if decoders(bundle):
        text = verify_reference(Session(bundle, decode_options(flags, bundle)))
        lines.append(text.summary())
        outcome |= text.to_json()
    if COMPONENT in bundle.manifest["components"]:
        threads = image_threads(flags["threads"])
        engine = image_engine(flags["engine"], bundle)
        seen = verify_vision(VisionSession(bundle, VisionOptions(engine, threads, exact=True)))
        lines.append(seen.summary())
        outcome["vision"] = seen.to_json()
    click.echo(json.dumps(outcome) if as_json else "\n".join(lines))
    return 0
