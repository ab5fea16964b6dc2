"""Pages of weights that an engine has mapped from a file, brought in at once instead of one by one."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_MADV_POPULATE_READ = 22  # Linux 5.14; older kernels refuse it


def populate(folder: Path) -> None:
    """Read in all pages that this process has mapped from files in ``folder``; without effect where that can't be done.

    A row of an embedding table is otherwise read from the disk when its token first comes up: that token is late, and
    resident memory creeps up for as long as new tokens come. llama.cpp populates its mapping of a model likewise.
    """
    if sys.platform not in ("linux", "android"):
        return
    within = f" {os.path.realpath(folder)}{os.sep}"
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            ranges = [line.split(maxsplit=1)[0] for line in maps if within in line]
    except OSError:  # a container without /proc
        return
    madvise = ctypes.CDLL(None).madvise
    for addresses in ranges:
        start, end = (int(address, 16) for address in addresses.split("-"))
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_POPULATE_READ)
