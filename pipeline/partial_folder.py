"""The folder in which something is written before it gets its name.

It is ``.NAME.edgepipe-partial-XXXXXXXX``, locked by the writing process. A process that is killed leaves it behind;
whoever writes beside it next removes it: the lock tells that its writer is dead.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgepipe.errors import BundleError

try:
    import fcntl
except ImportError:  # Windows has no flock: folders of dead writers stay there until someone removes them
    fcntl = None  # type: ignore[assignment]

_NAME = re.compile(r"\..+\.edgepipe-partial-[0-9a-f]{8}")


@contextmanager
def partial_folder(destination: Path) -> Iterator[Path]:
    """A new, locked folder beside ``destination``, removed at the end unless it was renamed.

    Raises:
        BundleError: the place cannot be written.
    """
    parent = destination.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for other in list(parent.iterdir()):
            if _NAME.fullmatch(other.name):
                _remove_if_abandoned(other)
        # Cut, for the names of a file system end at 255 bytes.
        folder, lock = _new_locked_folder(parent, f".{destination.name[:50]}.edgepipe-partial-")
    except OSError as error:
        file = next((path for path in (parent, *parent.parents) if path.is_file()), None)
        reason = f"{file} is a file, not a folder" if file else error.strerror
        raise BundleError(f"cannot write into {parent}: {reason}; give a place below a folder of yours") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _new_locked_folder(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """Make a folder and lock it; None stands for a file system without locks."""
    while True:
        folder = parent / (prefix + secrets.token_hex(4))
        folder.mkdir()
        lock = _lock(folder, wait=True)
        if folder.exists():  # else another process took it for abandoned before it was locked
            return folder, lock
        if lock is not None:
            os.close(lock)


def _lock(folder: Path, wait: bool) -> int | None:
    """Lock a folder until the returned descriptor is closed, also by the death of this process.

    Returns None where folders cannot be locked. Raises BlockingIOError when another process holds the lock and
    ``wait`` is False.
    """
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor


def _remove_if_abandoned(folder: Path) -> None:
    """Remove a partial folder whose writer is dead; leave it when that is not certain."""
    try:
        lock = _lock(folder, wait=False)
    except BlockingIOError:
        return
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
