"""Regions are compared with a tap-by-tap account of which pixel depends on which, and with a published window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Node, Quantization, Tensor
from edgepipe.exporters.vision.operators import (
    NO_PADS,
    Add,
    AveragePool2D,
    Concatenation,
    Conv2D,
    DepthwiseConv2D,
    MaxPool2D,
    Mean,
    Operator,
    Pad,
    Pads,
    Relu,
    Reshape,
    Window,
    same_pads,
)
from edgepipe.exporters.vision.patches import Region, Span, tile_bounds
from edgepipe.exporters.vision.receptive_field import COLUMNS, ROWS, regions, split_points

QUANTIZATION = Quantization((0.5,), (0,))


class Network:
    """A graph of layers whose constants are all zero: only shapes matter here."""

    def __init__(self, rows: int, columns: int, channels: int) -> None:
        self.builder = GraphBuilder()
        self.image = self.builder.tensor(Tensor("image", (1, rows, columns, channels), "int8", QUANTIZATION))

    def constant(self, *shape: int) -> int:
        return self.builder.tensor(Tensor("constant", shape, "int8", QUANTIZATION, np.zeros(shape, np.int8)))

    def node(self, operator: Operator, *inputs: int) -> int:
        return self.builder.node(operator, inputs, f"node_{len(self.builder.nodes)}", "int8", QUANTIZATION)

    def conv(
        self, x: int, width: int, kernel: int = 1, stride: int = 1, pads: Pads = NO_PADS, dilation: int = 1
    ) -> int:
        weights = self.constant(width, kernel, kernel, self.builder.tensors[x].shape[3])
        operator = Conv2D((kernel, kernel), (stride, stride), pads, dilation=(dilation, dilation))
        return self.node(operator, x, weights)

    def same(self, x: int, kernel: int, stride: int) -> Pads:
        _, rows, columns, _ = self.builder.tensors[x].shape
        (top, bottom), (left, right) = same_pads(rows, kernel, stride), same_pads(columns, kernel, stride)
        return Pads(top, left, bottom, right)

    def inverted_residual(self, x: int, width: int, stride: int, expansion: int = 6) -> int:
        """MobileNetV2 (arXiv 1801.04381), figure 4d."""
        channels = self.builder.tensors[x].shape[3]
        y = self.conv(x, channels * expansion) if expansion > 1 else x
        depthwise = DepthwiseConv2D((3, 3), (stride, stride), self.same(y, 3, stride))
        y = self.node(depthwise, y, self.constant(1, 3, 3, channels * expansion))
        y = self.conv(y, width)
        return self.node(Add(), x, y) if stride == 1 and channels == width else y

    def build(self, *outputs: int) -> Graph:
        graph = self.builder.build((self.image,), outputs)
        graph.check()
        return graph


def reads(graph: Graph, node: Node, index: int, axis: int, position: int) -> set[int]:
    """Rows (columns) of input ``index`` behind one row (column) of a node's output, tap by tap."""
    size = graph.tensors[index].shape[axis]
    operator = node.operator
    if isinstance(operator, Window):
        first = position * operator.stride[axis - 1] - (operator.pads.top, operator.pads.left)[axis - 1]
        taps = {first + tap * operator.dilation[axis - 1] for tap in range(operator.kernel[axis - 1])}
    elif isinstance(operator, Pad):
        taps = {position - operator.before_after[axis][0]}
    else:
        taps = {position if size > 1 else 0}
    return {tap for tap in taps if 0 <= tap < size}


def dependencies(graph: Graph, split: int, axis: int, positions: range) -> dict[int, set[int]]:
    """Rows (columns) of every tensor of the stage behind those ``positions`` of its output."""
    needed = {graph.nodes[split - 1].output: set(positions)}
    for node in reversed(graph.nodes[:split]):
        for index in graph.activations(node):
            behind = (reads(graph, node, index, axis, position) for position in needed.get(node.output, ()))
            needed.setdefault(index, set()).update(*behind)
    return {index: found for index, found in needed.items() if found}


def hull(positions: set[int]) -> Span:
    return Span(min(positions), max(positions) + 1)


