"""Boards on a serial line that is good, bad, silent or gone: the firmware's protocol, with sanitizers on."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from edgepipe.devices import mcu as mcu_module
from edgepipe.devices.mcu import Mcu, open_mcu
from edgepipe.devices.mcu_frames import ANSWER, Frame, FrameReader, Kind, encode
from edgepipe.devices.mcu_line import McuLine
from edgepipe.errors import DeviceUnreachable, MissingExtra
from edgepipe.runtimes.vision.plan import Region, TensorFormat, Tile, VisionPlan

pytest.importorskip("serial")


def connected(port: str, model_hash: str | None = None, *, baud: int = 10**7, silence_s: float = 3.0) -> Mcu:
    """A board on a line that waits no longer than a process takes to answer."""
    return Mcu(McuLine(port, baud, answer_s=0.02, silence_s=silence_s), model_hash)


def plan_of(fake: ModuleType, tiles: int) -> VisionPlan:
    """A plan whose windows are as large as the fake model's patches: pieces of one row, side by side."""
    ends = np.cumsum([fake.patch_bytes(tile, tiles) for tile in range(tiles)]).tolist()
    spans = list(zip([0, *ends], ends, strict=False))
    image = TensorFormat((1, 1, ends[-1], 1), "int8", 1.0, 0)
    return VisionPlan(
        input=image,
        output=TensorFormat((1, fake.OUTPUT_BYTES), "int8", 1.0, 0),
        stage=TensorFormat((1, 1, tiles, 1), "int8", 1.0, 0),
        split=1,
        grid=(1, tiles),
        tiles=tuple(
            Tile("tile", Region((0, 1), span), Region((0, 1), (index, index + 1))) for index, span in enumerate(spans)
        ),
        mode="streamed",
        macs=0,
        whole_macs=0,
        memory=None,  # type: ignore[arg-type]  # nobody looks at it
        mean=None,
        std=None,
        labels=None,
    )


def test_a_good_line(fake: ModuleType, board_program: Path) -> None:
    patches = fake.noise(20)[:20]
    with fake.FakeBoard(board_program, 20) as board, connected(board.port, fake.MODEL_HASH) as mcu:
        assert (mcu.firmware.tiles, mcu.firmware.output_bytes, mcu.firmware.largest_patch_bytes) == (20, 600, 200)
        for _ in range(2):
            output, step_cycles, layers = mcu.infer(lambda: patches)
            assert output == fake.expected_output(patches)
            assert mcu.firmware.clock_mhz == 3000
            assert step_cycles == (3_000_000,) * 20 + (1_500_000,)
            assert layers == (("HASH of a patch", 20, 60_000_000), ("NOISE of the hash", 1, 1_500_000))
        statistics = mcu.line.statistics
        assert statistics.bytes_sent > 2 * sum(map(len, patches))
        assert statistics.frames_damaged == 0


def test_windows_of_an_image(fake: ModuleType, board_program: Path) -> None:
    plan = plan_of(fake, 12)
    image = np.random.default_rng(0).integers(-128, 128, plan.input.shape, np.int8)
    windows = [tile.window.of(image).tobytes() for tile in plan.tiles]
    with fake.FakeBoard(board_program, 12) as board, connected(board.port) as mcu:
        for given in (image, iter(image[0])):
            answer = mcu.run(plan, given)
            assert answer.output.tobytes() == fake.expected_output(windows)
            assert (answer.output.shape, answer.output.dtype) == ((1, 600), np.int8)
            assert sum(answer.step_cycles) == sum(layer.cycles for layer in answer.layers) == 3000 * (12 * 1000 + 500)
            assert (answer.memory.arena_bytes, answer.memory.arena_peak_bytes) == (800, 700)
            assert (answer.memory.stack_bytes, answer.memory.stack_peak_bytes) == (4096, 512)


@pytest.mark.parametrize("rate", [1e-3, 1e-2])
def test_a_bad_line(fake: ModuleType, board_program: Path, rate: float) -> None:
    run_on_bad_line(fake, board_program, 40, rate, seed=1)


