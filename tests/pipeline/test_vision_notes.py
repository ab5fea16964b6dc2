"""What planning and exporting say of a model: the same refusals, and why it has no patches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.write_tflite import write_tflite
from edgepipe.pipeline.export import export
from edgepipe.pipeline.plan import Budget, plan
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.vision_recipe import VisionRecipe


def written(graph: Graph, path: Path) -> Path:
    write_tflite({"main": graph}, path)
    return path


def test_two_outputs_are_refused_by_plan_as_by_export(tiny_vision: Path, tmp_path: Path) -> None:
    graph = read_tflite(tiny_vision)
    both = (*graph.outputs, graph.nodes[0].output)
    path = str(written(replace(graph, outputs=both), tmp_path / "two.tflite"))
    messages = []
    for call in (
        lambda: plan(path, Budget.of(2**20, None, None)),
        lambda: export(Recipe(vision=VisionRecipe(path)), tmp_path / "bundle"),
    ):
        with pytest.raises(UnsupportedModel) as caught:
            call()
        messages.append(str(caught.value))
    assert messages[0] == messages[1] == f"{path} has 2 outputs: expected one"


def notes(path: Path, folder: Path, **options: Any) -> str:
    bundle = export(Recipe(vision=VisionRecipe(path, **options), validate=False), folder)  # type: ignore[arg-type]
    return " ".join(bundle.manifest["components"]["vision"]["export"]["notes"])


def test_a_model_that_fits_says_so(tiny_vision: Path, tmp_path: Path) -> None:
    found = notes(tiny_vision, tmp_path / "bundle", sram="1M", formats=("onnx",))
    assert "Runs as a whole: its activations, " in found
    assert "fit into the 1,024.0 KiB of SRAM" in found or "fit into the 1024.0 KiB of SRAM" in found


def test_a_model_that_cannot_be_split_says_so(tiny_vision: Path, tmp_path: Path) -> None:
    """Its last layers alone, behind the mean over the image."""
    graph = read_tflite(tiny_vision)
    first = next(index for index, node in enumerate(graph.nodes) if node.operator.name == "MEAN")
    tail = replace(graph, nodes=graph.nodes[first:], inputs=(graph.nodes[first].inputs[0],))
    found = notes(written(tail, tmp_path / "tail.tflite"), tmp_path / "bundle", formats=("onnx",))
    assert "Runs as a whole: it cannot be split" in found


def test_a_model_with_patches_needs_no_excuse(tiny_vision: Path, tmp_path: Path) -> None:
    assert "Runs as a whole" not in notes(tiny_vision, tmp_path / "bundle", sram="15K", formats=("onnx",))
