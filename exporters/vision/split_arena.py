"""The static arena of a split model: the stage's output, under which one tile at a time is computed, and the tail.

Streamed, a tile's window comes in from outside and the image is never held whole. Resident, the image lies in the
arena until the last tile is done, and windows are copied from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from edgepipe.exporters.vision.arena import ALIGNMENT, Arena, Buffer, Use, lifetimes, live_bytes, place
from edgepipe.exporters.vision.in_place import fused_residuals
from edgepipe.exporters.vision.patches import SplitModel

Mode = Literal["streamed", "resident"]


@dataclass(frozen=True)
class SplitArena:
    """A laid-out arena of ``nbytes``; all offsets are from its beginning.

    ``stage``: offset of the stitched output of the stage, which is the tail's input. ``image``: offset of the image
    (None when streamed). ``tiles``: for each tile graph; ``tail``: for the tail. ``live``: bytes in use at each step
    of the tile graphs, one after the other, and of the tail.
    """

    nbytes: int
    stage: int
    image: int | None
    tiles: dict[str, Arena]
    tail: Arena
    live: list[int]

    @property
    def stage_bytes(self) -> int:
        """Bytes in use at once while tiles are computed."""
        return max(self.live[: -len(self.tail.live_bytes())])

    @property
    def tail_bytes(self) -> int:
        """Bytes in use at once afterwards."""
        return max(self.live[-len(self.tail.live_bytes()) :])


def plan_split_arena(model: SplitModel, mode: Mode = "streamed", alignment: int = ALIGNMENT) -> SplitArena:
    """Lay out the arena of a split model."""
    graphs = [*model.tile_graphs.values(), model.tail]
    own = [lifetimes(graph) for graph in graphs]
    buffers: list[Buffer] = []
    sections = []
    step = 0
    for graph, parts in zip(graphs, own, strict=True):
        sections.append(slice(len(buffers), len(buffers) + len(parts)))
        buffers += [Buffer([_later(use, step) for use in part.uses]) for part in parts]
        tail_begins = step
        step += max(len(graph.nodes), 1)
    stitched = buffers[sections[-1].start]
    stitched.uses[0] = replace(stitched.uses[0], first=0)
    if mode == "resident":
        (image,) = model.whole.inputs
        buffers.append(Buffer([Use(0, tail_begins - 1, model.whole.tensors[image].nbytes)]))
    offsets, nbytes = place(buffers, alignment)
    arenas = [
        Arena(nbytes, tuple(parts), tuple(offsets[section]), fused_residuals(graph))
        for graph, parts, section in zip(graphs, own, sections, strict=True)
    ]
    return SplitArena(
        nbytes,
        stage=offsets[sections[-1].start],
        image=offsets[-1] if mode == "resident" else None,
        tiles=dict(zip(model.tile_graphs, arenas, strict=False)),
        tail=arenas[-1],
        live=live_bytes(buffers),
    )


def _later(use: Use, steps: int) -> Use:
    return replace(use, first=use.first + steps, last=use.last + steps)
