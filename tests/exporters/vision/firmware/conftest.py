"""Firmware built and run: for this computer as a library, for boards in QEMU."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edgepipe.devices.boards import find_board
from edgepipe.devices.mcu import open_mcu
from edgepipe.devices.mcu_line import BAUD
from edgepipe.devices.qemu import QEMU, SLOWNESS, Emulator
from edgepipe.exporters.vision.arena import Arena
from edgepipe.exporters.vision.firmware import write_firmware
from edgepipe.exporters.vision.graph import Graph, Tensor
from edgepipe.exporters.vision.patches import SplitModel
from edgepipe.exporters.vision.split_arena import SplitArena
from edgepipe.runtimes.mcu.board import Board

MAIN = Path(__file__).with_name("semihosting.c")
# A byte of the arena that happens to hold the paint is not seen.
UNSEEN = 4

Model = SplitModel | Graph
Layout = SplitArena | Arena


def whole_graph(model: Model) -> Graph:
    return model.whole if isinstance(model, SplitModel) else model


def output_of(model: Model) -> Tensor:
    graph = whole_graph(model)
    return graph.tensors[graph.outputs[0]]


def windows(model: Model, arena: Layout, image: np.ndarray) -> list[np.ndarray]:
    """What is pushed, patch by patch."""
    if isinstance(model, Graph) or (isinstance(arena, SplitArena) and arena.image is not None):
        return [image]
    return [
        np.ascontiguousarray(image[:, slice(*tile.window.rows), slice(*tile.window.columns)]) for tile in model.tiles
    ]


def highest_byte(arena: Layout) -> int:
    """Where the planned tensors end."""
    parts = [arena] if isinstance(arena, Arena) else [*arena.tiles.values(), arena.tail]
    return max(
        offset + buffer.nbytes for part in parts for offset, buffer in zip(part.offsets, part.buffers, strict=True)
    )


class HostModel:
    """A model's firmware as a library: every call of edgepipe_model.h."""

    def __init__(self, library: Path, model: Model, arena: Layout) -> None:
        self.calls = ctypes.CDLL(str(library))
        self.calls.edgepipe_patch_bytes.restype = ctypes.c_size_t
        self.calls.edgepipe_arena_peak_bytes.restype = ctypes.c_size_t
        self.calls.edgepipe_patch.restype = ctypes.c_void_p
        self.calls.edgepipe_finish.restype = ctypes.c_void_p
        self.model, self.arena = model, arena

    def push(self, number: int, window: np.ndarray) -> None:
        """The next patch, of so many bytes."""
        content = window.tobytes()
        assert self.calls.edgepipe_patch_bytes(number) == len(content)
        ctypes.memmove(self.calls.edgepipe_patch(), content, len(content))
        assert self.calls.edgepipe_push_patch(number) == 0

    def output(self) -> np.ndarray | None:
        """A copy of the output, if it is there."""
        address, tensor = self.calls.edgepipe_finish(), output_of(self.model)
        if address is None:
            return None
        return np.frombuffer(ctypes.string_at(address, tensor.nbytes), tensor.dtype).reshape(tensor.shape)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """A whole inference."""
        self.calls.edgepipe_init()
        for number, window in enumerate(windows(self.model, self.arena, image)):
            self.push(number, window)
        output = self.output()
        assert output is not None
        return output


@dataclass(frozen=True, eq=False)
class Emulated:
    """What a board in QEMU answered, and what it and its linker tell of memory, in bytes.

    ``layers``: ``[N, 2]``, calls and cycles of each layer.
    """

    outputs: list[np.ndarray]
    layers: np.ndarray
    stack_peak: int
    arena_peak: int
    stack: int
    map: str

    def section(self, name: str) -> int:
        """Bytes of a section in the linker's map."""
        found = re.search(rf"^ ?{re.escape(name)}\s+0x[0-9a-f]+\s+0x([0-9a-f]+)", self.map, re.MULTILINE)
        assert found is not None, name
        return int(found[1], 16)

    def address(self, symbol: str) -> int:
        """Of a symbol in the linker's map."""
        found = re.search(rf"^\s+0x([0-9a-f]+)\s+{symbol}\b", self.map, re.MULTILINE)
        assert found is not None, symbol
        return int(found[1], 16)


