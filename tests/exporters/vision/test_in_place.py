"""What may be written in place: the rule against running a depthwise convolution over its own input."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Tensor
from edgepipe.exporters.vision.in_place import fused_residuals, line_buffer_bytes, may_overwrite
from edgepipe.exporters.vision.operators import Add, Conv2D, DepthwiseConv2D, Pads, ShapeError

SIDE = st.integers(1, 9)


def depthwise(height: int, width: int, channels: int, operator: DepthwiseConv2D) -> Graph:
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", (1, height, width, channels), "int8"))
    weights = np.ones((1, *operator.kernel, channels), np.int8)
    filters = builder.tensor(Tensor("filters", weights.shape, "int8", data=weights))
    return builder.build([image], [builder.node(operator, [image, filters], "output")])


def direct(image: np.ndarray, filters: np.ndarray, operator: DepthwiseConv2D, shape: tuple[int, ...]) -> np.ndarray:
    """Depthwise convolution, tap by tap."""
    pads, stride, dilation = operator.pads, operator.stride, operator.dilation
    padded = np.pad(image, ((pads.top, pads.bottom), (pads.left, pads.right), (0, 0)))
    output = np.zeros(shape, np.int64)
    for tap in np.ndindex(*operator.kernel):
        top, left = tap[0] * dilation[0], tap[1] * dilation[1]
        rows = padded[top : top + (shape[0] - 1) * stride[0] + 1 : stride[0]]
        output += rows[:, left : left + (shape[1] - 1) * stride[1] + 1 : stride[1]] * filters[tap]
    return output


def over_itself(
    image: np.ndarray, filters: np.ndarray, operator: DepthwiseConv2D, shape: tuple[int, ...]
) -> np.ndarray:
    """The same in the image's own memory: channel by channel, through a line buffer of one channel."""
    height, width, channels = image.shape
    pads, stride, dilation = operator.pads, operator.stride, operator.dilation
    reach = (operator.kernel[0] - 1) * dilation[0] + 1
    memory = image.flatten()
    for channel in range(channels):
        lines = np.zeros((reach, width + pads.left + pads.right), np.int64)
        copied = 0
        for row in range(shape[0]):
            top = row * stride[0] - pads.top
            for source in range(copied, min(top + reach, height)):
                begin = source * width * channels + channel
                lines[source % reach, pads.left : pads.left + width] = memory[
                    begin : begin + width * channels : channels
                ]
                copied = source + 1
            sums = np.zeros(shape[1], np.int64)
            for tap in np.ndindex(*operator.kernel):
                source = top + tap[0] * dilation[0]
                if 0 <= source < height:
                    left = tap[1] * dilation[1]
                    taps = lines[source % reach, left : left + (shape[1] - 1) * stride[1] + 1 : stride[1]]
                    sums += taps * filters[(*tap, channel)]
            begin = row * shape[1] * channels + channel
            memory[begin : begin + shape[1] * channels : channels] = sums
    return memory[: np.prod(shape)].reshape(shape)


@given(
    st.tuples(SIDE, SIDE, st.integers(1, 3)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(*[st.integers(0, 3)] * 4),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_what_the_rule_allows_gives_the_same_output(image_shape, kernel, stride, pads, dilation):
    operator = DepthwiseConv2D(kernel, stride, Pads(*pads), dilation=dilation)
    try:
        graph = depthwise(*image_shape, operator)
    except ShapeError:
        assume(False)
    (node,) = graph.nodes
    assume(may_overwrite(graph, node, graph.inputs[0]))
    generator = np.random.default_rng(0)
    image = generator.integers(-128, 128, image_shape)
    filters = generator.integers(-128, 128, (*kernel, image_shape[2]))
    shape = graph.tensors[node.output].shape[1:]
    np.testing.assert_array_equal(over_itself(image, filters, operator, shape), direct(image, filters, operator, shape))


def test_same_padding_is_allowed_at_any_stride_and_its_line_buffer_has_the_rows_of_the_kernel():
    for stride in ((1, 1), (2, 2)):
        graph = depthwise(8, 10, 4, DepthwiseConv2D((3, 3), stride, Pads(1, 1, 1, 1)))
        (node,) = graph.nodes
        assert may_overwrite(graph, node, graph.inputs[0])
        assert line_buffer_bytes(graph, node) == 3 * (10 + 2)


def test_an_output_larger_than_the_image_is_not_written_over_it():
    graph = depthwise(8, 8, 4, DepthwiseConv2D((3, 3), (1, 1), Pads(2, 2, 2, 2)))
    assert not may_overwrite(graph, graph.nodes[0], graph.inputs[0])


def test_a_convolution_is_fused_with_the_add_that_alone_reads_it():
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", (1, 4, 4, 2), "int8"))
    weights = builder.tensor(Tensor("weights", (2, 1, 1, 2), "int8", data=np.ones((2, 1, 1, 2), np.int8)))
    first = builder.node(Conv2D((1, 1)), [image, weights], "first")
    second = builder.node(Conv2D((1, 1)), [first, weights], "second")
    total = builder.node(Add(), [first, second], "sum")
    assert fused_residuals(builder.build([image], [total])) == {2: 1}
    assert fused_residuals(builder.build([image], [total, second])) == {}
