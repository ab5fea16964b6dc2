"""Keeps what other libraries print off the terminal, which has edgepipe's own messages."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

from edgepipe.runtimes.vision.engines.quiet import quiet


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


@contextlib.contextmanager
def no_logs() -> Iterator[None]:
    """Keep other packages from logging warnings meanwhile, as of each other's versions when they are imported."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def no_output() -> Iterator[None]:
    """Swallow all that is printed meanwhile, also by libraries in C++."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(action="ignore"),
        quiet(),
    ):
        yield