@pytest.mark.parametrize("rate", [0, 1e-3, 5e-3])
def test_a_board_that_is_deaf_while_it_sends(fake: ModuleType, board_program: Path, rate: float) -> None:
    patches = fake.noise(8)
    board = fake.FakeBoard(board_program, 8, rate=rate, seed=2, deaf=True)
    with board, connected(board.port, baud=115200) as mcu:
        assert mcu.infer(lambda: patches)[0] == fake.expected_output(patches)


def test_a_board_that_takes_its_time(fake: ModuleType, board_program: Path) -> None:
    patches = fake.noise(6)
    with fake.FakeBoard(board_program, 6, compute_ms=60) as board, connected(board.port) as mcu:
        pieces = mcu.line.piece_bytes
        assert mcu.infer(lambda: patches)[0] == fake.expected_output(patches)
        assert mcu.line.piece_bytes == pieces  # waiting says nothing of the line
        resent = mcu.line.statistics.frames_resent
        assert mcu.infer(lambda: patches)[0] == fake.expected_output(patches)
        assert mcu.line.statistics.frames_resent - resent <= 1  # it knows by now how long the board takes


def test_a_board_that_computes_for_ever(fake: ModuleType, board_program: Path) -> None:
    with fake.FakeBoard(board_program, 6, compute_ms=10**6) as board:
        line = McuLine(board.port, 10**7, answer_s=0.02, compute_s=0.2)
        with (
            Mcu(line, None) as mcu,
            pytest.raises(DeviceUnreachable, match=r"has computed for 0.2 s: reset the board$"),
        ):
            mcu.infer(lambda: fake.noise(6))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("rate", [1e-3, 1e-2])
def test_a_bad_line_for_a_thousand_patches(fake: ModuleType, board_program: Path, rate: float, seed: int) -> None:
    run_on_bad_line(fake, board_program, 1000, rate, seed)


def run_on_bad_line(fake: ModuleType, program: Path, tiles: int, rate: float, seed: int) -> None:
    patches = fake.noise(tiles, seed)
    with fake.FakeBoard(program, tiles, rate=rate, seed=seed) as board, connected(board.port) as mcu:
        output, step_cycles, layers = mcu.infer(lambda: patches)
        assert output == fake.expected_output(patches)
        assert sum(step_cycles) == 3000 * (tiles * 1000 + 500)
        assert [layer.calls for layer in layers] == [tiles, 1]
        assert board.to_board.count > 0
        assert board.to_host.count > 0
        assert mcu.line.statistics.frames_resent > 0


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_a_line_that_is_too_bad(fake: ModuleType, board_program: Path, rate: float) -> None:
    patches = fake.noise(5)
    board = fake.FakeBoard(board_program, 5, rate=rate, seed=3)
    with board, contextlib.suppress(DeviceUnreachable), connected(board.port, silence_s=1.0) as mcu:
        assert mcu.infer(lambda: patches)[0] == fake.expected_output(patches)


def test_another_model(fake: ModuleType, board_program: Path) -> None:
    with (
        fake.FakeBoard(board_program, 3) as board,
        pytest.raises(DeviceUnreachable, match="runs another model") as said,
    ):
        connected(board.port, "f" * 64)
    assert str(said.value).endswith(": edgepipe flash BUNDLE")


def test_an_older_firmware(fake: ModuleType, board_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcu_module, "PROTOCOL_VERSION", 3)
    message = r"speaks version 2 of the protocol, this edgepipe 3: export the bundle again, then edgepipe flash BUNDLE$"
    with fake.FakeBoard(board_program, 3) as board, pytest.raises(DeviceUnreachable, match=message):
        connected(board.port)


def test_another_plan(fake: ModuleType, board_program: Path) -> None:
    plan = plan_of(fake, 4)
    with fake.FakeBoard(board_program, 5) as board, connected(board.port) as mcu:
        image = np.zeros(plan.input.shape, np.int8)
        with pytest.raises(DeviceUnreachable, match=r"has 5 tiles, plan.json says 4"):
            mcu.run(plan, image)


