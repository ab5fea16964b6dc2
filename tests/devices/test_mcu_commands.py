"""The commands of MLPerf Tiny, as its public runner sends them and reads their answers."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


class Runner:
    """What a runner does: a command ends in %, its answer is lines, the last of which holds ``m-ready``."""

    def __init__(self, program: Path, tiles: int) -> None:
        environment = os.environ | {"TILES": str(tiles)}
        self.board = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert self.answer() == ["m-init-done"]

    def command(self, text: str) -> list[str]:
        assert self.board.stdin is not None
        self.board.stdin.write(f"{text}%".encode())
        self.board.stdin.flush()
        return self.answer()

    def answer(self) -> list[str]:
        assert self.board.stdout is not None
        lines: list[str] = []
        while True:
            line = self.board.stdout.readline().decode("ascii")
            assert line.endswith("\r\n"), "the board has stopped"
            if "m-ready" in line:
                assert line == "m-ready\r\n"
                return lines
            lines.append(line.removesuffix("\r\n"))

    def load(self, image: bytes, size: int) -> list[str]:
        """Send an image ``size`` bytes at a time; returns the last answer."""
        assert self.command(f"db load {len(image)}") == [f"m-[Expecting {len(image)} bytes]"]
        answers = [self.command(f"db {image[begin : begin + size].hex()}") for begin in range(0, len(image), size)]
        assert not any(answers[:-1])
        return answers[-1]


Start = Callable[..., Runner]


@pytest.fixture(scope="module")
def keeping_program(fake: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program: Path | None = fake.build(tmp_path_factory.mktemp("keeping"), "-DEDGEPIPE_KEEP_IMAGE=1")
    if program is None:
        pytest.skip("no gcc")
    return program


@pytest.fixture
def start() -> Iterator[Start]:
    """``start(program, tiles)`` → a runner with a board."""
    runners: list[Runner] = []

    def begin(program: Path, tiles: int = 1) -> Runner:
        runners.append(Runner(program, tiles))
        return runners[-1]

    yield begin
    for runner in runners:
        runner.board.communicate()
        assert runner.board.returncode == 0


def results_of(fake: ModuleType, image: bytes) -> list[float]:
    """Pixels to int8 codes, the fake model, codes to scores with 3 places: scale 0.25, zero point -3."""
    codes = bytes((pixel - 128) % 256 for pixel in image)
    output = fake.expected_output([codes])
    return [0.25 * ((code ^ 128) - 128 + 3) for code in output]


def parsed(lines: list[str]) -> tuple[list[int], list[float]]:
    """Laps in microseconds and scores, by the runner's patterns."""
    laps = [int(match[1]) for line in lines if (match := re.match(r"^m-lap-us-([0-9]+)$", line))]
    scores = [match[1] for line in lines if (match := re.match(r"^m-results-\[([^]]+)\]$", line))]
    assert len(scores) == 1
    assert all(re.fullmatch(r"-?\d+\.\d{3}", score) for score in scores[0].split(","))
    return laps, [float(score) for score in scores[0].split(",")]


def test_who_is_there(fake: ModuleType, board_program: Path, start: Start) -> None:
    runner = start(board_program)
    (name,) = runner.command("name")
    assert re.match(r"^m-(name)-dut-\[([^]]+)]$", name)
    profile = [re.findall(r"^m-(model|profile)-\[([^]]+)]$", line)[0] for line in runner.command("profile")]
    assert dict(profile) == {"profile": "ULPMark for tinyML Firmware V0.0.1", "model": fake.MODEL_HASH}
    assert re.match(r"^m-lap-us-[0-9]+$", *runner.command("timestamp"))
    described = "\n".join(runner.command("help"))
    assert all(word in described for word in ("name", "timestamp", "db load", "infer", "results"))


@pytest.mark.parametrize("size", [26, 31, 90])
def test_one_image(fake: ModuleType, board_program: Path, start: Start, size: int) -> None:
    runner = start(board_program)
    for seed in range(3):
        (image,) = fake.noise(1, seed)
        assert runner.load(image, size) == ["m-load-done"]
        lines = runner.command("infer 1 0")
        order = ["m-warmup-start-0", "m-warmup-done", "m-infer-start-1", "m-lap-us-", "m-lap-us-", "m-infer-done"]
        assert [line[: len(begin)] for line, begin in zip(lines, order, strict=False)] == order
        laps, scores = parsed(lines)
        assert laps[1] - laps[0] == 1500
        assert scores == results_of(fake, image)
        assert runner.command("results") == lines[-1:]


