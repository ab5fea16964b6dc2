"""Folding PAD nodes: the same bytes in TFLite Micro, and only where that is so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgepipe.exporters.vision.fold_pads import fold_pads
from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.operators import NO_PADS, Add, Conv2D, DepthwiseConv2D, MaxPool2D, Pad, Pads
from edgepipe.exporters.vision.write_tflite import write_tflite

Load = Callable[[Path], Callable[[np.ndarray], np.ndarray]]

IMAGE = Quantization((0.02,), (-7,))
SIDES = ((0, 0), (0, 1), (0, 1), (0, 0))


def weights(builder: GraphBuilder, shape: tuple[int, ...], axis: int) -> int:
    channels = shape[axis]
    quantization = Quantization((0.01,) * channels, (0,) * channels, axis)
    data = np.random.default_rng(len(builder.tensors)).integers(-127, 128, shape, np.int8)
    return builder.tensor(Tensor("weights", shape, "int8", quantization, data))


def padded_convs(pad: Pad, padded: Quantization = IMAGE, inner: Pads = NO_PADS) -> Graph:
    """An image, PAD, then a convolution and a depthwise one that read it, added."""
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", (1, 12, 12, 4), "int8", IMAGE))
    wide = builder.node(pad, (image,), "padded", "int8", padded)
    out = Quantization((0.08,), (3,))
    conv = builder.node(Conv2D((3, 3), (2, 2), inner), (wide, weights(builder, (4, 3, 3, 4), 0)), "conv", "int8", out)
    depthwise = DepthwiseConv2D((3, 3), (2, 2), inner)
    deep = builder.node(depthwise, (wide, weights(builder, (1, 3, 3, 4), 3)), "depthwise", "int8", out)
    both = builder.node(Add(), (conv, deep), "sum", "int8", Quantization((0.1,), (0,)))
    return builder.build((image,), (both,))


def assert_same_bytes(graph: Graph, folded: Graph, tflm: Load, folder: Path) -> None:
    for name, model in (("padded", graph), ("folded", folded)):
        write_tflite({"main": model}, folder / f"{name}.tflite")
    padded, same = tflm(folder / "padded.tflite"), tflm(folder / "folded.tflite")
    for image in np.random.default_rng(0).integers(-128, 128, (20, 1, 12, 12, 4), np.int8):
        assert np.array_equal(padded(image), same(image))


def test_the_bytes_stay_the_same(tflm: Load, tmp_path: Path):
    graph = padded_convs(Pad(SIDES))
    folded = fold_pads(graph)
    folded.check()
    assert len(folded.tensors) == len(graph.tensors) - 1
    assert [node.operator.name for node in folded.nodes] == ["CONV_2D", "DEPTHWISE_CONV_2D", "ADD"]
    assert_same_bytes(graph, folded, tflm, tmp_path)


def test_pads_add_up(tflm: Load, tmp_path: Path):
    graph = padded_convs(Pad(SIDES), inner=Pads(1, 0, 1, 2))
    folded = fold_pads(graph)
    folded.check()
    assert folded.nodes[0].operator.pads == Pads(1, 0, 2, 3)
    assert_same_bytes(graph, folded, tflm, tmp_path)


def padded_pool(pad: Pad, kernel: int = 3) -> Graph:
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", (1, 12, 12, 4), "int8", IMAGE))
    wide = builder.node(pad, (image,), "padded", "int8", IMAGE)
    return builder.build((image,), (builder.node(MaxPool2D((kernel, kernel), (2, 2)), (wide,), "pool", "int8", IMAGE),))


def test_a_maximum_pool_pads_with_the_lowest_code(tflm: Load, tmp_path: Path):
    graph = padded_pool(Pad(((0, 0), (1, 1), (1, 0), (0, 0)), value=-128))
    folded = fold_pads(graph)
    folded.check()
    assert [node.operator for node in folded.nodes] == [MaxPool2D((3, 3), (2, 2), Pads(1, 1, 1, 0))]
    assert_same_bytes(graph, folded, tflm, tmp_path)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(padded_pool(Pad(SIDES)), id="fills with zero, which may be the maximum"),
        pytest.param(padded_pool(Pad(((0, 0), (2, 0), (0, 0), (0, 0)), value=-128), 2), id="a window without an image"),
    ],
)
def test_what_a_maximum_pool_cannot_say_stays(graph: Graph):
    assert fold_pads(graph).nodes == graph.nodes


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(padded_convs(Pad(SIDES, value=5)), id="fills with something else than zero"),
        pytest.param(padded_convs(Pad(SIDES), Quantization((0.02,), (0,))), id="changes the zero point"),
        pytest.param(padded_convs(Pad(((0, 0), (0, 1), (0, 1), (0, 0)), value=-128)), id="fills with the lowest code"),
    ],
)
def test_what_a_convolution_cannot_say_stays(graph: Graph):
    assert fold_pads(graph).nodes == graph.nodes


def test_a_padded_image_that_others_read_stays():
    graph = padded_convs(Pad(SIDES))
    shown = replace(graph, outputs=(*graph.outputs, graph.nodes[0].output))
    assert fold_pads(shown).nodes == graph.nodes
    builder = GraphBuilder(list(graph.tensors), list(graph.nodes))
    wide = graph.nodes[0].output
    builder.node(Add(), (wide, wide), "doubled", "int8", IMAGE)
    also_added = builder.build(graph.inputs, graph.outputs)
    assert fold_pads(also_added).nodes == also_added.nodes


def test_padded_channels_stay():
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", (1, 4, 4, 2), "int8", IMAGE))
    wide = builder.node(Pad(((0, 0), (1, 1), (1, 1), (0, 2))), (image,), "padded", "int8", IMAGE)
    conv = builder.node(Conv2D((3, 3)), (wide, weights(builder, (2, 3, 3, 4), 0)), "conv", "int8", IMAGE)
    graph = builder.build((image,), (conv,))
    assert fold_pads(graph).nodes == graph.nodes
