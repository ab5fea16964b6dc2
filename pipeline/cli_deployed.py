"""The part of `edgepipe run` and `edgepipe measure` that has a device do the work: the same verb runs there."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from edgepipe.pipeline.report_schema import Report

# What a device is given in another way, or not at all.
_OURS = ("device", "output", "as_json", "file", "image")


def run_there(bundle: Path, device: str, prompt: str | None, file: Any, image: Path | None, as_json: bool) -> int:
    """Answer with the copy of ``bundle`` on a device; text, figures and the exit code are those of `run` there."""
    from edgepipe.pipeline.deployed import deployed

    with ExitStack() as held:
        there = held.enter_context(deployed(bundle, device, _engine()))
        flags, stdin = given_flags(_OURS) + (["--json"] if as_json else []), None
        if image is not None:
            flags += ["--image", held.enter_context(there.file(image))]
        elif prompt is not None or file is not None:
            text = prompt if prompt is not None else file.read()
            flags, stdin = [*flags, "--file", "-"], held.enter_context(_holding(text))
        return there.run("run", flags, stdin=subprocess.DEVNULL if image is not None else stdin)


def measure_there(bundle: Path, device: str, file: str | None) -> Report:
    """The report of the copy of ``bundle`` on a device."""
    from edgepipe.pipeline.deployed import deployed

    with ExitStack() as held:
        there = held.enter_context(deployed(bundle, device, _engine()))
        flags = given_flags(_OURS)
        if file is not None:
            flags += ["--file", held.enter_context(there.file(Path(file)))]
        report: Any = there.run_json("measure", [*flags, "--output", f"{there.root}/report"])
        if file is not None:
            report["configuration"]["file"] = file
        return report


def _engine() -> str | None:
    engine: str | None = click.get_current_context().params["engine"]
    return engine


def given_flags(without: Collection[str]) -> list[str]:
    """The options of the current command line, as they were typed, but for those ``without``."""
    context, words = click.get_current_context(), []
    for option in context.command.params:
        name = option.name or ""
        if not isinstance(option, click.Option) or name in without:
            continue
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        flag, value = max(option.opts, key=len), context.params[name]
        if option.is_flag:
            words.append(flag)
            continue
        for each in value if option.multiple else [value]:
            words += [flag, ",".join(map(str, each)) if isinstance(each, tuple) else str(each)]
    return words


def _holding(text: str) -> IO[bytes]:
    """A temporary file with a text, to be read from its beginning."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(text.encode())
    file.seek(0)
    return file
