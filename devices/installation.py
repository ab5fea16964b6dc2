"""What edgepipe keeps on a device, all of it below one folder:

    venv/            a virtual environment with edgepipe and the engines; `STAMP`, written last, says what is in it
    bundles/NAME/    deployed bundles; .NAME.incoming/ is one that has not all arrived
    wheel/           edgepipe's own wheel
    wheels/          those of `deploy --wheels`, while pip needs them
    inbox/           images, while they are run

This file and `environment.py` run on the device before anything is installed: they need Python alone.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgepipe.devices.probes import device_conditions, device_facts
from edgepipe.errors import DeviceError

FOLDER = ".edgepipe"
STAMP = "venv/edgepipe.json"
# A receiver whose sender is gone gives up sooner.
LOCK_S = 90.0


def bundle_folder(root: str, name: str) -> str:
    """Where a deployed bundle stands."""
    return f"{root}/bundles/{name}"


def incoming_folder(root: str, name: str) -> str:
    """Where a bundle gathers until it is whole."""
    return f"{root}/bundles/.{name}.incoming"


@contextmanager
def locked(root: Path, wait_s: float = LOCK_S) -> Iterator[None]:
    """Let one process at a time change what is below ``root``; children that inherit the descriptor hold it, too.

    Raises:
        DeviceError: another holds it for all of ``wait_s``.
    """
    import fcntl

    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(descriptor, True)
    deadline = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DeviceError("another deploy is at work there: wait until it has ended") from None
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def read_stamp(root: Path) -> dict[str, Any] | None:
    """What `environment.install` has said of the environment; None unless it is whole and its Python still runs."""
    try:
        stamp: dict[str, Any] = json.loads((root / STAMP).read_bytes())
        subprocess.run([python_of(root), "-c", ""], check=True, capture_output=True)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None
    return stamp


def python_of(root: str | Path) -> str:
    """The environment's interpreter."""
    return f"{root}/venv/bin/python"


def python_facts() -> dict[str, Any]:
    """The system and its Python, as `facts` gives them."""
    return {
        "architecture": platform.machine(),
        "bits": 8 * struct.calcsize("P"),
        "libc": platform.libc_ver()[0],
        "platform": sys.platform,
        "python": platform.python_version(),
        "makes_environments": find_spec("venv") is not None and find_spec("ensurepip") is not None,
    }


def facts(root: Path, bundle: str) -> dict[str, Any]:
    """What decides whether a bundle can be deployed here.

    Args:
        root: edgepipe's folder; it need not exist.
        bundle: the name of the bundle.

    Returns:
        ``root``, ``architecture``, ``bits`` (of Python: a 32-bit one may stand on a 64-bit kernel), ``libc``,
        ``platform``, ``python``, ``memory_bytes`` and ``memory_available_bytes`` (may be None), ``free_bytes`` of the
        disk, ``makes_environments``, ``stamp`` (what is installed, or None), ``bundle_sums`` (SHA256SUMS of the bundle
        that is there, or None), ``incoming_bytes`` of one that has not all arrived.
    """
    known, now = device_facts(), device_conditions()
    sums = Path(bundle_folder(str(root), bundle)) / "SHA256SUMS"
    incoming = Path(incoming_folder(str(root), bundle))
    return {
        **python_facts(),
        "root": str(root),
        "memory_bytes": known["memory_bytes"],
        "memory_available_bytes": now["memory_available_bytes"],
        "free_bytes": free_bytes(root),
        "stamp": read_stamp(root),
        "bundle_sums": sums.read_text("utf-8") if sums.is_file() else None,
        "incoming_bytes": folder_bytes(incoming),
    }


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder, 0 if there is none; what another process removes meanwhile does not count."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def free_bytes(place: Path) -> int:
    """Bytes that may still be written to the disk of a folder, which need not exist yet."""
    place = next(folder for folder in (place, *place.resolve().parents) if folder.exists())
    return shutil.disk_usage(place).free
