"""Keeps what other libraries print off the terminal, which has edgepipe's own messages."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Swallow what is printed to stderr meanwhile; log handlers keep the stderr they were made with."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def no_warnings() -> Iterator[None]:
    """Keep transformers from warning meanwhile of what edgepipe checks itself."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
