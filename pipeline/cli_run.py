"""`edgepipe run`: parse, call `edgepipe.pipeline.run`, print."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from edgepipe.errors import ContextError, EdgepipeError
from edgepipe.pipeline.cli import INTERRUPTED
from edgepipe.pipeline.decode_flags import decode_flags, decode_options

if TYPE_CHECKING:
    from edgepipe.pipeline.run import Conversation


@click.command("run", short_help="Run a bundle: answer a prompt, or chat.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@click.option("--file", "-f", type=click.File("r", encoding="utf-8"), help="Read the prompt from a file; - is stdin.")
@click.option("--chat", is_flag=True, help="Several turns: a line of stdin is a prompt, end of input ends.")
@click.option("--system", help="System message before the first prompt.")
@click.option("--raw", is_flag=True, help="Continue the text as it stands, without the chat template.")
@click.option("--verify", is_flag=True, help="Replay the bundle's golden outputs on this device instead.")
@click.option("--max-new-tokens", "-n", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--stop", multiple=True, help="Text that ends the answer; may be given several times.")
@click.option("--stop-token", "stop_tokens", multiple=True, help="Token, as text or id, that ends the answer.")
@decode_flags
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of streaming text.")
def command(
    bundle: Path,
    prompt: str | None,
    file: Any,
    chat: bool,
    system: str | None,
    raw: bool,
    verify: bool,
    max_new_tokens: int,
    stop: tuple[str, ...],
    stop_tokens: tuple[str, ...],
    as_json: bool,
    **flags: Any,
) -> int:
    """Answer PROMPT with BUNDLE. Without PROMPT and --file, the prompt is read from stdin."""
    if chat and (prompt or file or as_json):
        raise click.UsageError("--chat reads its prompts from stdin: leave out PROMPT, --file and --json")
    if verify and (chat or prompt or file):
        raise click.UsageError("--verify has prompts of its own: leave out PROMPT, --file and --chat")
    if prompt is not None and file:
        raise click.UsageError("the prompt is given twice: leave out PROMPT or --file")
    from edgepipe.pipeline.bundle import Bundle
    from edgepipe.pipeline.run import Conversation
    from edgepipe.pipeline.session import Session

    opened = Bundle.open(bundle)
    session = Session(opened, decode_options(flags, opened))
    if verify:
        return _verify(session, as_json)
    turns = None if chat else 1
    conversation = Conversation(session, max_new_tokens, stop, stop_tokens, system=system, raw=raw, turns=turns)
    if chat:
        return _chat(conversation)
    if prompt is None:
        prompt = "".join(_lines(file or sys.stdin))
    return _answer(conversation, prompt, as_json)


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
        click.echo(json.dumps(Answer(text, generation, conversation.kv_bytes).to_json(), ensure_ascii=False))
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
    parts = [f"{len(generation.tokens)} tokens ({generation.finish_reason.replace('_', ' ')})"]
    if generation.ttft_ms is not None:
        parts.append(f"first after {generation.ttft_ms:.0f} ms")
    if generation.decode_tokens_per_s is not None:
        parts.append(f"{generation.decode_tokens_per_s:.1f} tokens/s")
    if generation.acceptance_rate is not None:
        parts.append(f"acceptance {generation.acceptance_rate:.0%}")
    if generation.tokens_per_round is not None:
        parts.append(f"{generation.tokens_per_round:.2f} tokens per round")
    parts.append(f"KV {conversation.kv_bytes / 2**20:.1f} MiB")
    return " · ".join(parts)


def _verify(session: Any, as_json: bool) -> int:
    """Print the outcome of replaying the golden outputs."""
    from edgepipe.pipeline.verify import verify_reference

    outcome = verify_reference(session)
    click.echo(json.dumps(outcome.to_json()) if as_json else outcome.summary())
    return 0
