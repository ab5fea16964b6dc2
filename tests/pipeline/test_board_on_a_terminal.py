"""A board at a path in /dev, as `--device mcu:PORT` meets it: QEMU gives its serial port a terminal of its own."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.devices.boards import find_board
from edgepipe.devices.mcu import open_mcu
from edgepipe.devices.qemu import QEMU
from edgepipe.errors import DeviceUnreachable
from edgepipe.pipeline import cli
from edgepipe.pipeline.build_firmware import build_firmware, bundle_firmware
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.export import export
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.run_on_board import run_on_board
from edgepipe.pipeline.vision_recipe import VisionRecipe
from edgepipe.runtimes.vision.plan import read_plan

pytest.importorskip("serial")
pytest.importorskip("termios")
missing = [tool for tool in ("make", "arm-none-eabi-gcc", QEMU) if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}")
BOARD = "netduinoplus2"


class Board:
    """QEMU as somebody else has started it."""

    def __init__(self, program: Path) -> None:
        command = [QEMU, "-machine", str(find_board(BOARD).qemu), "-kernel", str(program), "-icount", "shift=0"]
        command += ["-serial", "pty", "-monitor", "none", "-display", "none"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.search(r"redirected to (\S+)", said)
        assert found is not None, said
        self.port = found[1]


@pytest.fixture(scope="module")
def bundle(tiny_vision: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    recipe = VisionRecipe(str(tiny_vision), formats=("firmware",), board=BOARD, sram="15K")
    return Bundle.open(export(Recipe(vision=recipe), tmp_path_factory.mktemp("terminal") / "bundle").folder)


@pytest.fixture(scope="module")
def program(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path_factory.mktemp("programs")))
        return build_firmware(bundle, bundle_firmware(bundle))


@pytest.fixture
def board(program: Path) -> Iterator[Board]:
    running = Board(program)
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    np.save(tmp_path / "image.npy", np.random.default_rng(5).integers(0, 256, (1, 24, 20, 3), np.uint8))
    return tmp_path / "image.npy"


@pytest.fixture
def edgepipe(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """``edgepipe(...)`` → exit code, and the JSON that is printed."""

    def run(*arguments: object) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as caught:
            cli.main([*map(str, arguments), "--json"])
        assert isinstance(caught.value.code, int)
        return caught.value.code, json.loads(capsys.readouterr().out)

    return run


def test_image_after_image(edgepipe: Any, board: Board, bundle: Bundle, image: Path) -> None:
    expected = run_on_board(bundle.folder, np.load(image), f"qemu:{BOARD}").output.tolist()
    for baud in ("115200", "921600"):  # a terminal has none, but is told
        code, answer = edgepipe("run", bundle.folder, "--image", image, "--device", f"mcu:{board.port}", "--baud", baud)
        assert (code, answer["output"]) == (0, expected)


def test_it_is_gone_half_way(board: Board, bundle: Bundle, image: Path) -> None:
    """With the middle of the image."""
    plan = read_plan(bundle.path("vision/plan.json"))
    codes = (np.load(image)[0].astype(np.int16) - 128).astype(np.int8)

    def rows() -> Iterator[np.ndarray]:
        for number, row in enumerate(codes):
            if number == len(codes) // 2:
                board.process.kill()
                board.process.wait()
            yield row

    with (
        open_mcu(board.port, 115200, bundle_firmware(bundle).model_hash) as mcu,
        pytest.raises(
            DeviceUnreachable, match=rf"^{board.port} is gone \([^()\n]+\): plug the board in and run again$"
        ),
    ):
        mcu.run(plan, rows())


def test_it_is_gone_while_it_answers(edgepipe: Any, board: Board, bundle: Bundle, image: Path) -> None:
    """Frozen, then killed: it has heard half of what it was sent."""
    board.process.send_signal(signal.SIGSTOP)
    threading.Timer(1.0, board.process.kill).start()
    code, answer = edgepipe("run", bundle.folder, "--image", image, "--device", f"mcu:{board.port}")
    assert code == 4
    assert re.fullmatch(
        rf"{board.port} (is gone \([^()]+\): plug the board in and run again|does not answer at 115200 baud: .+)",
        answer["error"]["message"],
    )


def test_nobody_is_there_any_more(edgepipe: Any, board: Board, bundle: Bundle, image: Path) -> None:
    board.process.kill()
    board.process.wait()
    code, answer = edgepipe("run", bundle.folder, "--image", image, "--device", f"mcu:{board.port}")
    assert code == 4
    assert answer["error"]["message"].startswith(f"{board.port} cannot be opened (No such file or directory): ")
