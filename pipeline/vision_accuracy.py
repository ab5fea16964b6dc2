"""How often a quantised model is right on images that it was not trained on."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgepipe.errors import ValidationFailed
from edgepipe.exporters.vision.held_out import HeldOut
from edgepipe.runtimes.vision.engine import Engine
from edgepipe.runtimes.vision.image import Preprocessing
from edgepipe.runtimes.vision.patch_stream import run_whole
from edgepipe.runtimes.vision.plan import VisionPlan


def check_accuracy(engine: Engine, plan: VisionPlan, held_out: HeldOut) -> dict[str, Any]:
    """Count in how many images ``engine`` finds the right class.

    Returns:
        ``held_out_images``, ``correct``, and ``accuracy``, their ratio.

    Raises:
        ValidationFailed: the accuracy is below what is expected of the model.
    """
    to_codes = Preprocessing(plan.input, plan.mean, plan.std)
    answers = [int(run_whole(engine, plan, to_codes(image)).argmax()) for image in held_out.images]
    count, correct = len(answers), int(np.count_nonzero(np.array(answers) == held_out.classes))
    if correct < held_out.min_accuracy * count:
        raise ValidationFailed(
            f"vision: int8 is right on {correct / count:.1%} of {count} held-out images, expected at least "
            f"{held_out.min_accuracy:.0%}: train with another seed"
        )
    return {"held_out_images": count, "correct": correct, "accuracy": correct / count}


def accuracy_note(found: dict[str, Any]) -> str:
    """What `check_accuracy` found, as a sentence."""
    return f"Right on {found['accuracy']:.1%} of {found['held_out_images']} held-out images (int8, reference kernels)."
