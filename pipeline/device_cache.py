"""What was measured of this device once, in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgepipe.cache import cache_folder
from edgepipe.devices.probes import device_facts


def cache_path(kind: str, version: int, facts: Mapping[str, object]) -> Path:
    """The file for what depends on this device and on ``facts``; ``version`` is that of its form."""
    device = {key: device_facts()[key] for key in ("cpu_model", "cores", "usable_cores", "packages")}
    key = json.dumps([version, platform.node(), device, facts])
    return cache_folder() / kind / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def keep(path: Path, content: dict[str, Any]) -> None:
    """Write it; where that is impossible, it is measured again."""
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(content))
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
