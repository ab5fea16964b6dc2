"""A bundle's firmware on emulated boards, from Python and as a user meets it."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.devices.boards import find_board
from edgepipe.devices.mcu import open_mcu
from edgepipe.devices.qemu import QEMU, Emulator
from edgepipe.errors import BundleError, DeviceUnreachable, EdgepipeError, RecipeError
from edgepipe.pipeline import cli
from edgepipe.pipeline.build_firmware import build_firmware, bundle_firmware
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.export import export
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.run_on_board import run_on_board
from edgepipe.pipeline.vision_recipe import VisionRecipe

pytest.importorskip("serial")

TOOLS = ("make", "arm-none-eabi-gcc", QEMU)
missing = [tool for tool in TOOLS if shutil.which(tool) is None]
needs_tools = pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}")


def firmware_bundle(model: Path, folder: Path, board: str, **options: Any) -> Path:
    recipe = VisionRecipe(str(model), formats=("tflite", "firmware"), board=board, **options)
    return export(Recipe(vision=recipe), folder / "bundle").folder


@pytest.fixture(scope="module")
def streamed(tiny_vision: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_vision` in patches, for a board with 15 KiB of its SRAM left."""
    return firmware_bundle(tiny_vision, tmp_path_factory.mktemp("streamed"), "netduinoplus2", sram="15K")


def photograph() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (1, 24, 20, 3), np.uint8)


def oracle(model: Path) -> list[int]:
    """What TFLite Micro says of the photograph."""
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    interpreter = runtime.Interpreter.from_file(str(model), arena_size=2**20)
    interpreter.set_input((photograph().astype(np.int16) - 128).astype(np.int8), 0)
    interpreter.invoke()
    return np.array(interpreter.get_output(0)).ravel().tolist()


@needs_tools
def test_patches_on_an_emulated_board(streamed: Path, tiny_vision: Path) -> None:
    answer = run_on_board(streamed, photograph(), "qemu:netduinoplus2", top_k=2)
    assert answer.output.ravel().tolist() == oracle(tiny_vision)
    assert answer.patches == len(json.loads((streamed / "vision/plan.json").read_text())["tiles"]) > 1
    scores = sorted(((code + 128) / 256 for code in oracle(tiny_vision)), reverse=True)
    assert [guess.score for guess in answer.top] == scores[:2]
    assert answer.work.instructions is not None
    assert answer.work.instructions > 100_000
    assert answer.work.us is answer.run_ms is None
    assert len(answer.steps) == answer.patches + 1
    assert sum(step.count for step in answer.steps) == pytest.approx(answer.work.instructions, abs=10)
    in_layers = sum(layer.work.count for layer in answer.layers)
    assert 0.95 * answer.work.instructions < in_layers <= answer.work.instructions
    assert sum(layer.share for layer in answer.layers) == pytest.approx(1)
    assert {layer.calls for layer in answer.layers} == {1, answer.patches}
    assert answer.line.bytes_sent > photograph().size
    assert answer.memory.arena_peak_bytes <= answer.memory.arena_bytes <= 15 * 1024
    assert 0 < answer.memory.stack_peak_bytes <= answer.memory.stack_bytes


@needs_tools
@pytest.mark.slow
@pytest.mark.parametrize("board", ["mps2-an500", "mps3-an547"])
@pytest.mark.parametrize("options", [{"sram": "15K"}, {"sram": "18K", "mode": "resident"}, {}])
def test_other_cores_and_modes(tiny_vision: Path, tmp_path: Path, board: str, options: dict[str, Any]) -> None:
    bundle = firmware_bundle(tiny_vision, tmp_path, board, **options)
    answer = run_on_board(bundle, photograph(), f"qemu:{board}")
    assert answer.output.ravel().tolist() == oracle(tiny_vision)


