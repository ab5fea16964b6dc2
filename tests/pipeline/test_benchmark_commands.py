"""The commands of MLPerf Tiny on an emulated board: what its public runner does, with a bundle's firmware as built."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepipe.devices.boards import find_board
from edgepipe.devices.qemu import QEMU, Emulator
from edgepipe.pipeline.build_firmware import build_firmware, bundle_firmware
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.export import export
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.vision_recipe import VisionRecipe

missing = [tool for tool in ("make", "arm-none-eabi-gcc", QEMU) if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}")

PIXELS = np.random.default_rng(5).integers(0, 256, 24 * 20 * 3, np.uint8).tobytes()
SECONDS = 60


class Board:
    """A line to a board that answers in text."""

    def __init__(self, port: str) -> None:
        host, _, number = port.removeprefix("socket://").partition(":")
        self.line = socket.create_connection((host, int(number)), timeout=SECONDS).makefile("rwb")
        self.answer()

    def command(self, text: str) -> list[str]:
        self.line.write(f"{text}%".encode())
        self.line.flush()
        return self.answer()

    def answer(self) -> list[str]:
        lines = []
        while (line := self.line.readline().decode("ascii").strip()) != "m-ready":
            assert line, "the board has stopped"
            lines.append(line)
        return lines

    def load(self) -> None:
        """31 bytes a command, as the runner sends them."""
        assert self.command(f"db load {len(PIXELS)}") == [f"m-[Expecting {len(PIXELS)} bytes]"]
        answers = [self.command(f"db {PIXELS[begin : begin + 31].hex()}") for begin in range(0, len(PIXELS), 31)]
        assert answers[-1] == ["m-load-done"]

    def infer(self, repeats: int, warm_ups: int) -> tuple[int, list[float]]:
        """Microseconds and scores."""
        lines = "\n".join(self.command(f"infer {repeats} {warm_ups}"))
        begin, end = map(int, re.findall(r"^m-lap-us-(\d+)$", lines, re.MULTILINE))
        (scores,) = re.findall(r"^m-results-\[([^]]+)\]$", lines, re.MULTILINE)
        return end - begin, [float(score) for score in scores.split(",")]


@pytest.fixture
def board(tiny_vision: Path, tmp_path: Path) -> Iterator[Board]:
    """With the whole model, nothing but what a user types to get it."""
    recipe = VisionRecipe(str(tiny_vision), formats=("firmware",), board="netduinoplus2")
    bundle = Bundle.open(export(Recipe(vision=recipe), tmp_path / "bundle").folder)
    with Emulator(find_board("netduinoplus2"), build_firmware(bundle, bundle_firmware(bundle))) as emulator:
        yield Board(emulator.port)


def test_an_image_is_run_again_and_again(board: Board, tiny_vision: Path) -> None:
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    interpreter = runtime.Interpreter.from_file(str(tiny_vision), arena_size=2**20)
    codes = (np.frombuffer(PIXELS, np.uint8).astype(np.int16) - 128).astype(np.int8).reshape(1, 24, 20, 3)
    interpreter.set_input(codes, 0)
    interpreter.invoke()
    expected = ((np.array(interpreter.get_output(0)).ravel().astype(int) + 128) / 256).tolist()
    board.load()
    per_image = []
    for repeats, warm_ups in ((1, 0), (5, 2), (10, 1)):
        us, scores = board.infer(repeats, warm_ups)
        assert scores == pytest.approx(expected, abs=5e-4)
        per_image.append(us / repeats)
    # Instructions, counted as time: the first is alone with its lines of text.
    assert per_image[1] == pytest.approx(per_image[2], rel=0.01)
