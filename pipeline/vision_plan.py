"""From a model and a budget to the plan that the device reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgepipe.errors import RecipeError
from edgepipe.exporters.vision.graph import Graph, Tensor
from edgepipe.exporters.vision.patches import PatchPlan, Region, SplitModel
from edgepipe.exporters.vision.plan_bounds import plan_bounds
from edgepipe.exporters.vision.search import MAX_MACS, MemoryPlan, find_plans, lay_out, whole_plan
from edgepipe.exporters.vision.source import VisionSource
from edgepipe.exporters.vision.split_arena import Mode
from edgepipe.pipeline.plan import Budget
from edgepipe.pipeline.tflite_micro import TfliteMicro
from edgepipe.pipeline.vision_recipe import VisionRecipe
from edgepipe.runtimes.vision import plan as device

# Without a budget: in so many patches at most.
MAX_PATCHES = 64


def choose_plan(graph: Graph, recipe: VisionRecipe) -> tuple[MemoryPlan, int | None]:
    """The plan for the recipe's budget, and that budget's SRAM in bytes; None: as `frugal_plan` has it.

    Raises:
        DoesNotFit: no plan fits; says the smallest SRAM that would do.
        RecipeError: there is flash to fit into, but no SRAM.
    """
    if recipe.sram is None and recipe.board is None and recipe.flash is None:
        return frugal_plan(graph, recipe.mode), None
    budget = Budget.of(recipe.sram_bytes, recipe.flash_bytes, recipe.board)
    plans = find_plans(graph, budget.sram, budget.flash, recipe.mode, reserve_bytes=budget.reserve, count=1)
    return plans[0], budget.sram


def frugal_plan(graph: Graph, mode: Mode) -> MemoryPlan:
    """The plan with the smallest arena (to the KiB) of those within `MAX_MACS` and `MAX_PATCHES`; fewest patches."""
    ranked: list[tuple[int, int, int, PatchPlan]] = []
    for bounds in plan_bounds(graph, mode):
        for row, column in np.argwhere(bounds.macs <= MAX_MACS * graph.macs):
            patches = PatchPlan(bounds.split, int(bounds.rows[row]), int(bounds.columns[column]))
            if 1 < (count := patches.rows * patches.columns) <= MAX_PATCHES:
                arena, macs = bounds.arena[row, column], bounds.macs[row, column]
                ranked.append((int(arena) // 1024, count, int(macs), patches))
    whole = whole_plan(graph, mode)
    if not ranked:
        return whole
    best = lay_out(graph, min(ranked, key=lambda entry: entry[:3])[3], mode)
    return best if best.arena_bytes < whole.arena_bytes else whole


def device_plan(
    source: VisionSource,
    recipe: VisionRecipe,
    chosen: MemoryPlan,
    model: SplitModel | None,
    tflite_micro: TfliteMicro,
    sram_bytes: int | None,
) -> device.VisionPlan:
    """What plan.json says; ``model`` is split by the chosen plan, or None if that has no patches.

    Raises:
        RecipeError: there are more labels than classes, or fewer, or they cannot be read.
    """
    graph = source.graph
    image, output = (_format(graph.tensors[index]) for index in (graph.inputs[0], graph.outputs[0]))
    mean, std = recipe.mean, recipe.std
    if mean is None and Path(recipe.source).suffix.lower() != ".tflite":
        mean, std = (0.0,), (1.0,)  # What `open_vision` takes the model to expect.
    plan = device.VisionPlan(
        input=image,
        output=output,
        stage=None if model is None else _format(model.tail.tensors[model.tail.inputs[0]]),
        split=0 if model is None else model.plan.split,
        grid=(1, 1) if model is None else (model.plan.rows, model.plan.columns),
        tiles=()
        if model is None
        else tuple(device.Tile(tile.graph, _region(tile.window), _region(tile.output)) for tile in model.tiles),
        mode=chosen.mode,
        macs=chosen.macs,
        whole_macs=graph.macs,
        memory=device.Memory(
            whole_plan(graph, chosen.mode).arena_bytes, chosen.arena_bytes, sram_bytes, tflite_micro.for_device()
        ),
        mean=mean,
        std=std,
        labels=source.labels if recipe.labels is None else _read_labels(Path(recipe.labels)),
    )
    if plan.labels is not None and len(plan.labels) != plan.num_classes:
        raise RecipeError(
            f"{recipe.labels or source.name} has {len(plan.labels)} labels: the model tells "
            f"{plan.num_classes or 'no'} classes apart"
        )
    return plan


def _format(tensor: Tensor) -> device.TensorFormat:
    if tensor.quantization is None:
        return device.TensorFormat(tensor.shape, tensor.dtype, None, None)
    return device.TensorFormat(tensor.shape, tensor.dtype, tensor.quantization.scale, tensor.quantization.zero_point)


def _region(region: Region) -> device.Region:
    return device.Region((region.rows.begin, region.rows.end), (region.columns.begin, region.columns.end))


def _read_labels(path: Path) -> tuple[str, ...]:
    try:
        return tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except OSError as error:
        raise RecipeError(
            f"{path}: {error.strerror}: expected a text file with the name of a class on each line"
        ) from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not UTF-8 text: expected the name of a class on each line") from error
