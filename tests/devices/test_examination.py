"""What a computer tells of itself, and engines that do not survive being loaded."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from edgepipe.devices.cpu import core_groups
from edgepipe.devices.examination import examine, load_engines
from edgepipe.devices.readings import Unreadable

Tree = Callable[[Mapping[str, str]], Path]

# Parts of /proc/cpuinfo of an Orange Pi 5 (RK3588): four Cortex-A55, then four Cortex-A76.
ORANGE_PI_5 = [("0xd05", 1_800_000, 530)] * 4 + [("0xd0b", 2_352_000, 1024)] * 4


def orange_pi_5() -> dict[str, str]:
    """Files of its /proc and /sys."""
    cores = [
        f"processor\t: {number}\nFeatures\t: fp asimd asimddp\nCPU implementer\t: 0x41\nCPU part\t: {part}\n"
        for number, (part, _, _) in enumerate(ORANGE_PI_5)
    ]
    files = {"proc/cpuinfo": "\n".join(cores)}
    for number, (_, clock, capacity) in enumerate(ORANGE_PI_5):
        folder = f"sys/devices/system/cpu/cpu{number}"
        files |= {f"{folder}/cpu_capacity": str(capacity), f"{folder}/cpufreq/cpuinfo_max_freq": str(clock)}
    return files


def test_big_cores_come_first(tree: Tree) -> None:
    assert core_groups(tree(orange_pi_5())) == [
        {"cpus": [4, 5, 6, 7], "core": "Cortex-A76", "max_mhz": 2352.0, "capacity": 1024},
        {"cpus": [0, 1, 2, 3], "core": "Cortex-A55", "max_mhz": 1800.0, "capacity": 530},
    ]


def test_cores_of_a_kernel_that_says_little(tree: Tree) -> None:
    files = {"proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU\n\nprocessor\t: 1\nmodel name\t: Some CPU\n"}
    assert core_groups(tree(files)) == [{"cpus": [0, 1], "core": "Some CPU", "max_mhz": None, "capacity": None}]
    with pytest.raises(Unreadable, match="lists no processors"):
        core_groups(tree({"proc/cpuinfo": "Hardware\t: BCM2835\n"}))


def test_an_examination_is_json(tree: Tree, tmp_path: Path) -> None:
    found = examine(tmp_path / "none" / ".edgepipe", tree(orange_pi_5()))
    assert json.loads(json.dumps(found)) == found
    assert found["installed"] is None
    assert found["device"]["cpu_model"] == "4 x Cortex-A55 + 4 x Cortex-A76"
    assert found["bits"] == (64 if sys.maxsize > 2**32 else 32)


def test_an_engine_of_another_processor_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "onnxruntime.py": "import os, signal\nos.kill(os.getpid(), signal.SIGILL)",
        "ai_edge_litert/__init__.py": "",
        "ai_edge_litert/interpreter.py": "raise ImportError('libfoo.so: cannot open shared object file')",
        "tflite_runtime/__init__.py": "",
        "tflite_runtime/interpreter.py": "__version__ = '2.20.0'",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = load_engines(sys.executable)
    assert found["onnxruntime"] == {"version": version("onnxruntime"), "signal": signal.SIGILL, "error": None}
    assert found["ai-edge-litert"]["error"] == "ImportError: libfoo.so: cannot open shared object file"
    assert found["tflite-runtime"] == {"version": "of unknown version", "signal": None, "error": None}
