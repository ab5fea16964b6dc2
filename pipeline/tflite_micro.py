"""A vision model's memory in TFLite Micro, beside that of edgepipe's C runtime, whose arena the plan is made for."""

from __future__ import annotations

from dataclasses import dataclass

from edgepipe.exporters.vision.drop_in import MIN_SAVING, DropIn, find_drop_in
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.patches import SplitModel
from edgepipe.exporters.vision.search import MAX_MACS, MemoryPlan, kib
from edgepipe.exporters.vision.tflm_arena import TflmArena, predict_tflm_arena
from edgepipe.runtimes.vision import tflite_micro as device


@dataclass(frozen=True, eq=False)
class TfliteMicro:
    """Predicted arenas of the ``whole`` model, of the ``drop_in``, and of the streamed model's ``largest_part``.

    ``budget``: bytes that an arena may have, if limited.
    """

    whole: TflmArena
    drop_in: DropIn | None
    largest_part: TflmArena | None
    budget: int | None

    @property
    def fits_whole(self) -> bool:
        """Whether the whole model stays within the budget, so that it need not be split."""
        return self.budget is not None and self.whole.nbytes <= self.budget

    def notes(self) -> list[str]:
        """What to know of the drop-in."""
        if self.fits_whole:
            return []
        if self.drop_in is None:
            return [
                f"No model.split.tflite: in TFLite Micro no split saves {MIN_SAVING:.0%} of the "
                f"{kib(self.whole.nbytes)} that the whole model takes there."
            ]
        if self.budget is not None and self.drop_in.arena.nbytes > self.budget:
            return [
                f"In TFLite Micro model.split.tflite takes {kib(self.drop_in.arena.nbytes)}, more than the "
                f"{kib(self.budget)} that the plan for edgepipe's C runtime keeps to."
            ]
        return []

    def for_device(self) -> device.TfliteMicro:
        """The same, as plan.json has it."""
        drop_in = None
        if self.drop_in is not None:
            patches = self.drop_in.patches
            grid, arena = (patches.rows, patches.columns), _for_device(self.drop_in.arena)
            drop_in = device.DropIn(patches.split, grid, self.drop_in.macs, arena)
        largest_part = None if self.largest_part is None else _for_device(self.largest_part)
        return device.TfliteMicro(_for_device(self.whole), drop_in, largest_part)


def plan_tflite_micro(graph: Graph, chosen: MemoryPlan, model: SplitModel | None, budget: int | None) -> TfliteMicro:
    """Predict TFLite Micro's arenas, and find the drop-in: it has a plan of its own, and none if all fits as it is.

    The drop-in may multiply as often as the ``chosen`` plan, or a tenth more than the whole model if that is more.
    ``model``: split by the chosen plan. ``budget``: bytes that an arena may have, if limited.
    """
    parts = [] if model is None else [*model.tile_graphs.values(), model.tail]
    largest = max(map(predict_tflm_arena, parts), key=lambda arena: arena.nbytes, default=None)
    alone = TfliteMicro(predict_tflm_arena(graph), None, largest, budget)
    if alone.fits_whole:
        return alone
    return TfliteMicro(alone.whole, find_drop_in(graph, max(MAX_MACS * graph.macs, chosen.macs)), largest, budget)


def _for_device(arena: TflmArena) -> device.TfliteMicroArena:
    return device.TfliteMicroArena(arena.head, arena.tail)
