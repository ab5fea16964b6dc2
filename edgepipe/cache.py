"""Where edgepipe keeps what it can make or fetch again: downloads, and stamps of verified bundles."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """``EDGEPIPE_CACHE_DIR``, else the user's cache folder of the platform. It may not exist yet."""
    if chosen := os.environ.get("EDGEPIPE_CACHE_DIR"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "edgepipe"
