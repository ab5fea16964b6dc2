"""Where edgepipe keeps what it can make or fetch again: downloads, and stamps of verified bundles."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from edgepipe.errors import EdgepipeError


def cache_folder() -> Path:
    """``EDGEPIPE_CACHE_DIR``, else the user's cache folder of the platform. It may not exist yet.

    Raises:
        EdgepipeError: it begins with ``~`` and the home folder meant is not known.
    """
    if chosen := os.environ.get("EDGEPIPE_CACHE_DIR"):
        return _expanded(chosen, "EDGEPIPE_CACHE_DIR")
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded(base, "the cache folder") / "edgepipe"


def _expanded(path: str, origin: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # no such user, or a user without a home
        raise EdgepipeError(f"{origin} is {path}, whose home folder is unknown: set EDGEPIPE_CACHE_DIR") from error
