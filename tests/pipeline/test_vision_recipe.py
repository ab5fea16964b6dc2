"""What a vision recipe takes from Python, and what it says of all else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import RecipeError
from edgepipe.pipeline.recipe import Recipe, recipe_from, to_toml
from edgepipe.pipeline.vision_recipe import FORMATS, VisionRecipe


def test_paths_are_names() -> None:
    paths = {name: Path("folder") / name for name in ("weights", "calibration", "labels")}
    recipe = VisionRecipe(Path("net.tflite"), **paths)  # type: ignore[arg-type]
    assert recipe == VisionRecipe("net.tflite", **{name: str(path) for name, path in paths.items()})
    assert 'source = "net.tflite"' in to_toml(Recipe(vision=recipe))


@pytest.mark.parametrize("formats", ["tflite, onnx", "tflite,onnx", [" tflite", "onnx "], ("tflite", "onnx")])
def test_ways_to_write_formats(formats: Any) -> None:
    assert VisionRecipe("digits", formats=formats).formats == ("tflite", "onnx")


def test_one_number_for_all_channels() -> None:
    recipe = VisionRecipe("digits", mean=0.5, std=[1, 2, 3])  # type: ignore[arg-type]
    assert (recipe.mean, recipe.std) == ((0.5,), (1.0, 2.0, 3.0))


NONSENSE = (b"x", 3, 1.5, True, {}, object(), np.float32(3))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("source", (*NONSENSE, None, "", " ", "a\nb", ["x"]), "expected a name"),
        *((name, (*NONSENSE, "", []), "expected a name") for name in ("weights", "calibration", "labels", "board")),
        *((name, (38000.5, 1.0, True, -3, 0, b"1K", [], {}), "expected bytes, 1 or") for name in ("sram", "flash")),
        ("mode", ("foo", None, 3, []), "expected one of streamed, resident"),
        ("formats", (None, 3, {}, b"onnx"), f"expected some of {', '.join(FORMATS)}"),
        ("formats", ([3], "tf", "onnx;tflite", [["onnx"]], ","), f"expected {', '.join(FORMATS)}"),
        ("formats", ("onnx,onnx", ["tflite", "onnx", " tflite"]), "2 times: expected each once"),
        ("seed", (0.5, None, "1", True), "expected a whole number"),
        ("mean", ("0.5", ["a"], float("nan"), {}, True), "expected one number, or one a channel"),
    ],
)
def test_values_that_are_none(name: str, values: tuple[Any, ...], message: str) -> None:
    for value in values:
        with pytest.raises(RecipeError) as caught:
            VisionRecipe(**({"source": "digits"} | {name: value}))
        assert str(caught.value).startswith(name)
        assert message in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


def test_formats_of_decoders_are_only_named_beside_decoders() -> None:
    """Two keys of the same name, one of them of what is not there, would puzzle."""
    alone = to_toml(recipe_from({"vision": {"source": "digits"}}))
    both = to_toml(recipe_from({"vision": {"source": "digits"}, "target": {"source": "x"}}))
    assert (alone.count("formats"), both.count("formats")) == (1, 2)
    assert alone.index("formats") > alone.index("[vision]")
