"""The split model that takes the whole one's place in TFLite Micro: the plan with the smallest arena there.

That arena is another than ours: no operator works in place, the image is held until the last window is cut out of it,
and every tile's nodes have structures and multipliers of their own. So many tiles that save activations may still cost
more than they save, and the plan is chosen by both together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgepipe.exporters.vision.arena import live_bytes
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.operators import Pad
from edgepipe.exporters.vision.patch_split import join, split
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.plan_bounds import axis_profiles, halves, stage_macs, tile_bytes
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.tflm_arena import (
    TENSOR_BYTES,
    TflmArena,
    lifetimes,
    node_bytes,
    predict_tflm_arena,
)

# What a drop-in has to save to be worth its name, as a part of the whole model's arena.
MIN_SAVING = 0.05

# Plans that are laid out at most, those with the lowest bounds. A number, not a time: exports are to be the same again.
_MAX_LAID_OUT = 400


@dataclass(frozen=True, eq=False)
class DropIn:
    """A split model as one ``graph``. ``macs``: of one inference. ``arena``: TFLite Micro's, predicted."""

    patches: PatchPlan
    graph: Graph
    macs: int
    arena: TflmArena


def find_drop_in(graph: Graph, max_macs: float) -> DropIn | None:
    """The plan with the smallest arena in TFLite Micro that takes at most ``max_macs`` multiply-accumulates.

    None: no plan's arena is smaller than the whole model's by `MIN_SAVING`.
    """
    best: DropIn | None = None
    limit = (1 - MIN_SAVING) * predict_tflm_arena(graph).nbytes
    candidates = sorted(_candidates(graph, max_macs, limit), key=lambda candidate: candidate[0])
    for bound, patches in candidates[:_MAX_LAID_OUT]:
        if bound > limit:
            break
        joined = join(split(graph, patches))
        arena = predict_tflm_arena(joined)
        if arena.nbytes <= limit and (best is None or arena.nbytes < best.arena.nbytes):
            best, limit = DropIn(patches, joined, joined.macs, arena), arena.nbytes
    return best


def _candidates(graph: Graph, max_macs: float, limit: float) -> Iterator[tuple[int, PatchPlan]]:
    """Plans that may have an arena of ``limit`` bytes or less, each with a lower bound of its arena."""
    image = graph.inputs[0]
    for point in split_points(graph):
        stage, tail = halves(graph, point)
        stitched = graph.tensors[tail.inputs[0]]
        height, width = stitched.shape[1:3]
        rows, columns = axis_profiles(graph, point)
        down, across = np.meshgrid(rows.parts, columns.parts, indexing="ij")
        # Beside its tile's activations any but the last tile has the image, and the last one what all others gave.
        others = stitched.nbytes * (1 - np.ceil(height / down) * np.ceil(width / across) / (height * width))
        tiles = tile_bytes(stage, rows, columns, lifetimes(stage), {})
        head = tiles + np.minimum(graph.tensors[image].nbytes, others.astype(np.int64))
        # In the end tiles, or rows of them, are copied side by side.
        head = np.maximum(head, max([2 * stitched.nbytes, *live_bytes(lifetimes(tail))]))
        kept = sum(node_bytes(stage, node) + TENSOR_BYTES for node in stage.nodes if not isinstance(node.operator, Pad))
        bound = head + predict_tflm_arena(tail).tail + kept * down * across - TENSOR_BYTES * len(stage.nodes)
        few = tail.macs + stage_macs(stage, rows, columns) <= max_macs
        for row, column in np.argwhere(few & (bound <= limit) & (down * across > 1)):
            yield int(bound[row, column]), PatchPlan(point, int(rows.parts[row]), int(columns.parts[column]))