@needs_tools
def test_an_emulator_is_stopped(streamed: Path) -> None:
    bundle = Bundle.open(streamed)
    board = find_board("netduinoplus2")
    with pytest.raises(ZeroDivisionError), Emulator(board, build_firmware(bundle, bundle_firmware(bundle))) as emulator:
        raise ZeroDivisionError
    address = emulator.port.removeprefix("socket://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address[0], int(address[1])))


@needs_tools
def test_an_emulator_that_ends_says_why(streamed: Path, tmp_path: Path) -> None:
    (tmp_path / "no.elf").write_text("no program")
    board = find_board("mps3-an547")
    message = r"qemu-system-arm has ended \(qemu: fatal: Lockup.+\): see that it emulates mps3-an547$"
    with pytest.raises(DeviceUnreachable, match=message), Emulator(board, tmp_path / "no.elf") as emulator:
        open_mcu(emulator.port, 115200, None)


@needs_tools
def test_a_board_with_another_firmware(streamed: Path, tiny_vision: Path, tmp_path: Path) -> None:
    other = Bundle.open(firmware_bundle(tiny_vision, tmp_path, "netduinoplus2"))
    emulator = Emulator(find_board("netduinoplus2"), build_firmware(other, bundle_firmware(other)))
    with emulator, pytest.raises(DeviceUnreachable, match="runs another model"):
        run_on_board(streamed, photograph(), f"mcu:{emulator.port}")


@needs_tools
def test_an_emulator_behind_a_port_tells_no_time(edgepipe: Any, streamed: Path) -> None:
    bundle = Bundle.open(streamed)
    emulator = Emulator(find_board("netduinoplus2"), build_firmware(bundle, bundle_firmware(bundle)))
    with emulator:
        code, _, err = edgepipe(streamed, "--image", "photograph.npy", "--device", f"mcu:{emulator.port}")
    assert code == 0
    assert re.search(r" · \d+\.\d\d ms of computing by an emulator's clock: no time · ", err)


@pytest.mark.parametrize("device", ["", "mcu", "mcu:", "qemu:", "usb:1", "/dev/ttyACM0"])
def test_what_is_no_device(streamed: Path, device: str) -> None:
    with pytest.raises(RecipeError, match=r"expected mcu:PORT, as in mcu:/dev/ttyACM0, or qemu:BOARD$"):
        run_on_board(streamed, photograph(), device)


def test_what_does_not_fit_together(streamed: Path, vision_bundle: Path) -> None:
    for device, error, message in (
        ("qemu:mps3-an547", BundleError, "holds firmware for netduinoplus2, not mps3-an547: export again with --board"),
        ("qemu:netduinoplus", EdgepipeError, "no board 'netduinoplus': did you mean netduinoplus2"),
        ("mcu:/dev/no-such-port", DeviceUnreachable, "cannot be opened"),
    ):
        with pytest.raises(error, match=message):
            run_on_board(streamed, photograph(), device)
    with pytest.raises(BundleError, match="holds no firmware: export again with --formats"):
        run_on_board(vision_bundle, photograph(), "qemu:netduinoplus2")
    with pytest.raises(RecipeError, match="baud is 9600: expected 115200 or more"):
        run_on_board(streamed, photograph(), "mcu:/dev/no-such-port", baud=9600)


def test_it_says_which_tool_to_install(streamed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EdgepipeError, match="make is not installed, the firmware cannot be built: apt install make"):
        run_on_board(streamed, photograph(), "qemu:netduinoplus2")


@pytest.fixture
def edgepipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs `edgepipe run` in a folder with the photograph; gives exit code, stdout and stderr."""
    np.save(tmp_path / "photograph.npy", photograph())
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(["run", *map(str, arguments)])
        assert isinstance(caught.value.code, int)
        return caught.value.code, *capsys.readouterr()

    return run


@needs_tools
def test_a_user_runs_an_emulated_board(edgepipe: Any, streamed: Path, tiny_vision: Path) -> None:
    arguments = (streamed, "--image", "photograph.npy", "--device", "qemu:netduinoplus2")
    code, out, err = edgepipe(*arguments, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["output"] == [oracle(tiny_vision)]
    assert answer["line"]["frames_damaged"] == 0
    assert answer["memory"]["arena_bytes"] == answer["planned_arena_bytes"]
    assert all(layer["work"]["us"] is None and layer["work"]["instructions"] for layer in answer["layers"])
    code, out, err = edgepipe(*arguments, "--top-k", "2")
    scores = sorted(((code + 128) / 256 for code in oracle(tiny_vision)), reverse=True)
    assert [float(line.split()[0]) for line in out.splitlines()] == pytest.approx(scores[:2], abs=5e-5)
    assert re.fullmatch(
        r" share +instructions  calls  layer\n"
        r"( *\d+\.\d%  +[\d,]+  +\d+  [A-Zc][^\n]+\n)+"
        r" *\d+\.\d%  +[\d,]+  +\d+  stitch tiles together\n"
        r"qemu:netduinoplus2 · \d+ patches · \d+\.\d\d million instructions · \d+ bytes sent, \d+ of them again · "
        r"arena painted to \d+ of \d+ bytes planned · stack to \d+ of \d+\n",
        err,
    )


def test_an_unreachable_board_is_exit_code_4(edgepipe: Any, streamed: Path) -> None:
    code, out, err = edgepipe(streamed, "--image", "photograph.npy", "--device", "mcu:/dev/no-such-port")
    assert (code, out) == (4, "")
    assert re.fullmatch(r"error: /dev/no-such-port cannot be opened \(No such file or directory\): [^\n]+\n", err)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "qemu:netduinoplus2"], "--device and --baud belong to an --image FILE"),
        (["--image", "photograph.npy", "--baud", "115200"], "--baud belongs to a --device mcu:PORT"),
        (["--image", "photograph.npy", "--device", "mcu:x", "--exact"], "--exact is of an engine here"),
        (["--image", "photograph.npy", "--device", "mcu:x", "--engine", "onnx"], "--engine is of an engine here"),
    ],
)
def test_flags_that_do_not_go_together(edgepipe: Any, streamed: Path, flags: list[str], message: str) -> None:
    code, out, err = edgepipe(streamed, *flags)
    assert (code, out) == (2, "")
    assert message in err
