"""Write the firmware of a model: its C source, the runtime, and what a board needs to start."""

from __future__ import annotations

import shutil
from pathlib import Path

from edgepipe.errors import DoesNotFit
from edgepipe.exporters.vision.arena import Arena
from edgepipe.exporters.vision.firmware_source import FirmwareSource, split_source, whole_source
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.operators import Conv2D
from edgepipe.exporters.vision.patches import SplitModel
from edgepipe.exporters.vision.search import RESERVE_BYTES, kib
from edgepipe.exporters.vision.split_arena import SplitArena
from edgepipe.runtimes.mcu.board import Board

RUNTIME = Path(__file__).parents[2] / "runtimes/mcu"

# Of the stack, besides the columns that ep_conv gathers: calls of kernels and of the serial protocol.
_CALLS_BYTES = 2048
# ep_conv gathers columns of a filter's length: two as bytes, and with DSP instructions two as half words.
_COLUMN_BYTES = 6
_LONGEST_COLUMN = 512
# The runtime's and the protocol's own data, a layer's cycles and calls, and the code.
_STATIC_BYTES = 1536
_LAYER_BYTES = 12
_CODE_BYTES = 32 * 1024


def write_firmware(
    model: SplitModel | Graph,
    arena: SplitArena | Arena,
    board: Board,
    folder: Path,
    name: str = "model",
    *,
    sram_bytes: int | None = None,
) -> FirmwareSource:
    """Write a new ``folder`` in which `make` builds the model's firmware for a board.

    Args:
        model, arena: a split model and its arena, or a graph and its.
        board: what the start-up code, the linker script and the Makefile are for.
        folder: is made.
        name: what the firmware calls the model.
        sram_bytes: that the plan was made for. If so much has room for an image besides the arena, one is kept there.

    Raises:
        DoesNotFit: it needs more SRAM or flash than the board has.
        UnsupportedModel: no kernel computes some layer.
    """
    if isinstance(model, SplitModel):
        assert isinstance(arena, SplitArena)
        graph, source = model.whole, split_source(model, arena, name)
    else:
        assert isinstance(arena, Arena)
        graph, source = model, whole_source(model, arena, name)
    column = _column_length(graph)
    stack = _CALLS_BYTES + _COLUMN_BYTES * column
    left = _require_fit(source, arena.nbytes, stack, board)
    (image,) = graph.inputs
    spared = 0 if sram_bytes is None else max(board.sram - sram_bytes, 0)
    keeps_image = source.takes_image and graph.tensors[image].nbytes <= left - spared
    folder.mkdir()
    for part, destination in (("", "kernels"), ("firmware", "")):
        (folder / destination).mkdir(exist_ok=True)
        for path in sorted((RUNTIME / part).iterdir()):
            if path.is_file() and path.suffix != ".py":
                shutil.copyfile(path, folder / destination / path.name)
    (folder / "board").mkdir()
    for file in ("start.c", f"{board.chip}.c"):
        shutil.copyfile(RUNTIME / "firmware/boards" / file, folder / "board" / file)
    files = {**source.files, "board.mk": _board_mk(board, column, keeps_image), "memory.ld": _memory_ld(board, stack)}
    for file, text in files.items():
        (folder / file).write_text(text, encoding="ascii", newline="\n")
    return source


def _column_length(graph: Graph) -> int:
    """The longest filter of the model's convolutions, as far as the stack allows."""
    lengths = [1]
    for node in graph.nodes:
        if isinstance(node.operator, Conv2D):
            _, rows, columns, channels = graph.tensors[node.inputs[1]].shape
            lengths.append(rows * columns * channels)
    return min(-(-max(lengths) // 4) * 4, _LONGEST_COLUMN)


def _require_fit(source: FirmwareSource, arena: int, stack: int, board: Board) -> int:
    """Bytes of SRAM that are left."""
    static = _STATIC_BYTES + _LAYER_BYTES * source.layers
    left = board.sram - arena - stack - static
    if left < 0:
        budget = min(board.sram, board.sram - stack - static + RESERVE_BYTES)
        raise DoesNotFit(
            f"{board.name} has {kib(board.sram)} of SRAM, the firmware needs {kib(board.sram - left)}: {kib(arena)} "
            f"for the arena, {kib(stack)} for the stack, {kib(static)} for buffers: try --sram {budget // 1024}K"
        )
    needed = source.constant_bytes + _CODE_BYTES
    if needed > board.flash:
        raise DoesNotFit(
            f"{board.name} has {kib(board.flash)} of flash, the firmware needs {kib(needed)}: "
            f"{kib(source.constant_bytes)} for weights and layers, {kib(_CODE_BYTES)} for code: take a narrower model"
        )
    return left


def _board_mk(board: Board, column: int, keeps_image: bool) -> str:
    return (
        f"# {board.title}\n"
        f"BOARD := {board.name}\n"
        f"CHIP := {board.chip}\n"
        f"CORE_FLAGS := {board.compiler}\n"
        f"CLOCK_MHZ := {board.clock_mhz}\n"
        f"COLUMN_LENGTH := {column}\n"
        "# Whether there is SRAM for the image besides the arena, so that `infer` of MLPerf Tiny can run it again.\n"
        f"KEEP_IMAGE ?= {int(keeps_image)}\n"
    )


def _memory_ld(board: Board, stack: int) -> str:
    def region(name: str, kind: str, begin: int, nbytes: int) -> str:
        return f"    {name} ({kind}) : ORIGIN = {begin:#010x}, LENGTH = {nbytes}\n"

    vectors, alias = "", 'REGION_ALIAS("VECTORS", FLASH)\n'
    if board.vectors is not None:
        vectors, alias = region("VECTORS", "rx", board.vectors, 1024), ""
    return (
        f"/* {board.title} */\n"
        "MEMORY\n{\n"
        f"{region('FLASH', 'rx', board.flash_begin, board.flash)}"
        f"{region('RAM', 'rwx', board.sram_begin, board.sram)}"
        f"{vectors}"
        "}\n"
        f"{alias}"
        f"STACK_BYTES = {stack};\n"
        "INCLUDE sections.ld\n"
    )
