"""What a tile is computed from: the exact backward rule, for rows and columns apart.

A window of ``reach = (kernel - 1) * dilation + 1`` rows that moves by ``stride`` reads, for the rows ``[begin, end)``
of its output, the rows ``[begin * stride - pad, (end - 1) * stride - pad + reach)`` of its input. What of them lies
outside the image is padding; all the rest must be real data, at every layer. A tensor that several nodes read is
computed on the hull of what they read.
"""

from __future__ import annotations

from edgepipe.exporters.vision.graph import Graph, Node
from edgepipe.exporters.vision.operators import (
    Add,
    AveragePool2D,
    Concatenation,
    Conv2D,
    DepthwiseConv2D,
    Dequantize,
    HardSwish,
    Logistic,
    MaxPool2D,
    Mul,
    Pad,
    Quantize,
    Relu,
    Relu6,
    Softmax,
    Window,
)
from edgepipe.exporters.vision.patches import Region, Span

# Axes of an image: batch, rows, columns, channels.
ROWS, COLUMNS, CHANNELS = 1, 2, 3


def split_points(graph: Graph) -> tuple[int, ...]:
    """Values of `PatchPlan.split` that a graph allows.

    All nodes before are local in space, nothing but the output of the last of them is read afterwards, and that is an
    image. None ends with a Pad, which costs less when the tail does it.
    """
    if len(graph.inputs) != 1 or not _is_image(graph, graph.inputs[0]):
        return ()
    last_reader = {index: position for position, node in enumerate(graph.nodes) for index in node.inputs}
    last_reader |= dict.fromkeys(graph.outputs, len(graph.nodes))
    points = []
    others = last_reader.get(graph.inputs[0], 0)
    for position, node in enumerate(graph.nodes):
        if not is_local(graph, node):
            break
        last = last_reader.get(node.output, 0)
        alone = others <= position < last and node.output not in graph.outputs
        if alone and not isinstance(node.operator, Pad):
            points.append(position + 1)
        others = max(others, last)
    return tuple(points)


def is_local(graph: Graph, node: Node) -> bool:
    """Whether every pixel of a node's output depends only on pixels around the same place of its inputs.

    A constant that varies in space is not, nor is a window that slides over padding alone.
    """
    activations = graph.activations(node)
    if not activations or not all(_is_image(graph, index) for index in (*activations, node.output)):
        return False
    match node.operator:
        case Conv2D() | DepthwiseConv2D():
            return activations == node.inputs[:1] and _reads_its_input(graph, node)
        case AveragePool2D() | MaxPool2D():
            return _reads_its_input(graph, node)
        case Pad(before_after=before_after):
            return before_after[0] == (0, 0)
        case Add() | Mul():
            return not any(_varies_in_space(graph, index) for index in node.inputs if graph.is_constant(index))
        case Concatenation(axis=axis):
            return axis == CHANNELS and activations == node.inputs
        case Relu() | Relu6() | Logistic() | HardSwish() | Softmax() | Quantize() | Dequantize():
            return True
    return False


def regions(graph: Graph, split: int, output: Region) -> dict[int, Region]:
    """Region of every tensor of the stage ``nodes[:split]`` that a tile computes for ``output`` of the stage's output.

    Keys are tensor indices; the graph's input among them gives the window. Tensors that the output does not depend on
    are left out. ``split`` is one of `split_points`.
    """
    rows = axis_spans(graph, split, ROWS, output.rows)
    columns = axis_spans(graph, split, COLUMNS, output.columns)
    return {index: Region(rows[index], columns[index]) for index in rows}


def axis_spans(graph: Graph, split: int, axis: int, output: Span) -> dict[int, Span]:
    """`regions` along one axis."""
    spans = {graph.nodes[split - 1].output: output}
    for node in reversed(graph.nodes[:split]):
        if node.output not in spans:
            continue
        spans[node.output] = _widened(graph, node, axis, spans[node.output])
        for index in graph.activations(node):
            span = read_span(graph, node, index, axis, spans[node.output]).clip(graph.tensors[index].shape[axis])
            spans[index] = span.hull(spans.get(index, span))
    return spans


def read_span(graph: Graph, node: Node, index: int, axis: int, output: Span) -> Span:
    """What a local node reads along an axis of its input ``index`` for ``output``: outside the tensor, padding."""
    match node.operator:
        case Window(kernel=kernel, stride=stride, pads=pads, dilation=dilation):
            along = axis - ROWS
            begin = output.begin * stride[along] - pads[along]
            last = (output.end - 1) * stride[along] - pads[along]
            return Span(begin, last + (kernel[along] - 1) * dilation[along] + 1)
        case Pad(before_after=before_after):
            before = before_after[axis][0]
            return Span(output.begin - before, output.end - before)
    if graph.tensors[index].shape[axis] != graph.tensors[node.output].shape[axis]:
        return Span(0, 1)  # Broadcast.
    return output


def _widened(graph: Graph, node: Node, axis: int, output: Span) -> Span:
    """``output``, and as much beside it as makes a node read at least one real row: no tensor may be empty."""
    for index in graph.activations(node):
        while read_span(graph, node, index, axis, output).end <= 0:
            output = Span(output.begin, output.end + 1)
        while read_span(graph, node, index, axis, output).begin >= graph.tensors[index].shape[axis]:
            output = Span(output.begin - 1, output.end)
    return output


def _is_image(graph: Graph, index: int) -> bool:
    shape = graph.tensors[index].shape
    return len(shape) == 4 and shape[0] == 1


def _varies_in_space(graph: Graph, index: int) -> bool:
    return any(size != 1 for size in graph.tensors[index].shape[:-1])


def _reads_its_input(graph: Graph, node: Node) -> bool:
    """Whether the whole output reads at least one row and one column that is not padding."""
    output, image = graph.tensors[node.output].shape, graph.tensors[node.inputs[0]].shape
    reads = {axis: read_span(graph, node, node.inputs[0], axis, Span(0, output[axis])) for axis in (ROWS, COLUMNS)}
    return all(read.begin < image[axis] and read.end > 0 for axis, read in reads.items())
