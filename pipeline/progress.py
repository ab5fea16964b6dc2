"""Progress of a long job: a bar on stderr, only when that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[float, str], None]


@contextmanager
def progress(description: str) -> Iterator[Progress]:
    """Show a bar while the block runs; call the yielded function with the fraction done (0 to 1) and what is at hand.

    >>> with progress("export") as report:
    ...     report(0.5, "layer 1 of 2")
    """
    if not sys.stderr.isatty():
        yield lambda fraction, step: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[step]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=1.0, step="")
        yield lambda fraction, step: bar.update(task, completed=fraction, step=step)
