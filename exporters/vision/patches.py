"""A plan to run the first stage of a model patch by patch, and the model split by it.

The stage's output is cut into a grid of tiles. A tile is computed from its window of the image: the tile's receptive
field, so that windows overlap by a halo.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from edgepipe.exporters.vision.graph import Graph


@dataclass(frozen=True)
class PatchPlan:
    """``nodes[:split]`` run tile by tile, on a grid over the output of the last of them; the rest, on it stitched."""

    split: int
    rows: int
    columns: int


class Span(NamedTuple):
    """Rows or columns ``begin`` (included) to ``end`` (excluded)."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        """How many rows or columns."""
        return self.end - self.begin

    def clip(self, size: int) -> Span:
        """Those inside an axis of ``size``."""
        return Span(max(self.begin, 0), min(self.end, size))

    def hull(self, other: Span) -> Span:
        """From the first of both to the last of both."""
        return Span(min(self.begin, other.begin), max(self.end, other.end))

    def within(self, other: Span) -> Span:
        """The same rows or columns, counted from the beginning of ``other``."""
        return Span(self.begin - other.begin, self.end - other.begin)


@dataclass(frozen=True)
class Region:
    """Rows and columns of a tensor, in its own coordinates and clipped to it."""

    rows: Span
    columns: Span

    def shape(self, channels: int) -> tuple[int, int, int, int]:
        """Shape of this part of a tensor of so many channels."""
        return 1, self.rows.size, self.columns.size, channels

    def hull(self, other: Region) -> Region:
        """From the first rows and columns of both to the last of both."""
        return Region(self.rows.hull(other.rows), self.columns.hull(other.columns))

    def within(self, other: Region) -> Region:
        """The same region, in the coordinates of a tensor that holds ``other`` only."""
        return Region(self.rows.within(other.rows), self.columns.within(other.columns))


@dataclass(frozen=True)
class Tile:
    """One tile: at ``row`` and ``column`` of the grid, the ``output`` it computes from a ``window`` of the image.

    ``graph``: the key in `SplitModel.tile_graphs` of what computes it.
    """

    row: int
    column: int
    window: Region
    output: Region
    graph: str


@dataclass(frozen=True, eq=False)
class SplitModel:
    """A model split by a plan.

    ``tiles``: row by row. ``tile_graphs``: window to tile, one graph for all tiles of equal window size, pads and
    crops. ``tail``: the stitched output of the stage to the outputs of the ``whole`` model. All of them hold the whole
    model's constants themselves, not copies.
    """

    whole: Graph
    plan: PatchPlan
    tiles: tuple[Tile, ...]
    tile_graphs: dict[str, Graph]
    tail: Graph

    @property
    def stage(self) -> Graph:
        """What the tiles compute together, for the image at once: the whole model up to the split."""
        nodes = self.whole.nodes[: self.plan.split]
        return replace(self.whole, nodes=nodes, outputs=(nodes[-1].output,))


def tile_bounds(size: int, parts: int) -> list[Span]:
    """An axis of ``size`` cut into ``parts`` that differ by one at most: part ``i`` begins at ``i * size // parts``."""
    return [Span(part * size // parts, (part + 1) * size // parts) for part in range(parts)]
