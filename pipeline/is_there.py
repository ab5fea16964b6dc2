"""Whether there is anything at a path: as `Path.exists`, which since Python 3.14 says no where it cannot know."""

from __future__ import annotations

from pathlib import Path


def is_there(path: Path) -> bool:
    """Follow links.

    Raises:
        OSError: the name is too long, or a folder above may not be searched.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a NUL byte, which no name has
        return False
    return True
