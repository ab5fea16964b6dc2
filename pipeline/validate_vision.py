"""Does a split model compute what the whole one does, and how far do other engines stray from the reference?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import ValidationFailed
from edgepipe.exporters.vision.source import VisionSource
from edgepipe.lazy import load
from edgepipe.pipeline.vision_session import ENGINE_OF
from edgepipe.runtimes.vision.engine import SPLIT, TAIL, WHOLE, Engine
from edgepipe.runtimes.vision.engines import ENGINES
from edgepipe.runtimes.vision.patch_stream import run_stage, run_streamed, run_whole
from edgepipe.runtimes.vision.plan import TensorFormat, VisionPlan

# Calibration images looked at; each costs a few inferences in LiteRT's slow reference kernels.
MAX_SAMPLES = 4

# Engines round otherwise than the reference. Where they choose its class on fewer images than this, it is an error.
MIN_TOP1_AGREEMENT = 0.75

# Steps between the stage patch by patch and at once, in one engine. More of them, or a fault, would change outputs.
MAX_STAGE_STEPS = 1


def probe_images(source: VisionSource, plan: VisionPlan) -> list[np.ndarray]:
    """Images ``[1, H, W, C]`` of codes: a few that the model was calibrated with, noise, and the extremes."""
    generator = np.random.default_rng(0)
    shape, dtype = plan.input.shape, np.dtype(plan.input.dtype)
    lowest, highest = (0, 1) if dtype == np.float32 else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    samples = [_codes(plan.input, sample) for sample in source.samples[:MAX_SAMPLES]]
    noise = generator.uniform(lowest, highest, shape)
    mixed = generator.choice([lowest, highest], shape)
    flat = [np.full(shape, value) for value in (lowest, highest)]
    extremes = (noise if dtype == np.float32 else noise.round(), mixed, *flat)
    return [*samples, *(image.astype(dtype) for image in extremes)]


def validate_vision(
    reference: Engine,
    folder: Path,
    plan: VisionPlan,
    images: Sequence[np.ndarray],
    formats: Sequence[str],
    stages: Mapping[str, Engine],
    *,
    is_trained: bool,
) -> dict[str, Any]:
    """Compare what a bundle's ``vision`` folder holds with the whole model in LiteRT's reference kernels.

    In those kernels the split model and the whole one are equal byte for byte, and in each other engine, too, or within
    a step. But ONNX Runtime and ExecuTorch round otherwise: given the same codes, each operator is within 1 step of the
    reference, and the steps add up over layers, so that stages and outputs may be further away, the more the deeper.

    Args:
        reference: `LiteRTEngine` with its exact kernels, over all TFLite files.
        folder, plan, formats: what was exported.
        images: as `probe_images` gives them.
        stages: for each format but TFLite, its engine with the layers up to the split as the whole model; needed if
            the plan has tiles.
        is_trained: whether other engines must choose the reference's classes. Random weights tell classes apart by
            less than roundings.

    Returns:
        Under ``split``: ``images`` and ``differing_bytes``, those of the drop-in and of the stream together. Under
        the name of each format but TFLite: ``images``; if the plan has tiles, patch by patch against at once, both in
        that engine, ``max_split_stage_difference`` and ``max_split_output_difference``; then against the reference
        ``max_stage_difference`` and ``differing_stage_share`` of the stitched tiles, ``max_output_difference`` and
        ``top1_agreement``. Differences are in codes, or real values where the tensor is floating-point. What there is
        not (no stage, no classes) is None.

    Raises:
        ValidationFailed: a byte of the split model differs, or in another engine more than a step; or that engine
            chooses other classes in a trained model.
    """
    expected = [run_whole(reference, plan, image) for image in images]
    found: dict[str, Any] = {}
    if plan.stage is not None or plan.memory.tflite_micro.drop_in is not None:
        found["split"] = _split_against_whole(reference, plan, images, expected)
    for name in formats:
        if name != "tflite":
            engine = load(ENGINES[ENGINE_OF[name]])(folder)
            found[name] = {
                "images": len(images),
                **({} if plan.stage is None else _patches_against_whole(engine, stages[name], plan, images)),
                **_against_reference(engine, reference, plan, images, expected),
            }
            _require_same_stage(name, plan, found[name])
            if is_trained:
                _require_agreement(name, found[name])
    return found


def _require_same_stage(name: str, plan: VisionPlan, found: dict[str, Any]) -> None:
    if plan.stage is None or plan.stage.dtype == "float32":
        return
    steps = found["max_split_stage_difference"]
    if steps > MAX_STAGE_STEPS:
        raise ValidationFailed(
            f"vision, {name}: patch by patch and at once the stage is {steps:g} steps apart on {found['images']} "
            f"images, expected {MAX_STAGE_STEPS} at most: leave out --formats {name}, and please report it"
        )


def _require_agreement(name: str, found: dict[str, Any]) -> None:
    agreement = found["top1_agreement"]
    if agreement is not None and agreement < MIN_TOP1_AGREEMENT:
        raise ValidationFailed(
            f"vision, {name}: the class is that of the reference on {agreement:.0%} of {found['images']} images, "
            f"expected {MIN_TOP1_AGREEMENT:.0%}: leave out --formats {name}, or give images with --calibration"
        )


def _split_against_whole(
    reference: Engine, plan: VisionPlan, images: Sequence[np.ndarray], expected: Sequence[np.ndarray]
) -> dict[str, Any]:
    differing = 0
    for image, whole in zip(images, expected, strict=True):
        split = [] if plan.memory.tflite_micro.drop_in is None else [reference.run(SPLIT, image)]
        if plan.stage is not None:
            split.append(run_streamed(reference, plan, image))
        for other in split:
            differing += int(np.count_nonzero(other.view(np.uint8) != whole.view(np.uint8)))
    if differing:
        raise ValidationFailed(
            f"split, the model gives {differing} other bytes than whole on {len(images)} images, expected 0: "
            "this is a fault of edgepipe, please report it"
        )
    return {"images": len(images), "differing_bytes": differing}


def _patches_against_whole(
    engine: Engine, stage_at_once: Engine, plan: VisionPlan, images: Sequence[np.ndarray]
) -> dict[str, Any]:
    stages, outputs = [], []
    for image in images:
        stage = run_stage(engine, plan, image)
        stages.append(_difference(stage, stage_at_once.run(WHOLE, image)).max())
        outputs.append(_difference(engine.run(TAIL, stage), run_whole(engine, plan, image)).max())
    return {
        "max_split_stage_difference": float(np.max(stages)),
        "max_split_output_difference": float(np.max(outputs)),
    }


def _against_reference(
    engine: Engine,
    reference: Engine,
    plan: VisionPlan,
    images: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
) -> dict[str, Any]:
    stages, outputs, agreeing = [], [], []
    for image, whole in zip(images, expected, strict=True):
        if plan.stage is None:
            output = run_whole(engine, plan, image)
        else:
            stage = run_stage(engine, plan, image)
            stages.append(_difference(stage, run_stage(reference, plan, image)))
            output = engine.run(TAIL, stage)
        outputs.append(_difference(output, whole).max())
        agreeing.append(whole.flat[output.argmax()] == whole.max())  # classes that tie are all the first
    return {
        "max_stage_difference": float(np.max(stages)) if stages else None,
        "differing_stage_share": float(np.mean([stage > 0 for stage in stages])) if stages else None,
        "max_output_difference": float(np.max(outputs)),
        "top1_agreement": float(np.mean(agreeing)) if plan.num_classes else None,
    }


def _difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.abs(one.astype(np.float64) - other.astype(np.float64))


def _codes(image: TensorFormat, real: np.ndarray) -> np.ndarray:
    if image.scale is None or image.zero_point is None:
        return real.astype(image.dtype)
    limits = np.iinfo(image.dtype)
    return np.clip(np.rint(real / image.scale) + image.zero_point, limits.min, limits.max).astype(image.dtype)
