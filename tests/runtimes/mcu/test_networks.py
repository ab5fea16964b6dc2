"""Whole networks in the planner's arena: kernels in place, residuals fused, scratch where the plan says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.exporters.vision.arena import plan_arena
from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Node, Quantization, Tensor
from edgepipe.exporters.vision.operators import Add, Conv2D, Pads
from edgepipe.exporters.vision.patch_split import split
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.receptive_field import split_points

DATA = Path(__file__).parents[3] / "../shared/data/vision"


def images(graph: Graph, count: int) -> list[np.ndarray]:
    generator, shape = np.random.default_rng(0), graph.tensors[graph.inputs[0]].shape
    noise = [generator.integers(-128, 128, shape, np.int8) for _ in range(count)]
    return [*noise, generator.choice(np.array([-128, 127], np.int8), shape)]


@pytest.mark.parametrize("seed", range(60))
def test_random_network(seed: int, random_graph: Any, run_graph: Any, tflm: Any) -> None:
    graph = random_graph(seed)
    for image in images(graph, 1):
        np.testing.assert_array_equal(run_graph(graph, image), tflm(graph, image))


def test_random_networks_use_what_the_planner_offers(random_graph: Any) -> None:
    """Else the test above shows less than it says."""
    plans = [plan_arena(random_graph(seed)) for seed in range(60)]
    assert sum(len(plan.fused) for plan in plans) > 5
    assert sum(len(plan.scratch) for plan in plans) > 20
    assert sum(len(buffer.uses) > 1 for plan in plans for buffer in plan.buffers) > 20


@pytest.mark.parametrize("seed", range(15))
def test_tiles_of_a_split_network(seed: int, random_graph: Any, run_graph: Any, tflm: Any) -> None:
    """Padding on some sides only, which TFLite needs PAD nodes for, and crops."""
    graph = random_graph(seed)
    stages = {point: graph.tensors[graph.nodes[point - 1].output].shape for point in split_points(graph)}
    model = split(graph, PatchPlan(max(point for point, shape in stages.items() if min(shape[1:3]) > 2), 3, 2))
    for tile in (*model.tile_graphs.values(), model.tail):
        for image in images(tile, 1):
            np.testing.assert_array_equal(run_graph(tile, image), tflm(tile, image))


@pytest.mark.parametrize("name", ["vww_96_int8", "resnet8_cifar10_int8"])
def test_real_network(name: str, run_graph: Any, tflm: Any) -> None:
    path = DATA / f"{name}.tflite"
    if not path.exists():
        pytest.skip(f"no real models: {path} is absent")
    graph = read_tflite(path)
    for image in images(graph, 2):
        np.testing.assert_array_equal(run_graph(graph, image), tflm(graph, image))


def quantization(scale: float, zero_point: int) -> Quantization:
    return Quantization((float(np.float32(scale)),), (zero_point,))


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
@pytest.mark.parametrize("other", ["image", "channels", "columns", "one"])
@pytest.mark.parametrize("first", [True, False])
def test_residual_of_any_shape(kernel: tuple[int, int], other: str, first: bool, run_graph: Any, tflm: Any) -> None:
    """A convolution adds what it is told to, whichever operand it is itself and however the other is broadcast."""
    generator = np.random.default_rng(5)
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", (1, 5, 7, 6), "int8", quantization(0.05, 3)))
    filters = generator.integers(-127, 128, (6, *kernel, 6), np.int8)
    scales = tuple(float(scale) for scale in np.float32(generator.uniform(0.001, 0.004, 6)))
    weights = builder.tensor(Tensor("weights", filters.shape, "int8", Quantization(scales, (0,) * 6, 0), filters))
    reach = kernel[0] // 2
    convolution = builder.node(
        Conv2D(kernel, pads=Pads(*[reach] * 4)), (image, weights), "conv", "int8", quantization(0.04, -7)
    )
    if other == "image":
        added = image
    else:
        shape = {"channels": (6,), "columns": (1, 1, 7, 1), "one": (1,)}[other]
        data = generator.integers(-128, 128, shape, np.int8)
        added = builder.tensor(Tensor("added", shape, "int8", quantization(0.03, 11), data))
    operands = (convolution, added) if first else (added, convolution)
    output = builder.node(Add(), operands, "sum", "int8", quantization(0.06, -20))
    graph = builder.build((image,), (output,))
    assert plan_arena(graph).fused == {1: 0}
    assert graph.nodes[1] == Node(Add(), operands, output)
    for codes in images(graph, 2):
        np.testing.assert_array_equal(run_graph(graph, codes), tflm(graph, codes))
