"""What an engine that strays, from the reference or from itself, means for a bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import ValidationFailed
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.operators import Conv2D, FullyConnected
from edgepipe.exporters.vision.patches import SplitModel
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

    def write(graph: Graph, model: SplitModel | None, folder: Path) -> dict[str, Path]:
        if model is None:  # the stage alone
            return true_write(graph, model, folder)
        return true_write(_negated(graph), replace(model, tail=_negated(model.tail)), folder)

    monkeypatch.setattr(export_vision, "WRITERS", {**export_vision.WRITERS, "onnx": write})


def _negated(graph: Graph) -> Graph:
    (layer,) = (node for node in graph.nodes if isinstance(node.operator, FullyConnected))
    weights = graph.tensors[layer.inputs[1]]
    assert weights.data is not None
    tensors = list(graph.tensors)
    tensors[layer.inputs[1]] = replace(weights, data=-weights.data)
    return replace(graph, tensors=tuple(tensors))


@pytest.fixture
def tiles_off_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """``tiles_off_by(steps)``: from now on, a convolution of every ONNX tile gives codes so many steps too high."""
    true_write = export_vision.WRITERS["onnx"]

    def shift(steps: int) -> None:
        def write(graph: Graph, model: SplitModel | None, folder: Path) -> dict[str, Path]:
            if model is not None:
                tiles = {name: _shifted(tile, steps) for name, tile in model.tile_graphs.items()}
                model = replace(model, tile_graphs=tiles)
            return true_write(graph, model, folder)

        monkeypatch.setattr(export_vision, "WRITERS", {**export_vision.WRITERS, "onnx": write})

    return shift


def _shifted(graph: Graph, steps: int) -> Graph:
    """The graph with so many steps added to the bias of its last convolution."""
    layer = [node for node in graph.nodes if isinstance(node.operator, Conv2D)][-1]
    image, weights, bias, output = (graph.tensors[index] for index in (*layer.inputs, layer.output))
    assert image.quantization
    assert weights.quantization
    assert output.quantization
    assert bias.data is not None
    multiplier = image.quantization.scale * weights.quantization.scale / output.quantization.scale
    tensors = list(graph.tensors)
    tensors[layer.inputs[2]] = replace(bias, data=bias.data + np.int32(steps / multiplier))
    return replace(graph, tensors=tuple(tensors))


def test_a_step_between_patches_and_the_whole_is_a_figure(
    tiles_off_by: Callable[[int], None], tiny_vision: Path, tmp_path: Path
) -> None:
    tiles_off_by(1)
    bundle = export(Recipe(vision=VisionRecipe(str(tiny_vision), sram="15K")), tmp_path / "bundle")
    assert bundle.manifest["validation"]["vision"]["onnx"]["max_split_stage_difference"] == 1
    assert "max split stage difference 1" in (tmp_path / "bundle/README.md").read_text()


def test_more_steps_between_patches_and_the_whole_are_an_error(
    tiles_off_by: Callable[[int], None], tiny_vision: Path, tmp_path: Path
) -> None:
    tiles_off_by(2)
    message = (
        "vision, onnx: patch by patch and at once the stage is 2 steps apart on 8 images, expected 1 at most: leave"
    )
    with pytest.raises(ValidationFailed, match=message):
        export(Recipe(vision=VisionRecipe(str(tiny_vision), sram="15K")), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


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
