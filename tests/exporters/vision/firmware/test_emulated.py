"""The firmware on emulated boards: the bytes of TFLite Micro, in the memory that was planned."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.devices.boards import boards, find_board
from edgepipe.errors import DoesNotFit
from edgepipe.exporters.vision.arena import plan_arena
from edgepipe.exporters.vision.call_list import call_list
from edgepipe.exporters.vision.firmware import RUNTIME, write_firmware
from edgepipe.exporters.vision.fold_pads import fold_pads
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.patch_split import split
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.search import RESERVE_BYTES, find_plans
from edgepipe.exporters.vision.source import open_vision
from edgepipe.exporters.vision.split_arena import plan_split_arena

KERNELS = sorted(RUNTIME.glob("*.c"))
EMULATED = ("netduinoplus2", "mps2-an500", "mps3-an547")
# Cortex-M4 with room for more than a megabyte of weights.
M4 = replace(find_board("mps2-an500"), name="mps2-an386", compiler="-mcpu=cortex-m4", qemu="mps2-an386")

# As the built-in model, with fewer classes: 1000 of them alone would fill a megabyte.
FACTORY = """
import numpy, torch
from edgepipe.exporters.vision.models.built_in import initialise
from edgepipe.exporters.vision.models.mobilenet_v2 import MobileNetV2

def network():
    model = MobileNetV2(0.35, classes=100)
    images = numpy.random.default_rng(0).random((4, 1, 224, 224, 3), numpy.float32)
    initialise(model, list(images), 0)
    return model, torch.zeros(1, 3, 224, 224)
"""


def images_for(graph: Graph, count: int = 2) -> list[np.ndarray]:
    generator, shape = np.random.default_rng(1), graph.tensors[graph.inputs[0]].shape
    return [generator.integers(-128, 128, shape, np.int8) for _ in range(count)]


def streamed(graph: Graph, sram_bytes: int) -> tuple[Any, Any]:
    """The best plan with patches that leaves the arena so much."""
    plans = find_plans(graph, sram_bytes, reserve_bytes=0, count=2)
    plan = next(plan for plan in plans if plan.patches is not None)
    return split(graph, plan.patches), plan.arena


def agree(board: Any, model: Any, arena: Any, graph: Graph, emulate: Any, reference: Any, check_memory: Any) -> Any:
    images, expected = images_for(graph), reference(graph)
    emulated = emulate(board, model, arena, images)
    for image, output in zip(images, emulated.outputs, strict=True):
        np.testing.assert_array_equal(output, expected(image))
    check_memory(board, emulated, arena)
    return emulated


@pytest.mark.parametrize("name", EMULATED)
def test_random_network(name: str, random_graph: Any, emulate: Any, reference: Any, check_memory: Any) -> None:
    graph = random_graph(0)
    agree(find_board(name), graph, plan_arena(graph), graph, emulate, reference, check_memory)


@pytest.mark.parametrize("name", EMULATED)
def test_layers_are_timed(name: str, random_graph: Any, emulate: Any) -> None:
    """A layer runs once for each tile and image, whatever the tile's kind, and all of them take some time."""
    graph = random_graph(0)
    model = split(graph, PatchPlan(split_points(graph)[0], 3, 1))
    arena, images = plan_split_arena(model), images_for(graph)
    board = find_board(name)
    emulated = emulate(board, model, arena, images)
    calls, cycles = emulated.layers.T
    whole_calls = len(list(call_list(graph, plan_arena(graph))))
    assert len(calls) <= whole_calls + 2  # crops and stitching
    tiles = Counter(tile.graph for tile in model.tiles)
    expected = sum(tiles[key] * len(list(call_list(part, arena.tiles[key]))) for key, part in model.tile_graphs.items())
    expected += len(list(call_list(model.tail, arena.tail))) + len(model.tiles)
    assert calls.sum() == expected * len(images)
    macs = model.tail.macs + sum(model.tile_graphs[tile.graph].macs for tile in model.tiles)
    emulated_us_per_instruction = 0.064
    assert cycles.sum() / board.clock_mhz > len(images) * macs / 16 * emulated_us_per_instruction
    assert (cycles > 0).mean() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", EMULATED)
@pytest.mark.parametrize(("file", "sram"), [("vww_96_int8", 32 * 1024), ("resnet8_cifar10_int8", 28 * 1024)])
def test_real_network(
    name: str, file: str, sram: int, data_folder: Path, emulate_port: Any, reference: Any, check_memory: Any
) -> None:
    """Whole and streamed; these and those below over the serial port, as users run them."""
    graph = fold_pads(read_tflite(data_folder / f"{file}.tflite"))
    for model, arena in ((graph, plan_arena(graph)), streamed(graph, sram)):
        agree(find_board(name), model, arena, graph, emulate_port, reference, check_memory)


