"""Find the plan for a memory budget: every split and grid, by lower bounds first and laid out where they allow.

Of axes of more than 64 pixels not every number of parts is looked at: `part_counts` says which.

Plans are ranked by multiply-accumulates, to the whole percent of the model's own; among equals by the number of tile
graphs, which are code and tables in flash; then by the arena.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgepipe.errors import DoesNotFit
from edgepipe.exporters.vision.arena import Arena, plan_arena
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.operators import Conv2D, DepthwiseConv2D, FullyConnected
from edgepipe.exporters.vision.patch_split import split
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.plan_bounds import plan_bounds
from edgepipe.exporters.vision.split_arena import Mode, SplitArena, plan_split_arena

# What firmware needs of SRAM besides the arena: stack, static data, the buffers of the serial port.
RESERVE_BYTES = 8 * 1024

# Without a budget: as little memory as this much more arithmetic buys. Lin et al. 2021 (MCUNetV2) give their
# patch-based MobileNetV2 10 % more.
MAX_MACS = 1.1

# Multiplier and shift (int32 each) of one output channel.
_REQUANTIZATION_BYTES = 8


@dataclass(frozen=True, eq=False)
class MemoryPlan:
    """A plan, laid out.

    ``patches``: None when the model runs as a whole. ``arena_bytes``: exact. ``macs``: of one inference, what tiles
    compute twice included. ``window``: rows and columns of the largest piece of the image that is needed at once.
    ``tile_graphs``: how many kinds of tiles there are.
    """

    patches: PatchPlan | None
    mode: Mode
    arena: Arena | SplitArena
    macs: int
    window: tuple[int, int]
    tile_graphs: int

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena."""
        return self.arena.nbytes

    def mirrors(self, other: MemoryPlan) -> bool:
        """Whether it is the other one with rows and columns exchanged, at the same cost."""
        if self.patches is None or other.patches is None:
            return False
        exchanged = PatchPlan(self.patches.split, self.patches.columns, self.patches.rows)
        return (exchanged, self.arena_bytes, self.macs) == (other.patches, other.arena_bytes, other.macs)


def find_plans(
    graph: Graph,
    sram_bytes: int,
    flash_bytes: int | None = None,
    mode: Mode = "streamed",
    *,
    reserve_bytes: int = RESERVE_BYTES,
    count: int = 5,
) -> list[MemoryPlan]:
    """The best plans (at most ``count``, the best first) whose arena and ``reserve_bytes`` fit into ``sram_bytes``.

    Raises:
        DoesNotFit: none does; says the smallest SRAM that would do, and with what plan.
    """
    constants = model_flash_bytes(graph)
    if flash_bytes is not None and constants > flash_bytes:
        raise DoesNotFit(
            f"weights and requantisation tables take {kib(constants)} of flash and there are {kib(flash_bytes)}: "
            "no plan changes that, take a narrower model"
        )
    budget = sram_bytes - reserve_bytes
    candidates = _Candidates.of(graph, mode)
    plans = []
    whole = whole_plan(graph, mode)
    if whole.arena_bytes <= budget:
        plans.append(whole)
    for patches in candidates.fitting(budget):
        if len(plans) >= count:
            break
        plan = lay_out(graph, patches, mode)
        if plan.arena_bytes <= budget and not any(plan.mirrors(other) for other in plans):
            plans.append(plan)
    if not plans:
        smallest = _smallest(graph, candidates, whole)
        needed, other = _whole_kib(smallest.arena_bytes + reserve_bytes), ""
        if mode == "resident":
            streamed = _smallest(graph, _Candidates.of(graph, "streamed"), whole_plan(graph, "streamed"))
            if streamed.arena_bytes <= budget:
                other = " or --mode streamed"
            elif streamed.arena_bytes < smallest.arena_bytes:
                other = f" or --mode streamed --sram {_whole_kib(streamed.arena_bytes + reserve_bytes)}K"
        kept = f", {kib(reserve_bytes)} of it kept for the stack and the like" if reserve_bytes else ""
        raise DoesNotFit(
            f"no plan fits into {kib(sram_bytes)} of SRAM{kept}: the smallest that does is {needed}K, with "
            f"{describe(smallest)}, {smallest.macs / max(graph.macs, 1):.2f} times the multiply-accumulates: "
            f"try --sram {needed}K{other}"
        )
    return plans


