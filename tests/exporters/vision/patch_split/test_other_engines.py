"""Tiles and the whole model are the same in ONNX Runtime and in ExecuTorch, too, whatever these make of the model.

That is more than edgepipe promises of them (a step at the split), and what their integer kernels give: a difference
says that tiles are computed by other kernels than the whole image.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.patch_split import split
from edgepipe.exporters.vision.patches import PatchPlan, SplitModel
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.source import VisionSource
from edgepipe.runtimes.vision.engine import Engine

pytestmark = pytest.mark.slow

FILES = ("vww_96_int8.tflite", "resnet8_cifar10_int8.tflite")
BUILT_IN = ("mobilenet_v1:0.25:67", "mobilenet_v2:0.35:66", "mcunet:0.5:65", "resnet8:37", "digits")


@pytest.fixture(params=[*FILES, *BUILT_IN])
def model(request: pytest.FixtureRequest) -> tuple[Graph, list[np.ndarray]]:
    """An int8 model, and codes of images: what a built-in one was calibrated with, noise and extremes."""
    if request.param in FILES:
        graph, images = read_tflite(request.getfixturevalue("data_folder") / request.param), []
    else:
        source: VisionSource = request.getfixturevalue("built_in")(request.param)
        graph, images = source.graph, [_codes(source, sample) for sample in source.samples[:2]]
    return graph, [*images, *request.getfixturevalue("random_images")(graph, count=1)]


def _codes(source: VisionSource, sample: np.ndarray) -> np.ndarray:
    tensor = source.graph.tensors[source.graph.inputs[0]]
    assert tensor.quantization
    limits = np.iinfo(tensor.dtype)
    codes = np.rint(sample / tensor.quantization.scale) + tensor.quantization.zero_point
    return np.clip(codes, limits.min, limits.max).astype(tensor.dtype)


def stream(model: SplitModel, engine: Engine, image: np.ndarray) -> np.ndarray:
    """The stage's output, from one window after another."""
    stage = model.tail.tensors[model.tail.inputs[0]]
    stitched = np.zeros(stage.shape, stage.dtype)
    for tile in model.tiles:
        window = image[:, slice(*tile.window.rows), slice(*tile.window.columns)]
        stitched[:, slice(*tile.output.rows), slice(*tile.output.columns)] = engine.run(tile.graph, window)
    return stitched


def test_onnxruntime_computes_tiles_as_it_does_the_whole(
    model: tuple[Graph, list[np.ndarray]],
    plans_in_rotation: Callable[[Graph], list[PatchPlan]],
    tmp_path: Path,
) -> None:
    pytest.importorskip("onnx")
    from edgepipe.exporters.vision.write_onnx import write_onnx
    from edgepipe.runtimes.vision.engines.onnx import OnnxEngine

    graph, images = model
    for plan in plans_in_rotation(graph)[::2]:
        parts = split(graph, plan)
        folder = tmp_path / str(plan.split)
        for name, part in {"whole": graph, "stage": parts.stage, "tail": parts.tail, **parts.tile_graphs}.items():
            write_onnx(part, folder / "onnx" / f"{name}.onnx")
        engine = OnnxEngine(folder, threads=1)
        for image in images:
            stage = stream(parts, engine, image)
            np.testing.assert_array_equal(stage, engine.run("stage", image), err_msg=str(plan))
            np.testing.assert_array_equal(engine.run("tail", stage), engine.run("whole", image), err_msg=str(plan))


def test_executorch_computes_tiles_as_it_does_the_whole(model: tuple[Graph, list[np.ndarray]], tmp_path: Path) -> None:
    """At one early split: lowering takes a second for each layer of each part."""
    pytest.importorskip("executorch")
    from edgepipe.exporters.vision.write_executorch import write_executorch
    from edgepipe.runtimes.vision.engines.executorch import ExecuTorchEngine

    graph, images = model
    early = max(point for point in split_points(graph) if point <= 10)
    parts = split(graph, PatchPlan(early, 2, 1))
    (tmp_path / "executorch").mkdir()
    write_executorch({"stage": parts.stage, **parts.tile_graphs}, tmp_path / "executorch/model.pte")
    engine = ExecuTorchEngine(tmp_path)
    for image in images:
        np.testing.assert_array_equal(stream(parts, engine, image), engine.run("stage", image))