@pytest.mark.slow
@pytest.mark.parametrize("name", EMULATED)
def test_digits(name: str, built_in: Any, emulate_port: Any, reference: Any, check_memory: Any) -> None:
    graph = built_in("digits").graph
    for model, arena in ((graph, plan_arena(graph)), streamed(graph, 48 * 1024)):
        agree(find_board(name), model, arena, graph, emulate_port, reference, check_memory)


@pytest.mark.slow
@pytest.mark.parametrize(
    "board", [M4, find_board("mps2-an500"), find_board("mps3-an547")], ids=lambda board: board.name
)
def test_mobilenet_v2(board: Any, built_in: Any, emulate_port: Any, reference: Any, check_memory: Any) -> None:
    """0.35 at 144x144, with all its classes."""
    graph = built_in("mobilenet_v2:0.35:144").graph
    for model, arena in ((graph, plan_arena(graph)), streamed(graph, 96 * 1024)):
        agree(board, model, arena, graph, emulate_port, reference, check_memory)


@pytest.mark.slow
def test_more_than_its_memory(tmp_path: Path, emulate_port: Any, reference: Any, check_memory: Any) -> None:
    """MobileNetV2 0.35 at 224x224 on 192 kB of SRAM and 1 MB of flash: refused whole, right when streamed."""
    pytest.importorskip("litert_torch")
    (tmp_path / "narrow.py").write_text(FACTORY)
    graph, board = open_vision(f"{tmp_path / 'narrow.py'}:network").graph, find_board("netduinoplus2")
    assert plan_arena(graph).nbytes > 192 * 1024
    with pytest.raises(DoesNotFit, match=r"has 192.0 KiB of SRAM, the firmware needs \d+"):
        write_firmware(graph, plan_arena(graph), board, tmp_path / "whole")
    model, arena = streamed(graph, board.sram - RESERVE_BYTES)
    agree(board, model, arena, graph, emulate_port, reference, check_memory)


@pytest.mark.slow
@pytest.mark.parametrize("name", boards())
def test_builds_for_every_board(name: str, random_graph: Any, make_firmware: Any) -> None:
    """Without a warning, with the program that answers on the serial port, portable too."""
    graph = random_graph(0)
    arena = plan_arena(graph)
    folder = make_firmware(find_board(name), graph, arena)
    assert (folder / "build/firmware.map").is_file()
    told = subprocess.run(
        ["arm-none-eabi-size", folder / "build/firmware.elf"], capture_output=True, text=True, check=True
    )
    text, data, bss = map(int, told.stdout.splitlines()[1].split()[:3])
    constants = write_firmware(graph, arena, find_board(name), folder / "again").constant_bytes
    assert constants < text + data < constants + 32 * 1024  # what is reckoned with at export
    image = graph.tensors[graph.inputs[0]].nbytes  # kept beside the arena
    assert arena.nbytes + image < data + bss < arena.nbytes + image + RESERVE_BYTES
    make_firmware(find_board(name), graph, plan_arena(graph), "DEFINES=-DEDGEPIPE_PORTABLE")


@pytest.mark.parametrize("name", ["netduinoplus2", "rp2040"])
def test_it_needs_nothing_of_a_libc(name: str, random_graph: Any, make_firmware: Any) -> None:
    """But memcpy and memset; and there is no heap. What Cortex-M0+ cannot do itself is in the compiler's library."""
    graph = random_graph(0)
    build = make_firmware(find_board(name), graph, plan_arena(graph)) / "build"
    inference = [build / "model.o", build / "edgepipe_model.o", *(build / f"{path.stem}.o" for path in KERNELS)]
    wanted, found = (
        set(re.findall(rf"^.{{8}} [{kinds}] (\w+)$", symbols(*files), re.MULTILINE))
        for kinds, files in (("U", inference), ("TRDBdb", [build / "firmware.elf"]))
    )
    outside = {symbol for symbol in wanted if not symbol.startswith(("ep_", "edgepipe_", "__aeabi_"))}
    assert outside == {"memcpy", "memset"}
    assert not found & {"malloc", "_malloc_r", "free", "_sbrk", "printf"}


def symbols(*files: Path) -> str:
    return subprocess.run(["arm-none-eabi-nm", *files], capture_output=True, text=True, check=True).stdout
