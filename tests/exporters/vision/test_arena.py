"""Arenas: every tensor is intact when it is read, at the published figures' size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepipe.exporters.vision.arena import ALIGNMENT, Arena, Buffer, Use, first_fit, live_bytes, place, plan_arena
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.in_place import may_overwrite
from edgepipe.exporters.vision.patch_split import split
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.split_arena import plan_split_arena

SCRATCH, STAGE, IMAGE = -2, -3, -4


class Memory:
    """Bytes that remember what was last written to them."""

    def __init__(self, nbytes: int) -> None:
        self.holds = np.full(nbytes, -1)

    def write(self, offset: int, nbytes: int, what: int) -> None:
        assert offset >= 0
        assert offset + nbytes <= len(self.holds)
        assert offset % ALIGNMENT == 0
        self.holds[offset : offset + nbytes] = what

    def intact(self, offset: int, nbytes: int, what: int) -> bool:
        return bool((self.holds[offset : offset + nbytes] == what).all())


def run(graph: Graph, arena: Arena, memory: Memory) -> None:
    """Write and read as the nodes do, scratch first, and see that nothing is gone that is still to be read."""
    offsets = arena.tensors
    scratch_bytes = {use.scratch: use.nbytes for buffer in arena.buffers for use in buffer.uses}

    def intact(index: int) -> bool:
        return memory.intact(offsets[index], graph.tensors[index].nbytes, index)

    for position, node in enumerate(graph.nodes):
        if position in arena.fused.values():
            continue
        pixelwise = graph.activations(node)
        windowed: tuple[int, ...] = ()
        if position in arena.fused:
            convolution = graph.nodes[arena.fused[position]]
            pixelwise = tuple(index for index in pixelwise if index != convolution.output)
            windowed = graph.activations(convolution)
        if position in arena.scratch:
            memory.write(arena.scratch[position], scratch_bytes[position], SCRATCH)
        assert all(map(intact, (*pixelwise, *windowed)))
        memory.write(offsets[node.output], graph.tensors[node.output].nbytes, node.output)
        assert all(map(intact, windowed))
        for index in pixelwise:
            in_place = offsets[index] == offsets[node.output] and may_overwrite(graph, node, index)
            assert in_place or intact(index)
        if position in arena.scratch:
            assert memory.intact(arena.scratch[position], scratch_bytes[position], SCRATCH)
    assert all(map(intact, graph.outputs))


def write_inputs(graph: Graph, arena: Arena, memory: Memory) -> None:
    for index in graph.inputs:
        memory.write(arena.tensors[index], graph.tensors[index].nbytes, index)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_overwritten_before_it_is_read(random_graph, seed):
    graph = random_graph(seed)
    arena = plan_arena(graph)
    memory = Memory(arena.nbytes)
    write_inputs(graph, arena, memory)
    run(graph, arena, memory)


@pytest.mark.parametrize("mode", ["streamed", "resident"])
@pytest.mark.parametrize("seed", range(20))
def test_tiles_leave_the_stage_and_the_image_alone(random_graph, seed, mode):
    graph = random_graph(seed)
    point = split_points(graph)[seed % len(split_points(graph))]
    _, rows, columns, _ = graph.tensors[graph.nodes[point - 1].output].shape
    model = split(graph, PatchPlan(point, min(3, rows), min(2, columns)))
    arena = plan_split_arena(model, mode)
    stage = model.tail.tensors[model.tail.inputs[0]].nbytes
    image = graph.tensors[graph.inputs[0]].nbytes if mode == "resident" else 0
    memory = Memory(arena.nbytes)
    memory.write(arena.stage, stage, STAGE)
    memory.write(arena.image or 0, image, IMAGE)
    for tile in model.tiles:
        write_inputs(model.tile_graphs[tile.graph], arena.tiles[tile.graph], memory)
        run(model.tile_graphs[tile.graph], arena.tiles[tile.graph], memory)
        assert memory.intact(arena.stage, stage, STAGE)
        assert memory.intact(arena.image or 0, image, IMAGE)
    assert arena.tail.tensors[model.tail.inputs[0]] == arena.stage
    write_inputs(model.tail, arena.tail, memory)
    run(model.tail, arena.tail, memory)
    assert max(arena.stage_bytes, arena.tail_bytes) <= arena.nbytes


def test_mobilenet_v2_takes_1372_kib_with_depthwise_in_place(mobilenet_v2):
    # MCUNetV2, arXiv 2110.15352, table 1: 1372 kB. Input and output of the first expansion, 112x112x16 and 112x112x96.
    assert plan_arena(mobilenet_v2()).nbytes == 112 * 112 * (16 + 96) == 1372 * 1024


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4), st.integers(1, 400)), min_size=1, max_size=12))
def test_placed_buffers_do_not_overlap(spans):
    buffers = [Buffer([Use(first, first + length, nbytes)]) for first, length, nbytes in spans]
    offsets, nbytes = place(buffers)
    assert nbytes >= max(live_bytes(buffers, ALIGNMENT))
    taken = np.zeros((20, nbytes), bool)
    for offset, buffer in zip(offsets, buffers, strict=True):
        (use,) = buffer.uses
        region = taken[use.first : use.last + 1, offset : offset + use.nbytes]
        assert region.shape == (use.last - use.first + 1, use.nbytes)
        assert not region.any()
        region[:] = True


def test_a_layout_that_first_fit_by_size_misses_is_found():
    buffers = [Buffer([Use(*span)]) for span in ((3, 5, 80), (5, 7, 96), (2, 2, 64), (2, 3, 48))]
    by_size = sorted(range(4), key=lambda i: -buffers[i].nbytes)
    greedy = zip(first_fit(buffers, by_size, ALIGNMENT), buffers, strict=True)
    assert max(offset + buffer.nbytes for offset, buffer in greedy) == 224
    assert place(buffers)[1] == max(live_bytes(buffers, ALIGNMENT)) == 80 + 96