@pytest.mark.parametrize("seed", range(40))
def test_regions_are_the_hull_of_what_each_tile_depends_on(random_graph: Callable[[int], Graph], seed: int) -> None:
    graph = random_graph(seed)
    for split in split_points(graph):
        _, height, width, _ = graph.tensors[graph.nodes[split - 1].output].shape
        for rows, columns in zip(tile_bounds(height, min(3, height)), tile_bounds(width, min(3, width)), strict=False):
            found = regions(graph, split, Region(rows, columns))
            expected_rows = dependencies(graph, split, ROWS, range(*rows))
            expected_columns = dependencies(graph, split, COLUMNS, range(*columns))
            assert {index: (region.rows, region.columns) for index, region in found.items()} == {
                index: (hull(expected_rows[index]), hull(expected_columns[index])) for index in expected_rows
            }


def test_window_of_mobilenet_v2_is_that_of_the_paper() -> None:
    """MCUNetV2 (arXiv 2110.15352), table 1: 75x75 windows for 4x4 patches of MobileNetV2 at 224x224."""
    network = Network(224, 224, 3)
    x = network.conv(network.image, 32, 3, 2, network.same(network.image, 3, 2))
    for width, stride, expansion in ((16, 1, 1), (24, 2, 6), (24, 1, 6), (32, 2, 6)):
        x = network.inverted_residual(x, width, stride, expansion)
    split = len(network.builder.nodes)
    graph = network.build(network.conv(x, 32))
    assert graph.tensors[x].shape == (1, 28, 28, 32)
    windows = [
        regions(graph, split, Region(rows, columns))[network.image]
        for rows in tile_bounds(28, 4)
        for columns in tile_bounds(28, 4)
    ]
    assert max(window.rows.size for window in windows) == max(window.columns.size for window in windows) == 75
    assert windows[0].rows.begin == 0
    assert windows[-1].rows.end == windows[-1].columns.end == 224


def test_dilation_reaches_further_and_padding_is_not_read() -> None:
    network = Network(20, 20, 1)
    x = network.conv(network.image, 1, kernel=3, pads=Pads(4, 4, 4, 4), dilation=4)
    graph = network.build(network.conv(x, 1))
    assert regions(graph, 1, Region(Span(6, 8), Span(0, 1)))[network.image] == Region(Span(2, 12), Span(0, 5))


def test_a_strided_convolution_of_one_tap_skips_the_last_rows() -> None:
    network = Network(10, 9, 1)
    x = network.conv(network.image, 1, kernel=1, stride=2)
    graph = network.build(network.conv(x, 1))
    assert regions(graph, 1, Region(Span(3, 5), Span(3, 5)))[network.image] == Region(Span(6, 9), Span(6, 9))


def test_a_tile_of_padding_alone_is_widened_to_a_real_row() -> None:
    network = Network(4, 4, 1)
    padded = network.node(Pad(((0, 0), (3, 2), (0, 0), (0, 0))), network.image)
    x = network.conv(padded, 1)
    graph = network.build(network.conv(x, 1))
    top = regions(graph, 2, Region(Span(0, 2), Span(0, 4)))
    assert (top[padded].rows, top[network.image].rows) == (Span(0, 4), Span(0, 1))
    bottom = regions(graph, 2, Region(Span(8, 9), Span(0, 4)))
    assert (bottom[padded].rows, bottom[network.image].rows) == (Span(6, 9), Span(3, 4))


def test_one_row_broadcast_to_all_is_read_without_more_of_them() -> None:
    network = Network(6, 8, 1)
    row = network.conv(network.image, 1, kernel=6)  # One row of 3 pixels.
    wide = network.conv(network.image, 1, kernel=6, pads=Pads(2, 0, 3, 0))
    x = network.node(Add(), wide, row)
    graph = network.build(network.conv(x, 1))
    found = regions(graph, 3, Region(Span(4, 6), Span(1, 2)))
    assert found[x] == Region(Span(4, 6), Span(1, 2))
    assert found[row] == Region(Span(0, 1), Span(1, 2))