def test_an_absent_port() -> None:
    for port, reason in (
        ("/dev/no-such-port", r"\(No such file or directory\)"),
        ("socket://127.0.0.1:1", r"\(Connection refused\)"),
        ("nonsense://", r"\(.+\)"),
    ):
        with pytest.raises(DeviceUnreachable, match=f"^{port} cannot be opened {reason}: [^\n]+$") as said:
            open_mcu(port, 115200, None)
        assert said.value.exit_code == 4


@pytest.mark.parametrize("talk", [b"", b"hello?\r\n\0\xed\xff\0"])
def test_a_silent_board(talk: bytes) -> None:
    """Nothing, or somebody else, is at the other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = f"socket://127.0.0.1:{server.getsockname()[1]}"
        clients = []

        def answer() -> None:
            clients.append(server.accept()[0])
            clients[0].sendall(talk)

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        with pytest.raises(DeviceUnreachable, match="does not answer at 10000000 baud"):
            connected(port, silence_s=0.3)
        answering.join()
        clients[0].close()


def test_unplugged_half_way(fake: ModuleType, board_program: Path) -> None:
    def patches() -> Iterator[bytes]:
        for index, patch in enumerate(fake.noise(20)):
            if index == 10:
                board.unplug()
            yield patch

    unreachable = pytest.raises(DeviceUnreachable, match=r"is gone|does not answer")
    with fake.FakeBoard(board_program, 20) as board, connected(board.port, silence_s=0.5) as mcu, unreachable:
        mcu.infer(patches)


def test_a_reset_half_way_begins_anew(fake: ModuleType, board_program: Path) -> None:
    starts = []

    def patches() -> Iterator[bytes]:
        starts.append(len(starts))
        for index, patch in enumerate(fake.noise(20)):
            if index == 10 and starts == [0]:
                board.reset()
            yield patch

    with fake.FakeBoard(board_program, 20) as board, connected(board.port) as mcu:
        assert mcu.infer(patches)[0] == fake.expected_output(fake.noise(20))
        assert starts == [0, 1]
        starts.clear()
        with pytest.raises(DeviceUnreachable, match="has lost the image half-way"):
            mcu.infer(patches, starts=1)


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "serial", None)
    with pytest.raises(MissingExtra, match=r"pip install 'edgepipe\[mcu\]'"):
        open_mcu("/dev/ttyACM0", 115200, None)


def test_a_terminal_device(fake: ModuleType, board_program: Path) -> None:
    """A path in /dev, as boards have."""
    if not hasattr(os, "openpty"):
        pytest.skip("no pseudo-terminals")
    ours, theirs = os.openpty()
    with subprocess.Popen([board_program], stdin=ours, stdout=ours, env=os.environ | {"TILES": "6"}) as board:
        try:
            with open_mcu(os.ttyname(theirs), 115200, fake.MODEL_HASH) as mcu:
                assert mcu.infer(lambda: fake.noise(6))[0] == fake.expected_output(fake.noise(6))
        finally:
            board.kill()
            os.close(ours)
            os.close(theirs)


class Requests:
    """Requests of an inference, made one by one and sent in any order and number."""

    def __init__(self, fake: ModuleType, session: int, patches: list[bytes]) -> None:
        self.frames = [Frame(Kind.BEGIN, session)]
        for tile, patch in enumerate(patches):
            for begin in range(0, len(patch), 64):
                self.frames.append(Frame(Kind.PATCH, session, 0, tile, begin, patch[begin : begin + 64]))
            self.frames.append(Frame(Kind.RUN, session, 0, tile))
        self.frames.append(Frame(Kind.RUN, session, 0, len(patches)))
        for offset in range(0, fake.OUTPUT_BYTES, 200):
            self.frames.append(Frame(Kind.OUTPUT, session, 0, 0, offset, (200).to_bytes(2, "little")))
        self.frames.append(Frame(Kind.LAYERS, session, 0, 0, 0, (200).to_bytes(2, "little")))


@pytest.mark.parametrize("seed", range(8))
def test_frames_in_disorder(fake: ModuleType, board_program: Path, seed: int) -> None:
    """Frames that are doubled, lost, or come too early or too late, also those of another image: whatever is answered
    as the output is a piece of the right output."""
    generator = random.Random(seed)
    images = [fake.noise(6, number) for number in range(2)]
    requests = [Requests(fake, session, images[session]).frames for session in range(2)]
    order: list[Frame] = []
    for _ in range(60):
        frames = requests[generator.random() < 0.1]
        begin = generator.randrange(len(frames))
        piece = frames[begin : begin + generator.randrange(1, len(frames))] if generator.random() < 0.7 else frames
        if generator.random() < 0.3:
            piece = generator.sample(piece, len(piece))
        order += piece
    stream = b"".join(
        encode(Frame(frame.kind, frame.session, sequence, frame.tile, frame.offset, frame.payload))
        for sequence, frame in enumerate(order)
    )
    done = subprocess.run([board_program], input=stream, capture_output=True, env=os.environ | {"TILES": "6"})
    assert (done.returncode, done.stderr) == (0, b"")
    answers = FrameReader().take(done.stdout)
    final = [frame for frame in answers if frame.kind != Kind.BUSY]
    assert [frame.sequence for frame in final] == list(range(len(order)))
    outputs = [frame for frame in final if frame.kind == Kind.OUTPUT + ANSWER]
    assert outputs
    for frame in outputs:
        right = fake.expected_output(images[frame.session])
        assert frame.payload == right[frame.offset : frame.offset + 200]


def test_an_inference_that_has_begun_goes_on(fake: ModuleType, board_program: Path) -> None:
    """Whoever begins it again by its name is told where it has come to."""
    patches = fake.noise(6)
    frames = Requests(fake, 5, patches).frames
    order = [frame for request in frames for frame in (request, frames[0])]
    stream = b"".join(map(encode, order))
    done = subprocess.run([board_program], input=stream, capture_output=True, env=os.environ | {"TILES": "6"})
    answers = [frame for frame in FrameReader().take(done.stdout) if frame.kind != Kind.BUSY]
    assert b"".join(frame.payload for frame in answers if frame.kind == Kind.OUTPUT + ANSWER) == fake.expected_output(
        patches
    )
    for request, answer in zip(order[::2], answers[1::2], strict=True):
        assert answer.kind == Kind.BEGIN + ANSWER
        if request.kind == Kind.PATCH:
            assert (answer.tile, answer.offset) == (request.tile, request.offset + len(request.payload))
        if request.kind == Kind.RUN:
            assert (answer.tile, answer.offset) == (min(request.tile + 1, 6), 0)


@pytest.mark.parametrize("seed", range(4))
def test_noise_does_no_harm(fake: ModuleType, board_program: Path, seed: int) -> None:
    """Random bytes, and frames with random fields, neither break the board (it has sanitizers) nor its next answer."""
    generator = random.Random(seed)
    stream = bytearray()
    for _ in range(400):
        choice = generator.random()
        if choice < 0.3:
            stream += generator.randbytes(generator.randrange(3000) if choice < 0.02 else generator.randrange(40))
        elif choice < 0.5:
            stream += generator.choice(
                [b"db load 90%", b"db 00ff%", b"infer 1 0%", b"results%", b"db print%", b"%", b"\r"]
            )
        else:
            numbers = [generator.choice([0, 1, 2, 5, 6, 7, 90, 2**31, 2**32 - 1, 2**32 - 40]) for _ in range(4)]
            payload = generator.randbytes(generator.choice([0, 1, 2, 64, 255, 1024, 1025, 4000]))
            stream += encode(Frame(generator.choice([*range(9), 255]), *numbers, payload))
    patches = fake.noise(6)
    for request in Requests(fake, 77, patches).frames:
        stream += encode(request)
    done = subprocess.run([board_program], input=stream, capture_output=True, env=os.environ | {"TILES": "6"})
    assert (done.returncode, done.stderr) == (0, b"")
    output = {
        frame.offset: frame.payload
        for frame in FrameReader().take(done.stdout)
        if frame.kind == Kind.OUTPUT + ANSWER and frame.session == 77
    }
    assert b"".join(output[offset] for offset in sorted(output)) == fake.expected_output(patches)
