"""What `edgepipe doctor` asks a device; runs there with Python alone, as `environment` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from edgepipe.devices import android
from edgepipe.devices.cpu import core_groups
from edgepipe.devices.installation import free_bytes, python_facts, python_of, read_stamp
from edgepipe.devices.probes import ROOT, device_conditions, device_facts
from edgepipe.devices.readings import read_all

# Distribution -> the module that loads its native code.
ENGINES = {
    "onnxruntime": "onnxruntime",
    "ai-edge-litert": "ai_edge_litert.interpreter",
    "tflite-runtime": "tflite_runtime.interpreter",
    "executorch": "executorch.runtime",
}
_LOAD_S = 120
_ABSENT = 77
_LOAD = f"""
import importlib, importlib.metadata, importlib.util, sys
distribution, module = sys.argv[1:]
if importlib.util.find_spec(module.partition(".")[0]) is None:
    sys.exit({_ABSENT})
try:
    print(importlib.metadata.version(distribution), flush=True)
except importlib.metadata.PackageNotFoundError:
    print("of unknown version", flush=True)
importlib.import_module(module)
"""


def examine(home: Path | None = None, root: Path = ROOT) -> dict[str, Any]:
    """What decides whether edgepipe runs well here.

    Args:
        home: edgepipe's folder on a device, which need not exist; None for the edgepipe of this Python.
        root: where ``/proc`` and ``/sys`` are.

    Returns:
        ``device`` and ``conditions`` (as `edgepipe.devices.probes` gives them), `python_facts`, ``free_bytes`` of the
        disk at ``place``, ``installed`` (what deploy has said of the environment, or None), ``engines`` (as
        `load_engines` gives them), ``core_groups``, ``android_api`` and ``unreadable``.
    """
    installed = read_stamp(home) if home is not None else None
    python = python_of(home) if home is not None and installed is not None else sys.executable
    known = read_all({"core_groups": lambda: core_groups(root), "android_api": android.api_level})
    return {
        **python_facts(),
        **known,
        "device": device_facts(root),
        "conditions": device_conditions(root),
        "place": str((home or Path.cwd()).resolve()),
        "free_bytes": free_bytes(home or Path.cwd()),
        "installed": installed,
        "engines": load_engines(python),
    }


def load_engines(python: str) -> dict[str, dict[str, Any]]:
    """Load every engine that a Python has, each in a process of its own, which a wrong instruction may kill.

    Returns:
        By distribution: ``version`` and, where it does not load, ``signal`` (that ended the process) or ``error`` (its
        last words).
    """
    found = {}
    for distribution, module in ENGINES.items():
        state: dict[str, Any] = {"version": "of unknown version", "signal": None, "error": None}
        command = [python, "-c", _LOAD, distribution, module]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_LOAD_S
            )
        except subprocess.TimeoutExpired:
            state["error"] = f"it has not loaded within {_LOAD_S} s"
        else:
            if done.returncode == _ABSENT:
                continue
            state["version"] = done.stdout.partition("\n")[0] or state["version"]
            if done.returncode < 0:
                state["signal"] = -done.returncode
            elif done.returncode:
                state["error"] = " ".join(done.stderr.strip().rpartition("\n")[2].split())[:200]
        found[distribution] = state
    return found
