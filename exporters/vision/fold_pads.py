"""Turns PAD nodes before convolutions and maximum pools into their own padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgepipe.exporters.vision.graph import Graph, Node
from edgepipe.exporters.vision.operators import Conv2D, DepthwiseConv2D, MaxPool2D, Pad, Pads


def fold_pads(graph: Graph) -> Graph:
    """The same model without the PAD nodes whose readers can all pad by themselves.

    Exact: a convolution takes the elements around its image for the zero point, a maximum pool for the lowest code,
    and a PAD is folded where it fills with just that. The padded copy, larger than the image itself, is never made.
    """
    readers: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for index in node.inputs:
            readers.setdefault(index, []).append(node)
    folded = {
        node.output: node
        for node in graph.nodes
        if _pads_an_image(graph, node)
        and node.output not in graph.outputs
        and all(_can_pad(graph, node, reader) for reader in readers.get(node.output, []))
    }
    nodes = [
        _fold(folded[node.inputs[0]], node) if node.inputs[0] in folded else node
        for node in graph.nodes
        if node.output not in folded
    ]
    return _without_unused_tensors(replace(graph, nodes=tuple(nodes)))


def _without_unused_tensors(graph: Graph) -> Graph:
    used = {*graph.inputs, *graph.outputs, *(index for node in graph.nodes for index in (*node.inputs, node.output))}
    places = {index: place for place, index in enumerate(sorted(used))}
    return Graph(
        tuple(graph.tensors[index] for index in sorted(used)),
        tuple(
            Node(node.operator, tuple(places[index] for index in node.inputs), places[node.output])
            for node in graph.nodes
        ),
        tuple(places[index] for index in graph.inputs),
        tuple(places[index] for index in graph.outputs),
    )


def _pads_an_image(graph: Graph, node: Node) -> bool:
    if not isinstance(node.operator, Pad) or len(node.operator.before_after) != 4:
        return False
    batch, _, _, channels = node.operator.before_after
    image, padded = graph.tensors[node.inputs[0]], graph.tensors[node.output]
    same_codes = image.quantization is not None and image.quantization == padded.quantization
    return batch == (0, 0) and channels == (0, 0) and same_codes


def _can_pad(graph: Graph, padding: Node, reader: Node) -> bool:
    image = graph.tensors[padding.inputs[0]]
    assert isinstance(padding.operator, Pad)
    assert image.quantization is not None
    filled = image.quantization.zero_point if padding.operator.value is None else padding.operator.value
    match reader.operator:
        case Conv2D() | DepthwiseConv2D():
            return reader.inputs[0] == padding.output and filled == image.quantization.zero_point
        case MaxPool2D(kernel=kernel) as pool:
            pads = _pads(padding, pool.pads)
            sees_the_image = max(pads.top, pads.bottom) < kernel[0] and max(pads.left, pads.right) < kernel[1]
            return sees_the_image and filled == np.iinfo(image.dtype).min
    return False


def _fold(padding: Node, node: Node) -> Node:
    assert isinstance(node.operator, Conv2D | DepthwiseConv2D | MaxPool2D)
    operator = node.operator.with_pads(_pads(padding, node.operator.pads))
    return Node(operator, (padding.inputs[0], *node.inputs[1:]), node.output)


def _pads(padding: Node, inner: Pads) -> Pads:
    assert isinstance(padding.operator, Pad)
    _, (above, below), (before, after), _ = padding.operator.before_after
    return Pads(inner.top + above, inner.left + before, inner.bottom + below, inner.right + after)
