"""What every way to cut an axis of a stage into parts costs along that axis.

A tile's regions are products of rows and columns, and what bounds its memory and its multiply-accumulates are sums of
such products. So rows and columns are looked at apart, once for every number of parts, and only multiplied together
for every grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.operators import Pad, Window
from edgepipe.exporters.vision.patches import Span, tile_bounds
from edgepipe.exporters.vision.receptive_field import COLUMNS, ROWS, axis_spans, read_span

# Beyond the first, not every number of parts is looked at, and an axis is cut into the second at most: each part is a
# call of its own, and the number of grids grows with the square.
EVERY_PARTS = 64
MOST_PARTS = 128


@dataclass(frozen=True)
class AxisProfile:
    """One axis of the stage ``nodes[:split]``, cut into every number of parts that `part_counts` gives.

    ``parts`` ``[N]``: those numbers.
    ``columns``: for a tensor at the step that writes it, ``(tensor, step)``, and at each step that reads it, where a
    column is in ``extents``. ``extents`` ``[P, columns]``: rows (or columns) held, for every kind of part that is not
    smaller in all of them than another. The kinds of ``parts[n]`` parts are ``extents[starts[n] : starts[n + 1]]``.
    ``totals`` ``[N, columns]``: summed over all parts. ``kinds`` ``[N]``: parts that need a graph of their own.
    """

    parts: np.ndarray
    columns: dict[tuple[int, int], int]
    extents: np.ndarray
    starts: np.ndarray
    totals: np.ndarray
    kinds: np.ndarray


def part_counts(size: int) -> list[int]:
    """Numbers of parts that an axis of ``size`` may be cut into, ascending.

    All of them up to `EVERY_PARTS`; from there to `MOST_PARTS` the fewest for every size of the largest part, since
    more parts of that size only compute more twice.
    """
    finer = {-(-size // largest) for largest in range(max(size // MOST_PARTS, 1), size // EVERY_PARTS + 1)}
    return [*range(1, min(size, EVERY_PARTS) + 1), *sorted(n for n in finer if EVERY_PARTS < n <= MOST_PARTS)]


def axis_profile(graph: Graph, split: int, axis: int) -> AxisProfile:
    """Measure one axis: 1 for rows, 2 for columns."""
    size = graph.tensors[graph.nodes[split - 1].output].shape[axis]
    reads = [
        (index, step)
        for step, node in enumerate(graph.nodes[:split])
        for index in dict.fromkeys(graph.activations(node))
    ]
    writes = [(node.output, step) for step, node in enumerate(graph.nodes[:split])]
    columns = {key: column for column, key in enumerate([*writes, *reads])}
    known: dict[Span, tuple[list[int], tuple[int, ...]]] = {}
    extents, starts, totals, kinds = [], [0], [], []
    counts = part_counts(size)
    for parts in counts:
        measured = []
        for span in tile_bounds(size, parts):
            if span not in known:
                known[span] = _measure(graph, split, axis, span, writes, reads)
            measured.append(known[span])
        held = np.array([row for row, _ in measured])
        extents.append(_largest(held))
        starts.append(starts[-1] + len(extents[-1]))
        totals.append(held.sum(0))
        kinds.append(len({kind for _, kind in measured}))
    stacked = np.concatenate(extents), np.array(starts), np.array(totals), np.array(kinds)
    return AxisProfile(np.array(counts), columns, *stacked)


def looks_the_same(graph: Graph, split: int) -> bool:
    """Whether rows and columns of the stage are alike, so that one profile serves for both."""
    for node in graph.nodes[:split]:
        images = [graph.tensors[index].shape for index in (*graph.activations(node), node.output)]
        if any(shape[ROWS] != shape[COLUMNS] for shape in images):
            return False
        match node.operator:
            case Window(kernel=kernel, stride=stride, pads=pads, dilation=dilation):
                pairs = [kernel, stride, dilation, (pads.top, pads.left), (pads.bottom, pads.right)]
            case Pad(before_after=before_after):
                pairs = list(zip(before_after[ROWS], before_after[COLUMNS], strict=True))
            case _:
                pairs = []
        if any(first != second for first, second in pairs):
            return False
    return True


def _measure(
    graph: Graph, split: int, axis: int, span: Span, writes: list[tuple[int, int]], reads: list[tuple[int, int]]
) -> tuple[list[int], tuple[int, ...]]:
    """What a part holds, and what tells its graph from that of another part of the same sizes: padding and crops."""
    spans = axis_spans(graph, split, axis, span)
    held = [spans[tensor].size if tensor in spans else 0 for tensor, _ in writes]
    kind = []
    needed: dict[int, int] = {}
    later = []
    for tensor, step in reversed(reads):
        node = graph.nodes[step]
        if node.output in spans:
            read = read_span(graph, node, tensor, axis, spans[node.output])
            needed[tensor] = max(needed.get(tensor, 0), read.clip(graph.tensors[tensor].shape[axis]).size)
            kind += [read.begin - spans[tensor].begin, read.end - spans[tensor].end]
        later.append(needed.get(tensor, 0))
    held += reversed(later)
    return held, (*held, *kind)


def _largest(held: np.ndarray) -> np.ndarray:
    """Rows of a matrix without those that another row is at least as large as in every column."""
    rows = np.unique(held, axis=0)
    covered = (rows[None, :, :] >= rows[:, None, :]).all(2)
    return rows[covered.sum(1) == 1]
