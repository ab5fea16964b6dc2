"""Lower bounds for every plan of a graph: the bytes that no arena can do without, and exact multiply-accumulates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgepipe.exporters.vision.arena import ALIGNMENT, Buffer, lifetimes, live_bytes
from edgepipe.exporters.vision.axis_profile import AxisProfile, axis_profile, looks_the_same
from edgepipe.exporters.vision.graph import ELEMENT_BYTES, Graph
from edgepipe.exporters.vision.in_place import could_overwrite, fused_residuals
from edgepipe.exporters.vision.operators import Pad
from edgepipe.exporters.vision.receptive_field import COLUMNS, ROWS, split_points
from edgepipe.exporters.vision.split_arena import Mode


@dataclass(frozen=True)
class PlanBounds:
    """All grids of one split, as matrices: ``[i, j]`` is the grid of ``rows[i]`` by ``columns[j]`` tiles.

    ``arena``: bytes, a lower bound. ``macs``: of the whole inference, exact. ``graphs``: how many kinds of tiles.
    """

    split: int
    rows: np.ndarray
    columns: np.ndarray
    arena: np.ndarray
    macs: np.ndarray
    graphs: np.ndarray


def plan_bounds(graph: Graph, mode: Mode) -> Iterator[PlanBounds]:
    """Bound every grid of every split."""
    for split in split_points(graph):
        rows, columns = axis_profiles(graph, split)
        stage, tail = halves(graph, split)
        (stitched,) = tail.inputs
        kept = graph.tensors[stitched].nbytes + (graph.tensors[graph.inputs[0]].nbytes if mode == "resident" else 0)
        arena = np.maximum(
            kept + tile_bytes(stage, rows, columns, lifetimes(stage, could_overwrite), fused_residuals(stage)),
            max(live_bytes(lifetimes(tail), ALIGNMENT), default=0),
        )
        macs = tail.macs + stage_macs(stage, rows, columns)
        yield PlanBounds(split, rows.parts, columns.parts, arena, macs, np.outer(rows.kinds, columns.kinds))


def halves(graph: Graph, split: int) -> tuple[Graph, Graph]:
    """The stage and what follows it, on the tensors of the whole graph."""
    stitched = graph.nodes[split - 1].output
    stage = Graph(graph.tensors, graph.nodes[:split], graph.inputs, (stitched,))
    return stage, Graph(graph.tensors, graph.nodes[split:], (stitched,), graph.outputs)


def axis_profiles(graph: Graph, split: int) -> tuple[AxisProfile, AxisProfile]:
    """What cutting rows costs, and columns."""
    rows = axis_profile(graph, split, ROWS)
    return rows, rows if looks_the_same(graph, split) else axis_profile(graph, split, COLUMNS)


def tile_bytes(
    stage: Graph, rows: AxisProfile, columns: AxisProfile, buffers: list[Buffer], fused: dict[int, int]
) -> np.ndarray:
    """What the largest tile of every grid has live at once, alignment and scratch apart.

    ``buffers``: of the stage. ``fused``: convolutions that run with a later node, as `fused_residuals` has them.
    """
    grids = np.zeros((len(rows.kinds), len(columns.kinds)), np.int64)
    for step, node in enumerate(stage.nodes):
        if step in fused.values():
            continue
        held = [_held(stage, buffer, step, rows.columns) for buffer in buffers]
        if isinstance(node.operator, Pad):  # In a tile that touches no border there is no Pad.
            held = [key for key in held if key is None or key[0] != node.output]
        tensors = [key for key in held if key is not None]
        at = [rows.columns[key] for key in tensors]
        pixel = [_pixel_bytes(stage, tensor) for tensor, _ in tensors]
        live = (rows.extents[:, at] * pixel) @ columns.extents[:, at].T
        live = np.maximum.reduceat(live, rows.starts[:-1], axis=0)
        np.maximum(grids, np.maximum.reduceat(live, columns.starts[:-1], axis=1), out=grids)
    return grids


def _held(stage: Graph, buffer: Buffer, step: int, columns: dict[tuple[int, int], int]) -> tuple[int, int] | None:
    """Tensor and step that say how much of a buffer is held at ``step``: what is written now, or read next."""
    for use in buffer.uses:
        if use.tensor is not None and use.first <= step <= use.last:
            if (use.tensor, step) in columns:
                return use.tensor, step
            later = [at for tensor, at in columns if tensor == use.tensor and at > step]
            if later and not isinstance(stage.nodes[min(later)].operator, Pad):
                return use.tensor, min(later)
            return None
    return None


def _pixel_bytes(stage: Graph, tensor: int) -> int:
    return stage.tensors[tensor].shape[3] * ELEMENT_BYTES[stage.tensors[tensor].dtype]


def stage_macs(stage: Graph, rows: AxisProfile, columns: AxisProfile) -> np.ndarray:
    """Multiply-accumulates of all tiles of every grid."""
    total = np.zeros((len(rows.kinds), len(columns.kinds)), np.int64)
    for step, node in enumerate(stage.nodes):
        output = stage.tensors[node.output].shape
        macs = node.operator.macs(stage.input_shapes(node), output)
        if macs:
            at = rows.columns[node.output, step]
            total += macs // math.prod(output[1:3]) * np.outer(rows.totals[:, at], columns.totals[:, at])
    return total
