"""Layers that are easy to get wrong at the border of a tile, on every split and several grids."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.operators import (
    NO_PADS,
    Activation,
    Add,
    AveragePool2D,
    Concatenation,
    Conv2D,
    DepthwiseConv2D,
    Logistic,
    MaxPool2D,
    Mul,
    Operator,
    Pad,
    Pads,
    Quantize,
)
from edgepipe.exporters.vision.patches import PatchPlan


class Network:
    """A graph of int8 layers with random weights, whose values spread over the codes."""

    def __init__(self, rows: int, columns: int, channels: int = 2, dtype: str = "int8", zero_point: int = -3) -> None:
        self.builder = GraphBuilder()
        self.generator = np.random.default_rng(rows * columns)
        self.image = self.builder.tensor(
            Tensor("image", (1, rows, columns, channels), dtype, Quantization((1 / 64,), (zero_point,)))
        )

    def constant(self, *shape: int) -> int:
        codes = self.generator.integers(-127, 128, shape, np.int8)
        return self.builder.tensor(Tensor("constant", shape, "int8", Quantization((1 / 128,), (0,)), codes))

    def bias(self, x: int, channels: int) -> int:
        found = self.builder.tensors[x].quantization
        assert found is not None
        codes = self.generator.integers(-2000, 2000, channels, np.int32)
        return self.builder.tensor(
            Tensor("bias", (channels,), "int32", Quantization((found.scale / 128,), (0,)), codes)
        )

    def node(self, operator: Operator, *inputs: int, quantization: Quantization | None = None) -> int:
        quantization = quantization or Quantization((1 / 48,), (5,))
        return self.builder.node(operator, inputs, f"node_{len(self.builder.nodes)}", "int8", quantization)

    def like(self, operator: Operator, x: int) -> int:
        """A node whose output has its input's quantisation."""
        return self.node(operator, x, quantization=self.builder.tensors[x].quantization)

    def conv(
        self, x: int, kernel: tuple[int, int], pads: Pads = NO_PADS, stride: int = 1, dilation: int = 1, width: int = 2
    ) -> int:
        operator = Conv2D(kernel, (stride, stride), pads, dilation=(dilation, dilation))
        channels = self.builder.tensors[x].shape[3]
        return self.node(operator, x, self.constant(width, *kernel, channels), self.bias(x, width))

    def depthwise(self, x: int, kernel: tuple[int, int], pads: Pads, activation: Activation) -> int:
        channels = self.builder.tensors[x].shape[3]
        operator = DepthwiseConv2D(kernel, pads=pads, activation=activation)
        return self.node(operator, x, self.constant(1, *kernel, channels), self.bias(x, channels))

    def build(self, x: int) -> Graph:
        graph = self.builder.build((self.image,), (self.conv(x, (1, 1)),))
        graph.check()
        return graph


def pads_larger_than_a_tile() -> Graph:
    network = Network(5, 6)
    x = network.conv(network.image, (7, 7), Pads(3, 3, 3, 3))
    return network.build(network.conv(x, (7, 5), Pads(6, 0, 2, 4)))


def explicit_pads() -> Graph:
    """As Keras writes MobileNet: a PAD of its own before a strided convolution."""
    network = Network(9, 8)
    x = network.like(Pad(((0, 0), (0, 1), (0, 1), (0, 0))), network.image)
    x = network.conv(x, (3, 3), stride=2)
    x = network.like(Pad(((0, 0), (2, 1), (1, 3), (0, 1))), x)
    return network.build(network.conv(x, (3, 2)))


def rows_of_padding_alone() -> Graph:
    network = Network(4, 5)
    x = network.like(Pad(((0, 0), (3, 2), (0, 2), (0, 0))), network.image)
    x = network.conv(x, (1, 1), Pads(1, 0, 2, 1))
    return network.build(network.like(MaxPool2D((2, 2), (1, 1), Pads(2, 0, 0, 1)), x))


def rows_that_nobody_reads() -> Graph:
    network = Network(10, 12)
    x = network.conv(network.image, (1, 1), stride=3)
    return network.build(network.conv(x, (2, 2), stride=2))


