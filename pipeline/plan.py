"""Plan how a vision model fits into a microcontroller: the job behind `edgepipe plan`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from edgepipe.devices.boards import Board, find_board
from edgepipe.errors import RecipeError
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.patch_split import split
from edgepipe.exporters.vision.search import RESERVE_BYTES, MemoryPlan, find_plans, model_flash_bytes, whole_plan
from edgepipe.exporters.vision.source import VisionSource, open_vision
from edgepipe.exporters.vision.split_arena import Mode, SplitArena
from edgepipe.pipeline.plan_layers import Layer, layers
from edgepipe.pipeline.tflite_micro import TfliteMicro, plan_tflite_micro


@dataclass(frozen=True)
class Budget:
    """What a board has: ``sram`` bytes, of which ``reserve`` are not for the arena, and ``flash`` bytes, if limited."""

    sram: int
    flash: int | None = None
    reserve: int = RESERVE_BYTES
    board: Board | None = None

    @classmethod
    def of(cls, sram: int | None, flash: int | None, board: str | None, reserve: int = RESERVE_BYTES) -> Budget:
        """What is given, and else what the board has.

        Raises:
            RecipeError: neither says how much SRAM there is.
        """
        found = None if board is None else find_board(board)
        if sram is None and found is None:
            raise RecipeError("no memory to plan for: give --sram, as in --sram 192K, or --board")
        return cls(
            found.sram if sram is None and found else sram or 0,
            found.flash if flash is None and found else flash,
            reserve,
            found,
        )


@dataclass(frozen=True, eq=False)
class Planning:
    """Plans for a model, the best first, and what they are compared with."""

    source: VisionSource
    budget: Budget
    whole: MemoryPlan
    plans: list[MemoryPlan]
    layers: list[Layer]
    tflite_micro: TfliteMicro

    @property
    def graph(self) -> Graph:
        """The model."""
        return self.source.graph


def plan(reference: str, budget: Budget, mode: Mode = "streamed") -> Planning:
    """Plan the model that ``reference`` names, as `open_vision` takes it.

    Raises:
        DoesNotFit: no plan fits.
        EdgepipeError: the model cannot be read or taken.
    """
    source = open_vision(reference)
    graph = source.graph
    plans = find_plans(graph, budget.sram, budget.flash, mode, reserve_bytes=budget.reserve)
    patches = plans[0].patches
    model = None if patches is None else split(graph, patches)
    tflite_micro = plan_tflite_micro(graph, plans[0], model, budget.sram - budget.reserve)
    return Planning(source, budget, whole_plan(graph, mode), plans, layers(graph, plans[0]), tflite_micro)


def stage_overhead(graph: Graph, memory_plan: MemoryPlan) -> float:
    """Multiply-accumulates that tiles compute twice, as a part of those of the stage."""
    if memory_plan.patches is None:
        return 0.0
    stage = Graph(graph.tensors, graph.nodes[: memory_plan.patches.split], (), ()).macs
    return (memory_plan.macs - graph.macs) / max(stage, 1)


def as_json(planning: Planning) -> dict[str, Any]:
    """What `edgepipe plan --json` prints; sizes in bytes."""
    graph, budget = planning.graph, planning.budget
    return {
        "model": planning.source.name,
        "notes": list(planning.source.notes),
        "board": budget.board.name if budget.board else None,
        "sram_bytes": budget.sram,
        "reserve_bytes": budget.reserve,
        "flash_bytes": budget.flash,
        "model_flash_bytes": model_flash_bytes(graph),
        "whole": _plan_json(graph, planning.whole),
        "plans": [_plan_json(graph, memory_plan) for memory_plan in planning.plans],
        "tflite_micro": asdict(planning.tflite_micro.for_device()),
        "layers": [vars(layer) for layer in planning.layers],
    }


def _plan_json(graph: Graph, memory_plan: MemoryPlan) -> dict[str, Any]:
    patches = memory_plan.patches
    arena = memory_plan.arena if isinstance(memory_plan.arena, SplitArena) else None
    return {
        "split": patches.split if patches else None,
        "rows": patches.rows if patches else 1,
        "columns": patches.columns if patches else 1,
        "mode": memory_plan.mode,
        "window": list(memory_plan.window),
        "arena_bytes": memory_plan.arena_bytes,
        "stage_bytes": arena.stage_bytes if arena else None,
        "tail_bytes": arena.tail_bytes if arena else None,
        "macs": memory_plan.macs,
        "macs_without_halo": graph.macs,
        "stage_overhead": stage_overhead(graph, memory_plan),
        "tile_graphs": memory_plan.tile_graphs,
    }
