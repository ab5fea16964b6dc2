"""Inference patch by patch: windows of the image, the tiles they give, stitched; then the rest of the model."""

from __future__ import annotations

import numpy as np

from edgepipe.errors import EngineError
from edgepipe.runtimes.vision.engine import TAIL, WHOLE, Engine
from edgepipe.runtimes.vision.plan import VisionPlan
from edgepipe.runtimes.vision.windows import Image, whole_image, windows


def run_streamed(engine: Engine, plan: VisionPlan, image: Image) -> np.ndarray:
    """The model's output, with never more of the image at hand than one row of tiles needs.

    A plan without tiles runs the model as a whole.

    Raises:
        ImageError: the image is not of the model's shape or type; too few rows come, or too many.
        EngineError: the engine fails, or its files do not belong to the plan.
    """
    if plan.stage is None:
        return run_whole(engine, plan, image)
    return engine.run(TAIL, run_stage(engine, plan, image))


def run_stage(engine: Engine, plan: VisionPlan, image: Image) -> np.ndarray:
    """The stage's output ``[1, H', W', C']``, stitched of its tiles; the plan has some.

    Raises:
        As `run_streamed` does.
    """
    assert plan.stage is not None
    stage = np.empty(plan.stage.shape, plan.stage.dtype)
    for tile, window in windows(plan, image):
        computed, place = engine.run(tile.graph, window), tile.output.of(stage)
        if computed.shape != place.shape or computed.dtype != place.dtype:
            raise EngineError(
                f"{tile.graph} gave {computed.dtype} of shape {computed.shape}, the plan has {place.dtype} of shape "
                f"{place.shape}: model and plan.json do not belong together, export the bundle again"
            )
        place[:] = computed
    return stage


def run_whole(engine: Engine, plan: VisionPlan, image: Image) -> np.ndarray:
    """The model's output, computed at once.

    Raises:
        As `run_streamed` does.
    """
    return engine.run(WHOLE, whole_image(plan, image))