def test_an_image_is_printed(fake: ModuleType, board_program: Path, start: Start) -> None:
    runner = start(board_program)
    (image,) = fake.noise(1)
    runner.load(image, 31)
    lines = runner.command("db print")
    assert all(re.fullmatch(r"m-buffer-[0-9a-f]{2}(-[0-9a-f]{2}){0,7}", line) for line in lines)
    assert bytes.fromhex("".join(line.removeprefix("m-buffer-").replace("-", "") for line in lines)) == image
    assert parsed(runner.command("infer 1 0"))[1] == results_of(fake, image)


def test_a_kept_image_is_run_again(fake: ModuleType, keeping_program: Path, start: Start) -> None:
    runner = start(keeping_program)
    (image,) = fake.noise(1)
    runner.load(image, 31)
    for command, warm_ups, inferences in (("infer 3 2", 2, 3), ("infer 4", 10, 4), ("infer", 10, 1)):
        lines = runner.command(command)
        assert f"m-warmup-start-{warm_ups}" in lines
        assert f"m-infer-start-{inferences}" in lines
        laps, scores = parsed(lines)
        assert laps[1] - laps[0] == inferences * 1500
        assert scores == results_of(fake, image)


def test_an_image_that_is_not_kept_is_run_once(fake: ModuleType, board_program: Path, start: Start) -> None:
    runner = start(board_program)
    runner.load(fake.noise(1)[0], 31)
    assert runner.command("infer 2 0")[0].startswith("e-[The image is gone after one inference")
    parsed(runner.command("infer"))
    assert runner.command("infer 1 0")[0].startswith("e-[There is no image")


def test_a_damaged_piece_is_refused_and_can_be_sent_again(fake: ModuleType, board_program: Path, start: Start) -> None:
    runner = start(board_program)
    (image,) = fake.noise(1)
    runner.command("db load 90")
    assert runner.command(f"db {image[:30].hex()[:-1]}") == ["e-[Insufficent number of hex digits]"]
    assert runner.command(f"db {image[:30].hex()[:-2]}0x") == ["e-[Invalid hex digit '0x']"]
    assert runner.command(f"db {image[:45].hex().upper()}") == []
    assert runner.command(f"db {image[45:].hex()}ffff") == ["m-load-done"]  # what is too much does not count
    assert parsed(runner.command("infer 1 0"))[1] == results_of(fake, image)


def test_what_cannot_be_obeyed(board_program: Path, start: Start) -> None:
    runner = start(board_program)
    for command, answer in {
        "": "e-[Unknown command: ]",
        "nonsense 7": "e-[Unknown command: nonsense]",
        "names": "e-[Unknown command: names]",
        "db": "e-[Command 'db' requires a subcommand]",
        "db load": "e-[Command 'db load' requires the # of bytes]",
        "db load 0": "e-[The model takes 90 bytes]",
        "db load 91": "e-[The model takes 90 bytes]",
        "db load 90x": "e-[The model takes 90 bytes]",
        "db load 99999999999999999999": "e-[The model takes 90 bytes]",
        "db 00": "e-[No bytes are expected: db load N first]",
        "db print": "e-[There is no image: db load N first]",
        "infer 0": "e-[Inference iterations must be >0]",
        "infer -1": "e-[Inference iterations must be >0]",
        "infer 1 -1": "e-[Inference warmup must be >=0]",
        "infer 1 0": "e-[There is no image: db load N and its bytes first]",
        "results": "e-[No inference has been run: load an image, then infer]",
        "x" * 5000: "e-[The command is too long]",
    }.items():
        assert runner.command(command) == [answer]
    assert runner.command("\r\nname") == ["m-name-dut-[edgepipe]"]
    runner.command("db load 90")
    runner.command("db 0011")
    assert runner.command("infer 1 0") == ["e-[There is no image: db load N and its bytes first]"]


def test_a_model_of_patches_takes_no_image(board_program: Path, start: Start) -> None:
    runner = start(board_program, tiles=6)
    assert runner.command("db load 90") == ["e-[The model runs patch by patch: send frames, as edgepipe run does]"]
    assert runner.command("infer 1 0")[0].startswith("e-[There is no image")
