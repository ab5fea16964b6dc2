"""Swapping two folders, in one step where the system can."""

from __future__ import annotations

import ctypes
import os
import secrets
import sys
from pathlib import Path

AT_FDCWD = -100
RENAME_EXCHANGE = 2


def exchange(first: Path, second: Path) -> None:
    """Swap two folders of one file system: afterwards each stands under the other's name.

    On Linux this is one step. Elsewhere it takes three renames; whoever is killed between them finds the old
    ``second`` as ``.NAME.previous-XXXXXXXX`` beside it.
    """
    if sys.platform in ("linux", "android") and _exchange_at_once(first, second):
        return
    previous = second.with_name(f".{second.name}.previous-{secrets.token_hex(4)}")
    os.rename(second, previous)
    try:
        os.rename(first, second)
    except BaseException:
        os.rename(previous, second)
        raise
    os.rename(previous, first)


def _exchange_at_once(first: Path, second: Path) -> bool:
    """Linux's ``renameat2(..., RENAME_EXCHANGE)``; False where libc, kernel or file system lacks it."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):
        return False
    done: int = renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE)
    return done == 0
