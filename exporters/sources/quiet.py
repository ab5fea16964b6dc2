"""Keeps the progress bars of other libraries off the terminal, which has edgepipe's own."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Swallow what is printed to stderr meanwhile; log handlers keep the stderr they were made with."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield
