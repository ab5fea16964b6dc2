"""Accuracy on images held out, counted at export: where it goes, and where it ends an export."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import ValidationFailed
from edgepipe.exporters.vision.held_out import HeldOut
from edgepipe.pipeline import export_vision
from edgepipe.pipeline.export import export
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.vision_recipe import VisionRecipe

IMAGES = 25


@pytest.fixture
def export_with(tiny_vision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Exports the tiny model with images of which so many bear a class that TFLite Micro does not see in them."""
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    interpreter = runtime.Interpreter.from_file(str(tiny_vision), arena_size=2**20)
    details = interpreter.get_input_details(0)["quantization_parameters"]
    scale, zero_point = float(details["scales"][0]), int(details["zero_points"][0])
    codes = np.random.default_rng(0).integers(-128, 128, (IMAGES, 1, 24, 20, 3), np.int8)
    classes = []
    for image in codes:
        interpreter.set_input(image, 0)
        interpreter.invoke()
        classes.append(int(np.array(interpreter.get_output(0)).argmax()))
    real = tuple((scale * (image.astype(np.float32) - zero_point)).astype(np.float32) for image in codes)
    true_open = export_vision.open_vision

    def run(wrong: int, **options: Any) -> Any:
        bent = np.array(classes)
        bent[:wrong] = (bent[:wrong] + 1) % 4
        held_out = HeldOut(real, bent, 0.96)
        monkeypatch.setattr(
            export_vision, "open_vision", lambda *given, **more: replace(true_open(*given, **more), held_out=held_out)
        )
        recipe = Recipe(vision=VisionRecipe(str(tiny_vision), sram="15K"), **options)
        return export(recipe, tmp_path / "bundle")

    return run


@pytest.mark.parametrize(("wrong", "share"), [(0, "100.0%"), (1, "96.0%")])
def test_what_is_right_is_counted(export_with: Any, wrong: int, share: str) -> None:
    bundle = export_with(wrong)
    right = IMAGES - wrong
    accuracy = bundle.manifest["validation"]["vision"]["accuracy"]
    assert accuracy == {"held_out_images": IMAGES, "correct": right, "accuracy": right / IMAGES}
    notes = bundle.manifest["components"]["vision"]["export"]["notes"]
    assert f"Right on {share} of 25 held-out images (int8, reference kernels)." in notes
    assert f"correct {right}" in (bundle.folder / "README.md").read_text()


def test_too_few_are_no_bundle(export_with: Any, tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed, match=r"right on 92\.0% of 25 held-out images, expected at least 96%"):
        export_with(2)
    assert not (tmp_path / "bundle").exists()


def test_without_validation_nothing_is_counted(export_with: Any) -> None:
    bundle = export_with(2, validate=False)
    assert bundle.manifest["validation"] == {}
    assert not any("held-out" in note for note in bundle.manifest["components"]["vision"]["export"]["notes"])


@pytest.mark.slow
def test_digits_reads_what_it_was_not_trained_on(tmp_path: Path) -> None:
    pytest.importorskip("litert_torch")
    pytest.importorskip("sklearn")
    bundle = export(Recipe(vision=VisionRecipe("digits", sram="32K", formats=("tflite",))), tmp_path / "bundle")
    accuracy = bundle.manifest["validation"]["vision"]["accuracy"]
    assert accuracy["held_out_images"] == 360
    assert accuracy["accuracy"] == accuracy["correct"] / 360 >= 0.96
