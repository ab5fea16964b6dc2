"""The job behind `edgepipe run --image FILE --device DEVICE`: what a microcontroller says of an image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from edgepipe.devices.boards import find_board
from edgepipe.devices.mcu import BoardMemory, Mcu, open_mcu
from edgepipe.devices.mcu_line import BAUD, LineStatistics
from edgepipe.devices.qemu import SLOWNESS, Emulator
from edgepipe.errors import BundleError, RecipeError
from edgepipe.pipeline.board_work import Counter, LayerWork, Work
from edgepipe.pipeline.build_firmware import build_firmware, bundle_firmware
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.run_image import Guess, best, check_top_k
from edgepipe.pipeline.termination import termination_cleans_up
from edgepipe.pipeline.vision_session import vision_component
from edgepipe.runtimes.vision.image import Preprocessing, read_image
from edgepipe.runtimes.vision.plan import VisionPlan, read_plan

# Devices of this kind are emulated.
EMULATED = "qemu:"


@dataclass(frozen=True, eq=False)
class BoardImageAnswer:
    """What a board says of one image.

    Attributes:
        output: codes, as the model gives them.
        top: the classes of highest score, the highest first; empty if the output is no list of scores.
        device: as it was asked for.
        patches: how many windows the board was sent.
        work: of the board, without the line's time.
        steps: the same for each patch, and for the rest of the model at the end.
        layers: the same for each layer, all patches together.
        unit: of the work, as it stands over a column.
        is_emulated: also where an emulator stands behind a port, and what is called time is none.
        run_ms: from the first byte sent to the output; None in an emulator.
        planned_arena_bytes: as plan.json has it.
        memory: the arena and the stack of the firmware, and as much of them as was painted over.
        line: what went over the serial line, greeting included.
    """

    output: np.ndarray
    top: tuple[Guess, ...]
    device: str
    patches: int
    work: Work
    steps: tuple[Work, ...]
    layers: tuple[LayerWork, ...]
    unit: str
    is_emulated: bool
    run_ms: float | None
    planned_arena_bytes: int
    memory: BoardMemory
    line: LineStatistics

    def to_json(self) -> dict[str, Any]:
        """The answer as one JSON-ready dict."""
        return asdict(self) | {"output": self.output.tolist()}


def run_on_board(
    bundle: str | Path, image: str | Path | np.ndarray, device: str, *, baud: int | None = None, top_k: int = 5
) -> BoardImageAnswer:
    """Run a bundle's firmware on one image.

    Args:
        bundle: folder written by `edgepipe.export` with firmware.
        image: a file; or an array ``[1, H, W, C]`` of the model's size: uint8 pixels, or codes.
        device: ``mcu:PORT`` for a board with the firmware on it, at a serial port or a URL of pyserial; ``qemu:BOARD``
            to build the firmware and emulate the board.
        baud: bits a second of the serial port.
        top_k: most classes in the answer.

    Raises:
        BundleError: the bundle is damaged or holds no firmware, or not for this board.
        DeviceUnreachable: the board is absent, silent, unplugged, or runs another model.
        EdgepipeError: the firmware cannot be built or emulated.
        ImageError: the image cannot be read or does not fit the model.
        MissingExtra: pyserial, or Pillow for an image file, is not installed.
        RecipeError: ``device``, ``baud`` or ``top_k`` is wrong.
    """
    check_top_k(top_k)
    opened = Bundle.open(bundle)
    plan = read_plan(opened.path(vision_component(opened)["plan"]))
    preprocessing = Preprocessing(plan.input, plan.mean, plan.std)
    codes = preprocessing(image) if isinstance(image, np.ndarray) else read_image(Path(image), preprocessing)
    with termination_cleans_up(), open_board(opened, device, baud) as mcu:
        return _answer(mcu, plan, codes, device, top_k)


@contextmanager
def open_board(bundle: Bundle, device: str, baud: int | None = None) -> Iterator[Mcu]:
    """The board that a user's ``device`` names, running the bundle's firmware.

    Raises:
        As `run_on_board` does.
    """
    kind, _, name = device.partition(":")
    if kind not in ("mcu", "qemu") or not name:
        raise RecipeError(f"device is {device!r}: expected mcu:PORT, as in mcu:/dev/ttyACM0, or qemu:BOARD")
    firmware = bundle_firmware(bundle)
    if kind == "mcu":
        if baud is not None and baud < BAUD:
            raise RecipeError(f"baud is {baud}: expected {BAUD} or more")
        with open_mcu(name, baud or BAUD, firmware.model_hash) as mcu:
            yield mcu
        return
    board = find_board(name)
    if board.name != firmware.board:
        raise BundleError(
            f"{bundle.folder} holds firmware for {firmware.board}, not {board.name}: export again with --board "
            f"{board.name}"
        )
    emulator = Emulator(board, build_firmware(bundle, firmware))
    with emulator, open_mcu(emulator.port, BAUD, firmware.model_hash, slowness=SLOWNESS, name=device) as mcu:
        yield mcu


def _answer(mcu: Mcu, plan: VisionPlan, codes: np.ndarray, device: str, top_k: int) -> BoardImageAnswer:
    begin = perf_counter_ns()
    answer = mcu.run(plan, codes)
    run_ms = (perf_counter_ns() - begin) / 1e6
    counter = Counter(mcu.firmware.clock_mhz, is_emulated=device.startswith(EMULATED))
    return BoardImageAnswer(
        output=answer.output,
        top=best(plan, answer.output, top_k),
        device=device,
        patches=mcu.firmware.tiles,
        work=counter.work(sum(answer.step_cycles)),
        steps=tuple(map(counter.work, answer.step_cycles)),
        layers=counter.layers(answer.layers),
        unit=counter.unit,
        is_emulated=mcu.firmware.is_emulated,
        run_ms=None if counter.is_emulated else run_ms,
        planned_arena_bytes=plan.memory.planned_bytes,
        memory=answer.memory,
        line=mcu.line.statistics,
    )