@pytest.fixture(scope="session")
def host_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Model, Layout], HostModel]:
    """``host_model(model, arena)`` → the firmware built with this computer's compiler."""
    for tool in ("make", "cc"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")

    def build(model: Model, arena: Layout) -> HostModel:
        folder = tmp_path_factory.mktemp("host") / "firmware"
        write_firmware(model, arena, find_board("mps2-an500"), folder)
        subprocess.run(["make", "-s", "host", "OPTIMISE=-O1"], cwd=folder, check=True)
        return HostModel(folder / "build/libedgepipe_model.so", model, arena)

    return build


@pytest.fixture(scope="session")
def make_firmware(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``make_firmware(board, model, arena, *arguments)`` → the folder, built."""
    for tool in ("make", "arm-none-eabi-gcc"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")

    def build(board: Board, model: Model, arena: Layout, *arguments: str) -> Path:
        folder = tmp_path_factory.mktemp(board.name) / "firmware"
        write_firmware(model, arena, board, folder)
        subprocess.run(["make", "-s", *arguments], cwd=folder, check=True)
        return folder

    return build


@pytest.fixture(scope="session")
def emulate(make_firmware: Callable[..., Path]) -> Callable[..., Emulated]:
    """``emulate(board, model, arena, images, *arguments)`` → what the board makes of the images."""
    qemu = shutil.which("qemu-system-arm")
    if qemu is None:
        pytest.skip("no qemu-system-arm")

    def run(board: Board, model: Model, arena: Layout, images: Sequence[np.ndarray], *arguments: str) -> Emulated:
        folder = make_firmware(board, model, arena, f"PROGRAM={MAIN}", *arguments)
        pieces = [window.tobytes() for image in images for window in windows(model, arena, image)]
        (folder / "windows.bin").write_bytes(b"".join(pieces))
        command = [qemu, "-M", str(board.qemu), "-nographic", "-monitor", "none", "-serial", "none"]
        command += [
            "-icount",
            "shift=6",
            "-semihosting-config",
            "enable=on,target=native",
            "-kernel",
            "build/firmware.elf",
        ]
        subprocess.run(command, cwd=folder, check=True, timeout=600)
        answers, tensor = (folder / "answers.bin").read_bytes(), output_of(model)
        end = len(images) * tensor.nbytes
        outputs = [
            np.frombuffer(answers, tensor.dtype, tensor.nbytes, number * tensor.nbytes).reshape(tensor.shape)
            for number in range(len(images))
        ]
        stack_peak, arena_peak, stack = np.frombuffer(answers[-12:], "<u4").tolist()
        words = np.frombuffer(answers[end:-12], "<u4").astype(np.int64).reshape(-1, 3)
        counted = np.stack([words[:, 0], words[:, 1] + (words[:, 2] << 32)], axis=1)
        return Emulated(outputs, counted, stack_peak, arena_peak, stack, (folder / "build/firmware.map").read_text())

    return run


@pytest.fixture(scope="session")
def emulate_port(make_firmware: Callable[..., Path]) -> Callable[..., Emulated]:
    """As ``emulate``, but over the board's serial port, to the program that users have."""
    pytest.importorskip("serial")
    if shutil.which(QEMU) is None:
        pytest.skip(f"no {QEMU}")

    def run(board: Board, model: Model, arena: Layout, images: Sequence[np.ndarray]) -> Emulated:
        folder, tensor = make_firmware(board, model, arena), output_of(model)
        emulator = Emulator(board, folder / "build/firmware.elf")
        outputs = []
        with emulator, open_mcu(emulator.port, BAUD, None, slowness=SLOWNESS) as mcu:
            for image in images:
                pieces = [window.tobytes() for window in windows(model, arena, image)]
                answer = mcu.infer(pieces.__iter__)
                outputs.append(np.frombuffer(answer.output, tensor.dtype).reshape(tensor.shape))
            memory = mcu.memory()
            assert mcu.line.statistics.frames_damaged == 0
        layers = np.array([(layer.calls, layer.cycles) for layer in answer.layers])
        linker_map = (folder / "build/firmware.map").read_text()
        assert memory.arena_bytes == arena.nbytes
        return Emulated(
            outputs, layers, memory.stack_peak_bytes, memory.arena_peak_bytes, memory.stack_bytes, linker_map
        )

    return run


@pytest.fixture(scope="session")
def check_memory() -> Callable[[Board, Emulated, Layout], None]:
    """``check_memory(board, emulated, arena)``: the map, the paint and the plan agree, and it all fits the board."""

    def check(board: Board, emulated: Emulated, arena: Layout) -> None:
        assert emulated.section(".bss.ep_arena") == arena.nbytes
        assert highest_byte(arena) - UNSEEN <= emulated.arena_peak <= highest_byte(arena)
        assert emulated.section(".stack") == emulated.stack
        assert 0 < emulated.stack_peak < emulated.stack
        assert emulated.address("stack_bottom") == board.sram_begin
        assert emulated.address("bss_end") <= board.sram_begin + board.sram

    return check


@pytest.fixture(scope="session")
def reference(tflm: Callable[[Path], Callable[[np.ndarray], np.ndarray]], tmp_path_factory: pytest.TempPathFactory):
    """``reference(graph)`` → the model in TFLite Micro."""
    from edgepipe.exporters.vision.write_tflite import write_tflite

    def load(graph: Graph) -> Callable[[np.ndarray], np.ndarray]:
        path = tmp_path_factory.mktemp("tflm") / "model.tflite"
        write_tflite({"main": graph}, path)
        return tflm(path)

    return load