def lay_out(graph: Graph, patches: PatchPlan, mode: Mode = "streamed") -> MemoryPlan:
    """A plan of one's own, laid out.

    Raises:
        UnsupportedModel: the graph cannot be split so.
    """
    model = split(graph, patches)
    return MemoryPlan(
        patches,
        mode,
        plan_split_arena(model, mode),
        sum(model.tile_graphs[tile.graph].macs for tile in model.tiles) + model.tail.macs,
        (max(tile.window.rows.size for tile in model.tiles), max(tile.window.columns.size for tile in model.tiles)),
        len(model.tile_graphs),
    )


def whole_plan(graph: Graph, mode: Mode = "streamed") -> MemoryPlan:
    """The model as it is, without patches."""
    shape = graph.tensors[graph.inputs[0]].shape
    window = (shape[1], shape[2]) if len(shape) == 4 else (1, math.prod(shape))
    return MemoryPlan(None, mode, plan_arena(graph), graph.macs, window, 0)


def model_flash_bytes(graph: Graph) -> int:
    """Bytes of weights, and of the multiplier and shift of each of their output channels; the code comes on top."""
    channels = sum(
        graph.tensors[node.output].shape[-1]
        for node in graph.nodes
        if isinstance(node.operator, Conv2D | DepthwiseConv2D | FullyConnected)
    )
    return graph.constant_bytes + _REQUANTIZATION_BYTES * channels


def kib(nbytes: int) -> str:
    """Bytes for people: in KiB, where that is not next to nothing."""
    if nbytes < 1024:
        return f"{nbytes} byte{'s' * (nbytes != 1)}"
    return f"{nbytes / 1024:,.1f} KiB"


def _whole_kib(nbytes: int) -> int:
    return -(-nbytes // 1024)


def describe(plan: MemoryPlan) -> str:
    """A plan in a few words."""
    if plan.patches is None:
        return "the whole model at once"
    patches = plan.patches
    return f"{patches.rows}x{patches.columns} patches, split after node {patches.split - 1}, {plan.mode}"


@dataclass(frozen=True)
class _Candidates:
    """Every plan with patches: ``plans`` ``[N, 3]`` (split, rows, columns), bounds of its arena, its rank."""

    plans: np.ndarray
    arena: np.ndarray
    rank: np.ndarray

    @classmethod
    def of(cls, graph: Graph, mode: Mode) -> _Candidates:
        plans, arena, macs, graphs = [np.empty((0, 3), np.int64)], [], [], []
        for bounds in plan_bounds(graph, mode):
            rows, columns = (parts.ravel() for parts in np.meshgrid(bounds.rows, bounds.columns, indexing="ij"))
            plans.append(np.stack([np.full_like(rows, bounds.split), rows, columns], 1))
            arena.append(bounds.arena.ravel())
            macs.append(bounds.macs.ravel())
            graphs.append(bounds.graphs.ravel())
        every = np.concatenate(plans)
        if not len(every):
            return cls(every, np.empty(0, np.int64), np.empty(0, np.int64))
        bytes_, total, kinds = (np.concatenate(parts) for parts in (arena, macs, graphs))
        percent = (total - graph.macs) * 100 // max(graph.macs, 1)
        # Of mirror images, the one with more rows: a camera's rows are held for a shorter time.
        order = np.lexsort((-every[:, 1], total, bytes_, kinds, percent))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        kept = (every[:, 1] > 1) | (every[:, 2] > 1)
        return cls(every[kept], bytes_[kept], rank[kept])

    def fitting(self, budget: int) -> Iterator[PatchPlan]:
        """Plans that may fit, the best first."""
        fits = np.flatnonzero(self.arena <= budget)
        for index in fits[np.argsort(self.rank[fits])]:
            yield self[index]

    def smallest(self) -> Iterator[tuple[int, PatchPlan]]:
        """Bounds and plans, by bounds."""
        for index in np.lexsort((self.rank, self.arena)):
            yield int(self.arena[index]), self[index]

    def __getitem__(self, index: int) -> PatchPlan:
        return PatchPlan(*map(int, self.plans[index]))


def _smallest(graph: Graph, candidates: _Candidates, whole: MemoryPlan) -> MemoryPlan:
    best = whole
    for bound, patches in candidates.smallest():
        if bound >= best.arena_bytes:
            break
        plan = lay_out(graph, patches, whole.mode)
        if plan.arena_bytes < best.arena_bytes:
            best = plan
    return best
