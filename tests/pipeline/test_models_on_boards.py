"""From a model's file to what an emulated board says of an image, as a user goes: `edgepipe export`, `edgepipe run`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.devices.qemu import QEMU
from edgepipe.pipeline import cli

pytest.importorskip("serial")
missing = [tool for tool in ("make", "arm-none-eabi-gcc", QEMU) if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}")

DATA = (Path(__file__).parents[2] / "../shared/data/vision").resolve()


@pytest.fixture
def edgepipe(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """``edgepipe(...)`` → the one JSON object that the command prints; the exit code is in it if it is not 0."""

    def run(*arguments: object) -> dict[str, Any]:
        with pytest.raises(SystemExit) as caught:
            cli.main([*map(str, arguments), "--json"])
        printed: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert caught.value.code == printed.get("error", {}).get("exit_code", 0)
        return printed

    return run


def noise(model: Path) -> tuple[np.ndarray, np.ndarray]:
    """An image of pixels, and what TFLite Micro makes of it."""
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    interpreter = runtime.Interpreter.from_file(str(model), arena_size=2**22)
    shape = tuple(interpreter.get_input_details(0)["shape"])
    pixels = np.random.default_rng(7).integers(0, 256, shape, np.uint8)
    interpreter.set_input((pixels.astype(np.int16) - 128).astype(np.int8), 0)
    interpreter.invoke()
    return pixels, np.array(interpreter.get_output(0))


def test_a_model_of_twice_the_boards_memory(edgepipe: Any, large_vision: Path, tmp_path: Path) -> None:
    """192 KiB, past which this board's emulation faults: refused whole, right in patches."""
    export = ("export", "--vision", large_vision, "--formats", "tflite,firmware", "--board", "netduinoplus2")
    refused = edgepipe(*export, "--sram", "1M", "-o", tmp_path / "whole")["error"]
    assert refused["type"] == "DoesNotFit"
    assert refused["message"].startswith("netduinoplus2 has 192.0 KiB of SRAM, the firmware needs 4")
    assert not (tmp_path / "whole").exists()
    assert "error" not in edgepipe(*export, "-o", tmp_path / "split")
    pixels, expected = noise(large_vision)
    np.save(tmp_path / "image.npy", pixels)
    answer = edgepipe("run", tmp_path / "split", "--image", tmp_path / "image.npy", "--device", "qemu:netduinoplus2")
    assert answer["output"] == expected.tolist()
    assert answer["patches"] > 1
    memory = answer["memory"]
    unseen = 16 + 4  # what rounds the arena up, and a byte or so that happens to be of the paint's colour
    assert memory["arena_bytes"] - unseen <= memory["arena_peak_bytes"] <= memory["arena_bytes"]
    assert memory["arena_bytes"] + memory["stack_bytes"] < 192 * 1024
    assert 0 < memory["stack_peak_bytes"] < memory["stack_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("board", ["netduinoplus2", "mps2-an500", "mps3-an547"])
@pytest.mark.parametrize(
    ("name", "patches"),
    [("vww_96_int8", ()), ("vww_96_int8", ("--sram", "40K")), ("resnet8_cifar10_int8", ("--sram", "36K"))],
)
def test_real_models(edgepipe: Any, name: str, patches: tuple[str, ...], board: str, tmp_path: Path) -> None:
    model = DATA / f"{name}.tflite"
    if not model.exists():
        pytest.skip(f"no real models: {model} is absent")
    export = ("export", "--vision", model, "--formats", "tflite,firmware", "--board", board)
    assert "error" not in edgepipe(*export, *patches, "-o", tmp_path / "bundle")
    pixels, expected = noise(model)
    np.save(tmp_path / "image.npy", pixels)
    answer = edgepipe("run", tmp_path / "bundle", "--image", tmp_path / "image.npy", "--device", f"qemu:{board}")
    assert answer["output"] == expected.tolist()
    assert (answer["patches"] > 1) == bool(patches)
