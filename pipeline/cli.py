"""The `edgepipe` command: its verbs are imported when they run, and every error ends as one line and an exit code.

Results go to stdout; progress, logs and errors go to stderr. With ``--json`` a verb prints one object on
stdout, and an error is such an object too: ``{"error": {"type", "message", "exit_code"}}``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, TextIO

import click

import edgepipe
from edgepipe.errors import EdgepipeError, EdgepipeWarning
from edgepipe.lazy import load

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

# verb -> where its click command is, and its line in `edgepipe --help`
VERBS = {
    "export": ("edgepipe.pipeline.cli_export:command", "Turn a language or vision model into a bundle for a device."),
    "distill": ("edgepipe.pipeline.cli_distill:command", "Train a small draft on what a target writes."),
    "run": ("edgepipe.pipeline.cli_run:command", "Run a bundle: answer a prompt, chat, or say what an image shows."),
    "measure": ("edgepipe.pipeline.cli_measure:command", "Measure a bundle's latency and memory on this device."),
    "report": ("edgepipe.pipeline.cli_report:command", "Compare reports that measure has written."),
    "flash": ("edgepipe.pipeline.cli_flash:command", "Write a bundle's firmware into the flash of a board."),
    "deploy": ("edgepipe.pipeline.cli_deploy:command", "Bring a bundle, and what runs it, to a device."),
    "doctor": (
        "edgepipe.pipeline.cli_doctor:command",
        "Say what keeps a device from running well, and how to mend it.",
    ),
    "plan": ("edgepipe.pipeline.cli_plan:command", "Plan how a vision model fits into a microcontroller's memory."),
    "completion": ("edgepipe.pipeline.cli_completion:command", "Print the completion script of a shell."),
}


class LazyGroup(click.Group):
    """A click group that knows its verbs' names and short help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order they are used."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's command; None when there is no such verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = load(VERBS[cmd_name][0])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb of ``args``; an unknown one is a usage error that suggests what was meant."""
        verb = args[0]
        if verb not in VERBS and not verb.startswith("-") and not ctx.resilient_parsing:
            close = get_close_matches(verb, VERBS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(VERBS)}."
            ctx.fail(f"no verb {verb!r}: {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs and their short help."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, short_help) for verb, (_, short_help) in VERBS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete a verb, or an option of `edgepipe` itself."""
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(verb, help=text) for verb, (_, text) in VERBS.items() if verb.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(edgepipe.__version__, prog_name="edgepipe")
def cli() -> None:
    """Export models on a workstation, run and measure them on an edge device."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Exit codes: 0 done, 1 an error the user can mend (or, silently, that stdout's reader went away), 2 wrong usage,
    3 validation failed, 4 device unreachable, 5 measurement untrustworthy, 130 interrupted.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    logging.disable(logging.WARNING)  # what other packages log; edgepipe's own messages are no logs
    _print_warnings()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    try:
        result = cli.main(arguments, prog_name="edgepipe", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(result if isinstance(result, int) else 0)
    except click.UsageError as error:
        if not _wants_json(arguments):
            error.show()
            sys.exit(error.exit_code)
        _fail(arguments, type(error).__name__, error.format_message(), error.exit_code)
    except click.ClickException as error:
        _fail(arguments, type(error).__name__, error.format_message(), error.exit_code)
    except EdgepipeError as error:
        _fail(arguments, type(error).__name__, str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail(arguments, "Interrupted", "interrupted", INTERRUPTED)
    except MemoryError as error:  # numpy says how much it asked for, others next to nothing
        told = f"there is not enough memory ({error})" if str(error) else "there is not enough memory"
        _fail(arguments, "MemoryError", f"{told}: end other programs, or take a smaller model or --budget", 1)
    except BrokenPipeError:
        # Nobody reads on, as when piped into head: give the interpreter a stdout that it can flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        _fail(arguments, type(error).__name__, f"{error.strerror or error}{place}", 1)


def _print_warnings() -> None:
    """Let edgepipe's own warnings be a line on stderr like its errors, each time they come up."""
    otherwise = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, EdgepipeWarning):
            click.echo(f"warning: {message}", err=True)
        else:
            otherwise(message, category, filename, lineno, file, line)

    warnings.simplefilter("always", EdgepipeWarning)
    warnings.showwarning = show


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether ``--json`` was given, also when the arguments as a whole could not be parsed."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def _fail(arguments: Sequence[str], kind: str, message: str, exit_code: int) -> NoReturn:
    """Print one error, on one line, as text or JSON, and exit."""
    message = " ".join(message.split())
    if _wants_json(arguments):
        try:
            click.echo(json.dumps({"error": {"type": kind, "message": message, "exit_code": exit_code}}))
            sys.exit(exit_code)
        except OSError:  # stdout itself is what failed, as on a full disk
            pass
    click.echo(f"error: {message}", err=True)
    sys.exit(exit_code)
