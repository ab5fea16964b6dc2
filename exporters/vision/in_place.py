"""What an operator may write over: the rules that let a static arena hold one image where two seem to be needed.

A depthwise convolution goes channel by channel: rows of one channel are copied, with their padding, into a line buffer
of as many rows as the window reaches, and a row of output is written over rows that no later window reads (the
in-place depthwise of MCUNetV2, arXiv 2110.15352, with rows of a channel where TinyEngine copies all of it). Pools go
the same way. The sum of a residual block is written over the residual while the convolution before it runs: each
code is added to what lies there as soon as it is computed, so that the convolution's output is never stored.
"""

from __future__ import annotations

from edgepipe.exporters.vision.graph import ELEMENT_BYTES, Graph, Node
from edgepipe.exporters.vision.operators import (
    Add,
    AveragePool2D,
    Conv2D,
    DepthwiseConv2D,
    Dequantize,
    HardSwish,
    Logistic,
    MaxPool2D,
    Mul,
    Quantize,
    Relu,
    Relu6,
    Reshape,
    Softmax,
    StridedSlice,
    Window,
)


def may_overwrite(graph: Graph, node: Node, index: int) -> bool:
    """Whether ``node`` can write its output where its input ``index``, which nobody reads later, begins."""
    return could_overwrite(graph, node, index) and (
        not isinstance(node.operator, Window) or _trails_its_reads(graph, node, node.operator)
    )


def could_overwrite(graph: Graph, node: Node, index: int) -> bool:
    """The same, whatever the sizes: whether a tile of the node's output may be written over its input."""
    source, output = graph.tensors[index], graph.tensors[node.output]
    if ELEMENT_BYTES[source.dtype] != ELEMENT_BYTES[output.dtype]:
        return False
    match node.operator:
        case DepthwiseConv2D() | AveragePool2D() | MaxPool2D():
            return source.shape[3] == output.shape[3]
        case Add() | Mul():
            return source.shape == output.shape
        case Relu() | Relu6() | Logistic() | HardSwish() | Softmax() | Quantize() | Dequantize():
            return True
        case Reshape() | StridedSlice():
            return True
    return False


def line_buffer_bytes(graph: Graph, node: Node) -> int:
    """Bytes of a windowed operator's line buffer, needed when it works in place: padded rows of one channel."""
    match node.operator:
        case Window(pads=pads) as window:
            columns = graph.tensors[node.inputs[0]].shape[2] + pads.left + pads.right
            return _reach(window) * columns * ELEMENT_BYTES[graph.tensors[node.output].dtype]
    return 0


def fused_residuals(graph: Graph) -> dict[int, int]:
    """Positions of the Adds that run together with a convolution, and of that convolution.

    The convolution's output goes nowhere else; where both operands are such, the later one is taken.
    """
    producers = {node.output: position for position, node in enumerate(graph.nodes)}
    readers: dict[int, int] = {}
    for node in graph.nodes:
        for index in node.inputs:
            readers[index] = readers.get(index, 0) + 1
    fused = {}
    for position, node in enumerate(graph.nodes):
        if not isinstance(node.operator, Add):
            continue
        shape = graph.tensors[node.output].shape
        convolutions = [
            producers[index]
            for index in node.inputs
            if index in producers
            and isinstance(graph.nodes[producers[index]].operator, Conv2D)
            and readers[index] == 1
            and index not in graph.outputs
            and graph.tensors[index].shape == shape
        ]
        if convolutions:
            fused[position] = max(convolutions)
    return fused


def _trails_its_reads(graph: Graph, node: Node, window: Window) -> bool:
    """Whether each row of output ends before the first row of input that the line buffer has not seen by then."""
    (_, rows, columns, _), (_, image_rows, image_columns, _) = (
        graph.tensors[node.output].shape,
        graph.tensors[node.inputs[0]].shape,
    )
    reach = _reach(window)
    return all(
        (row + 1) * columns <= min(max(row * window.stride[0] - window.pads.top + reach, 0), image_rows) * image_columns
        for row in range(rows)
    )


def _reach(window: Window) -> int:
    return (window.kernel[0] - 1) * window.dilation[0] + 1
