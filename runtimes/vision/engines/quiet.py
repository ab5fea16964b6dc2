"""Engines write notes to stderr from C++, past Python."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Swallow what is written to stderr meanwhile; what an engine raises says the same."""
    with open(os.devnull, "wb") as nowhere:
        terminal = os.dup(2)
        try:
            os.dup2(nowhere.fileno(), 2)
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
