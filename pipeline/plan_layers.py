"""Memory over the layers of a vision model, as a whole and by a plan."""

from __future__ import annotations

from dataclasses import dataclass

from edgepipe.exporters.vision.arena import Arena
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.operators import Shape
from edgepipe.exporters.vision.patch_split import split
from edgepipe.exporters.vision.search import MemoryPlan, whole_plan
from edgepipe.exporters.vision.split_arena import SplitArena


@dataclass(frozen=True)
class Layer:
    """Bytes of the arena in use while a node runs: in the whole model, and in the largest tile or the tail.

    ``tile``: shape of the largest tile of its output, None where it runs on all of it. A convolution that runs together
    with an Add has the bytes of the Add.
    """

    node: int
    operator: str
    output: Shape
    tile: Shape | None
    whole_bytes: int
    planned_bytes: int


def layers(graph: Graph, plan: MemoryPlan) -> list[Layer]:
    """One for each node of the graph."""
    whole_arena = whole_plan(graph).arena
    assert isinstance(whole_arena, Arena)
    whole = _with_fused(whole_arena.live_bytes(), whole_arena)
    planned, tiles = (whole, {}) if plan.patches is None else _planned(graph, plan)
    return [
        Layer(
            position,
            node.operator.name,
            graph.tensors[node.output].shape,
            tiles.get(position),
            whole[position],
            planned[position],
        )
        for position, node in enumerate(graph.nodes)
    ]


def _planned(graph: Graph, plan: MemoryPlan) -> tuple[list[int], dict[int, Shape]]:
    """Bytes at each node of the graph, and for those of the stage the shape of their largest tile."""
    arena = plan.arena
    assert plan.patches is not None
    assert isinstance(arena, SplitArena)
    planned = [0] * plan.patches.split + _with_fused(arena.tail_live, arena.tail)
    tiles: dict[int, Shape] = {}
    for name, tile in split(graph, plan.patches).tile_graphs.items():
        live = _with_fused(arena.tiles_live[name], arena.tiles[name])
        for position, step in _stage_nodes(graph, plan.patches.split, tile):
            planned[position] = max(planned[position], live[step])
            shape = tile.tensors[tile.nodes[step].output].shape
            known = tiles.get(position, shape)
            if tile.nodes[step].operator.name == graph.nodes[position].operator.name:
                tiles[position] = max(known, shape, key=lambda shape: shape[1] * shape[2])
    return planned, tiles


def _stage_nodes(graph: Graph, split: int, tile: Graph) -> list[tuple[int, int]]:
    """For each node of a tile graph, the node of the stage that it stands for; crops belong to the node before them.

    A tile graph has the stage's nodes in order, their outputs under the same names, without pads that a tile inside
    the image has no need of.
    """
    pairs = []
    position = -1
    for step, node in enumerate(tile.nodes):
        key = node.operator.name, tile.tensors[node.output].name
        for candidate in range(position + 1, split):
            original = graph.nodes[candidate]
            if key == (original.operator.name, graph.tensors[original.output].name):
                position = candidate
                break
        pairs.append((max(position, 0), step))
    return pairs


def _with_fused(live: list[int], arena: Arena) -> list[int]:
    convolutions = {convolution: add for add, convolution in arena.fused.items()}
    return [live[convolutions.get(step, step)] for step in range(len(live))]
