"""Turns PAD nodes before convolutions into the convolutions' own padding."""

from __future__ import annotations

from dataclasses import replace

from edgepipe.exporters.vision.graph import Graph, Node
from edgepipe.exporters.vision.operators import Conv2D, DepthwiseConv2D, Pad, Pads


def fold_pads(graph: Graph) -> Graph:
    """The same model without the PAD nodes whose readers are all convolutions.

    Exact: PAD fills with the zero point, which is what a convolution takes the elements around its image for. The
    padded copy of the image, larger than the image itself, is never made.
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
        and all(_takes_as_image(reader, node.output) for reader in readers.get(node.output, []))
    }
    nodes = []
    for node in graph.nodes:
        if node.output in folded:
            continue
        padding = folded.get(node.inputs[0])
        while padding is not None:
            node = _fold(padding, node)
            padding = folded.get(node.inputs[0])
        nodes.append(node)
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
    if batch != (0, 0) or channels != (0, 0) or image.quantization is None or image.quantization != padded.quantization:
        return False
    return node.operator.value in (None, image.quantization.zero_point)


def _takes_as_image(node: Node, index: int) -> bool:
    return isinstance(node.operator, Conv2D | DepthwiseConv2D) and node.inputs[0] == index


def _fold(padding: Node, node: Node) -> Node:
    assert isinstance(padding.operator, Pad)
    assert isinstance(node.operator, Conv2D | DepthwiseConv2D)
    _, (above, below), (before, after), _ = padding.operator.before_after
    top, left, bottom, right = node.operator.pads
    pads = Pads(top + above, left + before, bottom + below, right + after)
    return Node(node.operator.with_pads(pads), (padding.inputs[0], *node.inputs[1:]), node.output)
