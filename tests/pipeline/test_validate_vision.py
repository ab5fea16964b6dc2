"""What an engine that chooses other classes than the reference means for a bundle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgepipe.errors import ValidationFailed
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.operators import FullyConnected
from edgepipe.exporters.vision.source import VisionSource, open_vision
from edgepipe.pipeline import export_vision
from edgepipe.pipeline.export import export
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.validate_vision import MIN_TOP1_AGREEMENT
from edgepipe.pipeline.vision_recipe import VisionRecipe

pytest.importorskip("onnx")


@pytest.fixture
def other_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX files of a model whose scores are those of the TFLite files' turned around."""
    true_write = export_vision.WRITERS["onnx"]

    def write(graph: Graph, model: Any, folder: Path) -> dict[str, Path]:
        return true_write(_negated(graph), replace(model, tail=_negated(model.tail)), folder)

    monkeypatch.setattr(export_vision, "WRITERS", {**export_vision.WRITERS, "onnx": write})


def _negated(graph: Graph) -> Graph:
    (layer,) = (node for node in graph.nodes if isinstance(node.operator, FullyConnected))
    weights = graph.tensors[layer.inputs[1]]
    assert weights.data is not None
    tensors = list(graph.tensors)
    tensors[layer.inputs[1]] = replace(weights, data=-weights.data)
    return replace(graph, tensors=tuple(tensors))


@pytest.mark.usefixtures("other_scores")
def test_other_classes_than_a_trained_model_s_are_an_error(tiny_vision: Path, tmp_path: Path) -> None:
    message = r"vision, onnx: the class is that of the reference on \d+% of 8 images, expected 75%: leave out --formats"
    with pytest.raises(ValidationFailed, match=message):
        export(Recipe(vision=VisionRecipe(str(tiny_vision), sram="15K")), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.usefixtures("other_scores")
def test_other_classes_than_an_untrained_model_s_are_a_figure(
    tiny_vision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untrained(*arguments: Any, **options: Any) -> VisionSource:
        return replace(open_vision(*arguments, **options), is_trained=False)

    monkeypatch.setattr(export_vision, "open_vision", untrained)
    bundle = export(Recipe(vision=VisionRecipe(str(tiny_vision), sram="15K")), tmp_path / "bundle")
    assert bundle.manifest["validation"]["vision"]["onnx"]["top1_agreement"] < MIN_TOP1_AGREEMENT
