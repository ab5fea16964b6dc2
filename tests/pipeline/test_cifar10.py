"""ResNet-8 of MLPerf Tiny on photographs: the same classes patch by patch and whole, in every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepipe.pipeline.export import export
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.run_image import answer
from edgepipe.pipeline.vision_recipe import VisionRecipe
from edgepipe.pipeline.vision_session import ENGINE_OF, VisionOptions, VisionSession

DATA = (Path(__file__).parents[2] / "../shared/data/vision").resolve()
CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"


@pytest.mark.parametrize(
    "formats", [("tflite", "onnx"), pytest.param(("tflite", "executorch"), marks=pytest.mark.slow)]
)
def test_the_same_classes_in_every_way(formats: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    if not DATA.is_dir():
        pytest.skip(f"no real models: {DATA} is absent")
    if "executorch" in formats:
        pytest.importorskip("executorch")
    (tmp_path / "labels.txt").write_text(CLASSES.replace(" ", "\n"))
    recipe = VisionRecipe(
        str(DATA / "resnet8_cifar10_int8.tflite"), labels=str(tmp_path / "labels.txt"), sram="38K", formats=formats
    )
    bundle = export(Recipe(vision=recipe), tmp_path / "bundle")
    photographs = sorted((DATA / "cifar10").glob("*.jpg"))
    assert len(photographs) == 6
    found: dict[tuple[object, ...], list[str | None]] = {}
    for name in formats:
        for whole in (False, True):
            for exact in (False, True) if name == "tflite" else (False,):
                session = VisionSession(bundle, VisionOptions(ENGINE_OF[name], whole=whole, exact=exact))
                assert session.plan.grid != (1, 1)
                found[name, whole, exact] = [answer(session, path, 1).top[0].label for path in photographs]
    classes = found["tflite", True, True]
    assert all(other == classes for other in found.values())
    right = [label == CLASSES.split()[int(path.stem[-1])] for label, path in zip(classes, photographs, strict=True)]
    assert sum(right) >= 5, "this model takes the horse for a truck"