def dilated_residual() -> Graph:
    network = Network(9, 10)
    x = network.conv(network.image, (3, 3), Pads(1, 1, 1, 1))
    y = network.conv(x, (3, 3), Pads(3, 3, 3, 3), dilation=3)
    y = network.depthwise(y, (3, 5), Pads(0, 4, 2, 0), Activation.RELU6)
    return network.build(network.node(Add(Activation.RELU), x, y))


def several_consumers() -> Graph:
    """One tensor read on four different regions, once by a strided shortcut."""
    network = Network(11, 9)
    x = network.conv(network.image, (3, 3), Pads(1, 1, 1, 1))
    near, far = network.conv(x, (1, 1)), network.conv(x, (5, 5), Pads(2, 2, 2, 2))
    x = network.node(Add(), network.node(Add(), near, far), network.node(Mul(), x, x))
    wide = network.conv(network.conv(x, (3, 3), Pads(0, 0, 2, 2)), (3, 3), Pads(1, 1, 1, 1), stride=2)
    return network.build(network.node(Add(), wide, network.conv(x, (1, 1), stride=2)))


def consumers_of_less_and_less() -> Graph:
    """A tensor is cropped twice: after its first reader, and again after its second."""
    network = Network(10, 9)
    x = network.conv(network.image, (1, 1))
    most, less = network.conv(x, (5, 5), Pads(2, 2, 2, 2)), network.conv(x, (3, 3), Pads(1, 1, 1, 1))
    return network.build(network.node(Add(), network.node(Mul(), most, less), x))


def channels_joined() -> Graph:
    network = Network(8, 7)
    x = network.conv(network.image, (3, 3), Pads(1, 1, 1, 1))
    y = network.conv(x, (3, 3), Pads(2, 0, 0, 2))
    return network.build(network.node(Concatenation(3), y, x, network.conv(y, (1, 5), Pads(0, 2, 0, 2))))


def broadcast() -> Graph:
    network = Network(6, 7, 3)
    x = network.node(Mul(), network.image, network.constant(1, 1, 1, 3))
    x = network.node(Add(), network.constant(3), x)
    row = network.conv(x, (6, 1), width=3)  # One row, added to every row.
    return network.build(network.node(Add(), x, row))


def average_pools() -> Graph:
    """Only taps inside the image count, also for a tile at one border."""
    network = Network(8, 9)
    x = network.like(AveragePool2D((3, 3), (1, 1), Pads(1, 1, 1, 1)), network.image)
    x = network.conv(x, (1, 1))
    return network.build(network.like(AveragePool2D((3, 2), (2, 2), Pads(1, 0, 1, 1)), x))


def pixels_of_bytes() -> Graph:
    network = Network(7, 7, 3, "uint8", 128)
    x = network.node(Quantize(), network.image, quantization=Quantization((1 / 64,), (0,)))
    x = network.conv(x, (3, 3), Pads(1, 1, 1, 1))
    return network.build(network.node(Logistic(), x, quantization=Quantization((1 / 256,), (-128,))))


@pytest.mark.parametrize(
    "build",
    [
        pads_larger_than_a_tile,
        explicit_pads,
        rows_of_padding_alone,
        rows_that_nobody_reads,
        dilated_residual,
        several_consumers,
        consumers_of_less_and_less,
        channels_joined,
        broadcast,
        average_pools,
        pixels_of_bytes,
    ],
    ids=lambda build: build.__name__,
)
def test_awkward_layers_split_exactly(
    assert_exact: Callable[..., None],
    extreme_images: Callable[..., list[np.ndarray]],
    plans_on_grids: Callable[..., list[PatchPlan]],
    build: Callable[[], Graph],
) -> None:
    graph = build()
    plans = plans_on_grids(graph, ((1, 1), (2, 2), (3, 2), (1, 3), (2, 100), (100, 1), (100, 100)))
    assert plans[-1].split == len(graph.nodes) - 1
    assert_exact(graph, plans, extreme_images(graph))
