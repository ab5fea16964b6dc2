"""Activations as uint8 codes: the form in which onnxruntime has integer kernels on every processor.

On x86 it has none for int8 activations. It makes uint8 of them by itself, but not of inputs, nor of what several nodes
read; what mixes both types it then computes in float32, where sums depend on the order that an image's size calls for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Node, Tensor
from edgepipe.exporters.vision.operators import Conv2D, DepthwiseConv2D, FullyConnected, Operator, Pad, Quantize

# Of a code as uint8 above the same code as int8.
OFFSET = 128


def with_unsigned_codes(graph: Graph) -> Graph:
    """The same graph with int8 activations as uint8, their codes and zero points moved up by 128.

    Weights stay int8. So do the graph's inputs and outputs, which a QUANTIZE turns around. Tensors keep their indices.
    """
    weights = {
        index
        for node in graph.nodes
        if isinstance(node.operator, Conv2D | DepthwiseConv2D | FullyConnected)
        for index in node.inputs[1:]
    }
    builder = GraphBuilder(
        [tensor if index in weights else _unsigned(tensor) for index, tensor in enumerate(graph.tensors)]
    )
    inputs = []
    for index in graph.inputs:
        inputs.append(_boundary(builder, graph, index))
        if inputs[-1] != index:
            builder.nodes.append(Node(Quantize(), (inputs[-1],), index))
    for node in graph.nodes:
        moved = builder.tensors[node.output] is not graph.tensors[node.output]
        builder.nodes.append(replace(node, operator=_moved(node.operator)) if moved else node)
    outputs = []
    for index in graph.outputs:
        outputs.append(_boundary(builder, graph, index))
        if outputs[-1] != index:
            builder.nodes.append(Node(Quantize(), (index,), outputs[-1]))
    return builder.build(inputs, outputs)


def _unsigned(tensor: Tensor) -> Tensor:
    if tensor.dtype != "int8" or tensor.quantization is None:
        return tensor
    zero_points = tuple(zero_point + OFFSET for zero_point in tensor.quantization.zero_points)
    data = None if tensor.data is None else (tensor.data.astype(np.int16) + OFFSET).astype(np.uint8)
    return replace(tensor, dtype="uint8", quantization=replace(tensor.quantization, zero_points=zero_points), data=data)


def _boundary(builder: GraphBuilder, graph: Graph, index: int) -> int:
    """The tensor that stands for tensor ``index`` outside: itself, or its original where its type was changed."""
    if builder.tensors[index] is graph.tensors[index]:
        return index
    return builder.tensor(graph.tensors[index])


def _moved(operator: Operator) -> Operator:
    """The operator for codes as uint8."""
    if isinstance(operator, Pad) and operator.value is not None:
        return replace(operator, value=operator.value + OFFSET)
    return operator
