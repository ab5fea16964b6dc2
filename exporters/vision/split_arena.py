"""The static arena of a split model: the stage's output, under which one tile at a time is computed, and the tail.

Streamed, a tile's window comes in from outside and the image is never held whole. Resident, the image lies in the
arena until the last tile is done, and windows are copied from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

from edgepipe.exporters.vision.arena import ALIGNMENT, Arena, Buffer, Use, lifetimes, live_bytes, place
from edgepipe.exporters.vision.in_place import fused_residuals
from edgepipe.exporters.vision.patches import SplitModel

Mode = Literal["streamed", "resident"]


@dataclass(frozen=True)
class SplitArena:
    """A laid-out arena of ``nbytes``; all offsets are from its beginning.

    ``stage``: offset of the stitched output of the stage, which is the tail's input. ``image``: offset of the image
    (None when streamed). ``tiles``: for each tile graph; ``tail``: for the tail. ``tiles_live`` and ``tail_live``:
    bytes in use at each of their nodes, the stage's output and the image included.
    """

    nbytes: int
    stage: int
    image: int | None
    tiles: dict[str, Arena]
    tail: Arena
    tiles_live: dict[str, list[int]]
    tail_live: list[int]

    @property
    def stage_bytes(self) -> int:
        """Bytes in use at once while tiles are computed."""
        return max(map(max, self.tiles_live.values()))

    @property
    def tail_bytes(self) -> int:
        """Bytes in use at once afterwards."""
        return max(self.tail_live)


def plan_split_arena(model: SplitModel, mode: Mode = "streamed", alignment: int = ALIGNMENT) -> SplitArena:
    """Lay out the arena of a split model."""
    graphs = [*model.tile_graphs.values(), model.tail]
    own = [lifetimes(graph) for graph in graphs]
    starts = [0, *accumulate(max(len(graph.nodes), 1) for graph in graphs)]
    buffers = [
        Buffer([_later(use, start) for use in buffer.uses])
        for parts, start in zip(own, starts, strict=False)
        for buffer in parts
    ]
    firsts = [0, *accumulate(map(len, own))]
    stitched = buffers[firsts[-2]]
    stitched.uses[0] = replace(stitched.uses[0], first=0)
    if mode == "resident":
        (image,) = model.whole.inputs
        buffers.append(Buffer([Use(0, starts[-2] - 1, model.whole.tensors[image].nbytes)]))
    offsets, nbytes = place(buffers, alignment)
    live = live_bytes(buffers)
    arenas = [
        Arena(nbytes, tuple(parts), tuple(offsets[first : first + len(parts)]), fused_residuals(graph))
        for graph, parts, first in zip(graphs, own, firsts, strict=False)
    ]
    lives = [live[start:end] for start, end in pairwise(starts)]
    return SplitArena(
        nbytes,
        stage=offsets[firsts[-2]],
        image=offsets[-1] if mode == "resident" else None,
        tiles=dict(zip(model.tile_graphs, arenas, strict=False)),
        tail=arenas[-1],
        tiles_live=dict(zip(model.tile_graphs, lives, strict=False)),
        tail_live=lives[-1],
    )


def _later(use: Use, steps: int) -> Use:
    return replace(use, first=use.first + steps, last=use.last + steps)
