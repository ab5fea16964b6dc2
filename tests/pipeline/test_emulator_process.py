"""Emulators that a user starts: none is left behind, however `edgepipe run` ends, and what ends them is told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepipe.devices.qemu import QEMU
from edgepipe.pipeline.export import export
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.vision_recipe import VisionRecipe

pytest.importorskip("serial")
psutil = pytest.importorskip("psutil")
missing = [tool for tool in ("make", "arm-none-eabi-gcc", QEMU) if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}"),
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
]
BOARD = "netduinoplus2"
ENOUGH_S = 120.0


@pytest.fixture(scope="module")
def bundle(tiny_vision: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emulated")
    recipe = VisionRecipe(str(tiny_vision), formats=("tflite", "firmware"), board=BOARD, sram="15K")
    shutil.copy(tiny_vision, folder / "model.tflite")
    np.save(folder / "image.npy", np.random.default_rng(5).integers(0, 256, (1, 24, 20, 3), np.uint8))
    return export(Recipe(vision=recipe), folder / "bundle").folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the firmware is built once for all."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def start(bundle: Path, cache: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """``start()`` → a user's `edgepipe run` on the emulated board."""
    started: list[subprocess.Popen[str]] = []

    def begin() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "edgepipe", "run", str(bundle), "--json"]
        command += ["--image", str(bundle.parent / "image.npy"), "--device", f"qemu:{BOARD}"]
        environment = os.environ | {"EDGEPIPE_CACHE_DIR": str(cache)}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def frozen_emulator(process: subprocess.Popen[str]) -> psutil.Process:
    """The emulator that it has started; it does not go on, so that what happens next happens half-way."""
    end = time.monotonic() + ENOUGH_S
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        for child in psutil.Process(process.pid).children():
            if child.name().startswith(QEMU[:15]):
                child.suspend()
                return child
        time.sleep(0.005)
    pytest.fail("no emulator has started")


def wait_until_gone(emulator: psutil.Process) -> None:
    end = time.monotonic() + ENOUGH_S
    while emulator.is_running() and emulator.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, "the emulator is left behind"
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_none_is_left_behind(start: Callable[[], subprocess.Popen[str]], number: int, code: int) -> None:
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux ends a child with its parent")
    process = start()
    emulator = frozen_emulator(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == code
    assert "Traceback" not in err
    assert out == (
        '{"error": {"type": "Interrupted", "message": "interrupted", "exit_code": 130}}\n' if code == 130 else ""
    )
    wait_until_gone(emulator)


@pytest.mark.parametrize("verb", ["run", "flash"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_make_is_left_behind(bundle: Path, tmp_path: Path, verb: str, number: int) -> None:
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux ends a child with its parent")
    (tmp_path / "make").write_text(
        f'#!/bin/sh\necho $$ > "{tmp_path}/new" && mv "{tmp_path}/new" "{tmp_path}/pid"\nexec sleep 600\n'
    )
    (tmp_path / "make").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "EDGEPIPE_CACHE_DIR": str(tmp_path / "cache"),
    }
    if verb == "run":
        arguments = [str(bundle), "--image", str(bundle.parent / "image.npy"), "--device", f"qemu:{BOARD}"]
    else:
        recipe = VisionRecipe(str(bundle.parent / "model.tflite"), formats=("firmware",), board="rp2040")
        arguments = [str(export(Recipe(vision=recipe), tmp_path / "rp2040").folder)]
    process = subprocess.Popen([sys.executable, "-m", "edgepipe", verb, *arguments], env=environment)
    end = time.monotonic() + ENOUGH_S
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    make = psutil.Process(int((tmp_path / "pid").read_text()))
    process.send_signal(number)
    assert process.wait(ENOUGH_S) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    wait_until_gone(make)
    left = [path.name for path in (tmp_path / "cache/firmware").iterdir()]
    assert len(left) == (1 if number == signal.SIGKILL else 0)  # the next that builds takes it away


def test_an_emulator_that_is_killed_half_way(start: Callable[[], subprocess.Popen[str]]) -> None:
    process = start()
    frozen_emulator(process).kill()
    out, err = process.communicate(timeout=ENOUGH_S)
    assert (process.returncode, err) == (4, "")
    assert json.loads(out)["error"]["message"] == f"something has ended {QEMU}: run again"


def test_two_at_once(start: Callable[[], subprocess.Popen[str]]) -> None:
    both = [start(), start()]
    answers = [json.loads(process.communicate(timeout=ENOUGH_S)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert answers[0]["output"] == answers[1]["output"]
    assert answers[0]["memory"] == answers[1]["memory"]
