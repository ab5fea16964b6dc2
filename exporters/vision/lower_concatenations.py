"""Join many tensors in steps that TFLite Micro takes."""

from __future__ import annotations

from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Node, Tensor
from edgepipe.exporters.vision.operators import Concatenation

# TFLite Micro's kernel holds its inputs' shapes in an array of this length.
MAX_INPUTS = 10


def lower_concatenations(graph: Graph) -> Graph:
    """The same graph with concatenations of at most ``MAX_INPUTS`` tensors; tensors keep their indices."""
    builder = GraphBuilder(list(graph.tensors))

    def join(operator: Concatenation, inputs: tuple[int, ...], output: Tensor) -> int:
        if len(inputs) == 1:
            return inputs[0]
        name = f"{output.name}/part_{len(builder.tensors)}"
        return builder.node(Concatenation(operator.axis), inputs, name, output.dtype, output.quantization)

    for node in graph.nodes:
        inputs, output = node.inputs, graph.tensors[node.output]
        while isinstance(node.operator, Concatenation) and len(inputs) > MAX_INPUTS:
            groups = (inputs[start : start + MAX_INPUTS] for start in range(0, len(inputs), MAX_INPUTS))
            inputs = tuple(join(node.operator, group, output) for group in groups)
        builder.nodes.append(Node(node.operator, inputs, node.output))
    return builder.build(graph.inputs, graph.outputs)
