"""What is written for a board, and what is refused."""

from __future__ import annotations

import re
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.devices.boards import find_board
from edgepipe.errors import DoesNotFit
from edgepipe.exporters.vision import firmware
from edgepipe.exporters.vision.arena import plan_arena
from edgepipe.exporters.vision.c_constants import Constants
from edgepipe.exporters.vision.firmware import write_firmware
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.kernels import Copy, Term
from edgepipe.exporters.vision.patch_split import split
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.split_arena import plan_split_arena

BOARD = find_board("netduinoplus2")
RP2040 = Path(__file__).parents[4] / "runtimes/mcu/firmware/boards/rp2040.c"


def written(graph: Graph, folder: Path, **changes: Any) -> Any:
    return write_firmware(graph, plan_arena(graph), replace(BOARD, **changes), folder)


def test_too_little_sram_is_told_in_numbers(random_graph: Any, tmp_path: Path) -> None:
    graph = random_graph(0)
    arena = plan_arena(graph).nbytes
    with pytest.raises(DoesNotFit) as caught:
        written(graph, tmp_path / "no", sram=arena)
    assert f"has {arena / 1024:.1f} KiB of SRAM" in str(caught.value)
    assert f"{arena / 1024:.1f} KiB for the arena" in str(caught.value)
    assert not (tmp_path / "no").exists()
    written(graph, tmp_path / "yes", sram=arena + 8192)


def test_too_little_flash_is_told_in_numbers(random_graph: Any, tmp_path: Path) -> None:
    source = written(random_graph(0), tmp_path / "yes")
    with pytest.raises(DoesNotFit, match=f"has 16.0 KiB of flash.* {source.constant_bytes / 1024:.1f} KiB for weights"):
        written(random_graph(0), tmp_path / "no", flash=16384)


def test_an_image_is_kept_where_there_is_room(random_graph: Any, tmp_path: Path) -> None:
    """To the byte; not of a model that runs patch by patch, nor where the plan leaves the room to others."""
    graph = random_graph(0)
    arena, image = plan_arena(graph), graph.tensors[graph.inputs[0]].nbytes
    source = written(graph, tmp_path / "first")
    stack = int(re.findall(r"STACK_BYTES = (\d+);", (tmp_path / "first/memory.ld").read_text())[0])
    needed = arena.nbytes + stack + firmware._STATIC_BYTES + firmware._LAYER_BYTES * source.layers
    model = split(graph, PatchPlan(1, 3, 3))
    for number, (what, its_arena, sram, planned, keeps) in enumerate(
        [
            (graph, arena, needed + image, None, 1),
            (graph, arena, needed + image - 1, None, 0),
            (graph, arena, BOARD.sram, needed + image, 1),
            (graph, arena, BOARD.sram, needed + image - 1, 0),
            (model, plan_split_arena(model), BOARD.sram, None, 0),
        ]
    ):
        folder = tmp_path / str(number)
        write_firmware(what, its_arena, replace(BOARD, sram=sram), folder, sram_bytes=planned)
        assert f"\nKEEP_IMAGE ?= {keeps}\n" in (folder / "board.mk").read_text()


def test_the_hash_is_that_of_the_model(random_graph: Any, tmp_path: Path) -> None:
    hashes = [
        written(random_graph(seed), tmp_path / str(number), **changes).hash
        for number, (seed, changes) in enumerate([(0, {}), (0, {"chip": "cmsdk", "name": "other"}), (1, {})])
    ]
    assert hashes[0] == hashes[1] != hashes[2]
    assert f'EDGEPIPE_MODEL_HASH "{hashes[0]}"' in (tmp_path / "0/model.h").read_text()


def test_weights_are_there_once_for_all_tiles(random_graph: Any, tmp_path: Path) -> None:
    """Tiles have parameters of their own, and share the arrays."""
    graph = random_graph(0)
    model = split(graph, PatchPlan(1, 3, 3))
    assert len(model.tile_graphs) > 4
    write_firmware(model, plan_split_arena(model), BOARD, tmp_path / "split")
    written(graph, tmp_path / "whole")
    arrays = [
        sorted(re.findall(r"^static const _Alignas.*?};$", (tmp_path / name / "constants.h").read_text(), re.M | re.S))
        for name in ("split", "whole")
    ]
    contents = [[text.partition("=")[2] for text in texts] for texts in arrays]
    assert sorted(contents[0]) == sorted(contents[1])


def test_a_hostile_name_stays_a_name(random_graph: Any, tmp_path: Path) -> None:
    graph = random_graph(0)
    name = '*/\n#error "x" \\ é'
    write_firmware(graph, plan_arena(graph), BOARD, tmp_path / "f", name)
    for file in ("model.h", "model.c", "constants.h"):
        text = (tmp_path / "f" / file).read_text(encoding="ascii")
        assert not re.search(r"^#error", text, re.M)
        assert text.startswith("/* _error_x_")


def test_extreme_integers_are_c(tmp_path: Path) -> None:
    """What GCC makes of them is what they were."""
    constants = Constants()
    extremes = np.array([-(2**31), -1, 0, 2**31 - 1], np.int32)
    name = constants.array(extremes, "extremes")
    assert constants.array(extremes.copy(), "other") == name
    assert constants.array(extremes.view(np.int8), "bytes") != name
    struct_ = constants.struct(Term(-(2**31), 5, -6))
    assert constants.struct(Term(-(2**31), 5, -6)) == struct_ != constants.struct(Term(0, 5, -6))
    assert constants.nbytes == 16 + 16 + 12 + 12
    program = tmp_path / "program.c"
    program.write_text(
        f'#include <stdio.h>\n#include "kernels.h"\n{constants.text}\nint main(void)\n{{\n'
        f"fwrite({name}, 1, sizeof {name}, stdout); fwrite(&{struct_}, 1, sizeof {struct_}, stdout);\nreturn 0; }}\n"
    )
    runtime = RP2040.parents[2]
    build = ["cc", "-std=c11", "-Wall", "-Wno-unused-const-variable", "-Werror", f"-I{runtime}"]
    try:
        subprocess.run([*build, program, "-o", tmp_path / "program"], check=True)
    except FileNotFoundError:
        pytest.skip("no cc")
    output = subprocess.run([tmp_path / "program"], capture_output=True, check=True).stdout
    assert output == extremes.tobytes() + struct.pack("<3i", -(2**31), 5, -6)


def test_sizes_are_those_of_the_structs() -> None:
    constants = Constants()
    constants.struct(Copy((1, 2, 3, 4), (5, 6, 7), (8, 9, 10), 11, 12))
    assert constants.nbytes == 12 * 4


def test_the_boot_stage_has_its_checksum() -> None:
    """The RP2040's ROM starts flash only if CRC-32 (polynomial 0x04c11db7, not reflected) of 252 bytes follows them."""
    text = RP2040.read_text(encoding="ascii")
    listed = text[text.index("boot2[64]") : text.index("static void use_pll")]
    words = [int(word, 16) for word in re.findall(r"0x[0-9a-f]{8}", listed)]
    *code, checksum = words
    remainder = 0xFFFFFFFF
    for byte in struct.pack(f"<{len(code)}I", *code).ljust(252, b"\0"):
        remainder ^= byte << 24
        for _ in range(8):
            remainder = (remainder << 1 ^ (0x04C11DB7 if remainder >> 31 else 0)) & 0xFFFFFFFF
    assert remainder == checksum
