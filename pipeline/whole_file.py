"""Writing a file that a user named: all of it, or what was there before."""

from __future__ import annotations

import os
from pathlib import Path

from edgepipe.errors import EdgepipeError


def write_whole(path: Path, content: bytes, option: str) -> None:
    """Write ``content`` to ``path``. A link stays one; what is no file, such as a pipe or /dev/stdout, is written into.

    Args:
        path: in a folder that exists.
        content: all of the file.
        option: of the command line, by which another place is given.

    Raises:
        EdgepipeError: that is impossible; a file that was there is as before.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        place = path.resolve()
        partial = place.with_name(f".edgepipe-{os.getpid()}")
        try:
            partial.write_bytes(content)
            os.replace(partial, place)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EdgepipeError(f"cannot write {path} ({reason}): give another place with {option}") from error
