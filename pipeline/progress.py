"""Progress of a long job: a bar on stderr, only when that is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[float, str], None]


@contextmanager
def progress(description: str, log_seconds: float | None = None) -> Iterator[Progress]:
    """Show a bar while the block runs; call the yielded function with the fraction done (0 to 1) and what is at hand.

    Where stderr is no terminal there is no bar, but with ``log_seconds`` a line now and then, so far apart.

    >>> with progress("export") as report:
    ...     report(0.5, "layer 1 of 2")
    """
    if not sys.stderr.isatty():
        yield _silence if log_seconds is None else _log(description, log_seconds)
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[step]}"), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(description, total=1.0, step="")

    def show(fraction: float, step: str) -> None:
        bar.start()  # not before: ssh may have a question first
        bar.update(task, completed=fraction, step=step)

    try:
        yield show
    finally:
        bar.stop()


def checked(progress: Progress | None, check: Callable[[], None]) -> Progress:
    """Progress that calls ``check`` before each step is told to ``progress``, if to anybody."""

    def report(fraction: float, step: str) -> None:
        check()
        if progress is not None:
            progress(fraction, step)

    return report


def _silence(fraction: float, step: str) -> None:
    pass


def _log(description: str, seconds: float) -> Progress:
    told = time.monotonic() - seconds

    def report(fraction: float, step: str) -> None:
        nonlocal told
        if time.monotonic() - told >= seconds:
            told = time.monotonic()
            print(f"{time.strftime('%H:%M:%S')} {description} {fraction:.1%} {step}", file=sys.stderr, flush=True)

    return report