@given(st.integers(1, 300), st.data())
def test_tiles_cover_an_axis_evenly(size: int, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, size))
    bounds = tile_bounds(size, parts)
    assert [position for span in bounds for position in range(*span)] == list(range(size))
    assert {span.size for span in bounds} <= {size // parts, size // parts + 1}


def test_no_split_inside_a_residual_and_none_after_what_sees_the_whole_image() -> None:
    network = Network(8, 8, 2)
    x = network.conv(network.image, 2)  # node 0
    y = network.conv(network.conv(x, 4), 2)  # nodes 1, 2: x is read again
    x = network.node(Add(), x, y)  # node 3
    x = network.conv(x, 4)  # node 4
    x = network.node(Mean((1, 2), keep_dims=True), x)  # node 5
    x = network.conv(x, 2)
    assert split_points(network.build(network.conv(x, 2))) == (1, 4, 5)


def test_no_split_while_the_image_is_still_read() -> None:
    network = Network(8, 8, 2)
    y = network.conv(network.conv(network.image, 4), 2)
    x = network.node(Add(), network.image, y)
    assert split_points(network.build(network.conv(x, 1))) == (3,)


def test_no_split_at_an_output_of_the_model() -> None:
    network = Network(8, 8, 2)
    x = network.conv(network.image, 2)
    y = network.conv(x, 2)
    assert split_points(network.build(y, x)) == ()


def test_no_split_at_a_tensor_that_nobody_reads() -> None:
    network = Network(8, 8, 2)
    x = network.conv(network.image, 2)  # node 0
    y = network.conv(x, 2)  # node 1
    network.conv(x, 2)  # node 2: dead
    graph = network.build(network.conv(network.conv(y, 2), 2))
    assert split_points(graph) == (1, 4)
    assert graph.nodes[2].output not in regions(graph, 4, Region(Span(0, 4), Span(0, 4)))


def test_no_split_after_an_explicit_pad() -> None:
    network = Network(8, 8, 2)
    x = network.node(Pad(((0, 0), (0, 1), (0, 1), (0, 0))), network.image)
    x = network.conv(x, 2, kernel=3, stride=2)
    assert split_points(network.build(network.conv(x, 2))) == (2,)


@pytest.mark.parametrize(
    ("operator", "constants"),
    [
        (Reshape((1, 4, 16, 2)), ()),
        (Mean((1, 2), keep_dims=True), ()),
        (Concatenation(1), ((1, 3, 8, 2),)),
        (Concatenation(3), ((1, 8, 8, 3),)),
        (Add(), ((1, 8, 8, 1),)),
        (Add(), ((8, 1),)),
        (Pad(((1, 0), (0, 0), (0, 0), (0, 0))), ()),
        (MaxPool2D((2, 2), (11, 11), Pads(3, 0, 0, 0)), ()),
    ],
)
def test_what_is_not_local_ends_the_stage(operator: Operator, constants: tuple[tuple[int, ...], ...]) -> None:
    network = Network(8, 8, 2)
    x = network.node(Relu(), network.image)
    x = network.node(operator, x, *(network.constant(*shape) for shape in constants))
    x = network.node(Relu(), x)
    assert split_points(network.build(network.node(Relu(), x))) == (1,)


@pytest.mark.parametrize(
    ("operator", "constants"),
    [
        (Add(), ((2,),)),
        (Add(), ((1, 1, 1, 2),)),
        (Pad(((0, 0), (1, 1), (2, 0), (0, 1))), ()),
        (AveragePool2D((3, 3), (1, 1), Pads(1, 1, 1, 1)), ()),
    ],
)
def test_what_is_local_does_not(operator: Operator, constants: tuple[tuple[int, ...], ...]) -> None:
    network = Network(8, 8, 2)
    x = network.node(operator, network.image, *(network.constant(*shape) for shape in constants))
    x = network.node(Relu(), x)
    assert 2 in split_points(network.build(network.node(Relu(), x)))


def test_only_a_model_of_one_image_can_be_split() -> None:
    network = Network(8, 8, 2)
    graph = network.build(network.conv(network.conv(network.image, 2), 2))
    assert split_points(graph) == (1,)
    two_inputs = Graph(
        (*graph.tensors, Tensor("other", (1, 8, 8, 2), "int8", QUANTIZATION)),
        graph.nodes,
        (*graph.inputs, len(graph.tensors)),
        graph.outputs,
    )
    assert split_points(two_inputs) == ()
    flat = replace(graph, tensors=(replace(graph.tensors[0], shape=(8, 16)), *graph.tensors[1:]))
    assert split_points(flat) == ()
