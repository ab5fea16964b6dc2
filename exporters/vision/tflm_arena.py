"""What TFLite Micro's arena will be: its greedy planner for activations, and the structures it keeps for good.

The planner (``greedy_memory_planner.cc``) takes the largest buffer first and puts each at the lowest offset where it
meets no other that is live at the same time. It knows no in-place operators. The persistent part is that of a 64-bit
host, as ``print_allocations()`` of the `tflite-micro` package counts it; a microcontroller's pointers are half as wide.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgepipe.exporters.vision.arena import Buffer, Use, aligned, first_fit
from edgepipe.exporters.vision.graph import ELEMENT_BYTES, Graph, Node
from edgepipe.exporters.vision.operators import Conv2D, DepthwiseConv2D, FullyConnected, Mean
from edgepipe.exporters.vision.tflite_encoding import parameters
from edgepipe.exporters.vision.write_tflite import lower

# Allocators, planner, the structures of the model's one input and one output.
_INTERPRETER_BYTES = 712
TENSOR_BYTES = 24  # TfLiteEvalTensor
_NODE_BYTES = 64  # NodeAndRegistration

# What a kernel keeps for each of its nodes (OpData, aligned), and the node's parsed options.
_KERNEL_BYTES = {
    "CONV_2D": (80, 28),
    "DEPTHWISE_CONV_2D": (80, 28),
    "FULLY_CONNECTED": (80, 16),
    "ADD": (64, 8),
    "MUL": (48, 4),
    "CONCATENATION": (80, 8),
    "AVERAGE_POOL_2D": (32, 40),
    "MAX_POOL_2D": (32, 40),
    "MEAN": (48, 24),
    "PAD": (64, 0),
    "PADV2": (64, 0),
    "RESHAPE": (0, 36),
    "STRIDED_SLICE": (96, 24),
    "RESIZE_NEAREST_NEIGHBOR": (0, 2),
    "RELU": (32, 0),
    "RELU6": (16, 0),
    "LOGISTIC": (16, 0),
    "HARD_SWISH": (32, 0),
    "SOFTMAX": (80, 4),
    "QUANTIZE": (32, 0),
    "DEQUANTIZE": (32, 0),
}


@dataclass(frozen=True)
class TflmArena:
    """``head``: bytes of activations and scratch. ``tail``: bytes that live as long as the model."""

    head: int
    tail: int

    @property
    def nbytes(self) -> int:
        """Both together."""
        return self.head + self.tail


def predict_tflm_arena(graph: Graph) -> TflmArena:
    """The arena of the model that `write_tflite` makes of a graph, as its main subgraph."""
    written = lower(graph)
    return TflmArena(_head_bytes(written), _tail_bytes(written))


def _head_bytes(graph: Graph) -> int:
    buffers = lifetimes(graph)
    # Of equal buffers, TFLite Micro's sort takes the one added last.
    order = sorted(range(len(buffers)), key=lambda i: (-buffers[i].nbytes, -i))
    offsets = first_fit(buffers, order, alignment=1)
    return max((offset + buffer.nbytes for offset, buffer in zip(offsets, buffers, strict=True)), default=0)


def lifetimes(graph: Graph) -> list[Buffer]:
    """Every activation in the order of the tensors, a buffer each, then the kernels' scratch."""
    first = dict.fromkeys(graph.inputs, 0)
    last = dict.fromkeys(graph.inputs, 0)
    scratch = []
    for step, node in enumerate(graph.nodes):
        first[node.output] = last[node.output] = step
        last |= dict.fromkeys(graph.activations(node), step)
        scratch += [Buffer([Use(step, step, aligned(nbytes))]) for nbytes in _scratch_bytes(graph, node)]
    last |= dict.fromkeys(graph.outputs, max(len(graph.nodes) - 1, 0))
    activations = [Buffer([Use(first[i], last[i], aligned(graph.tensors[i].nbytes), tensor=i)]) for i in sorted(first)]
    return activations + scratch


def _scratch_bytes(graph: Graph, node: Node) -> list[int]:
    match node.operator:
        case Mean():  # Sums, and the axes that it runs over.
            output = graph.tensors[node.output]
            return [4 * output.nbytes // ELEMENT_BYTES[output.dtype], 16, 16]
    return []


def _tail_bytes(graph: Graph) -> int:
    tensors = len(graph.tensors) + len(_parameters(graph))
    return _INTERPRETER_BYTES + TENSOR_BYTES * tensors + sum(node_bytes(graph, node) for node in graph.nodes)


def node_bytes(graph: Graph, node: Node) -> int:
    """What is kept for a node as long as the model lives, its tensors apart."""
    nbytes = _NODE_BYTES + sum(_KERNEL_BYTES[node.operator.name])
    if isinstance(node.operator, Conv2D | DepthwiseConv2D | FullyConnected):
        nbytes += 2 * aligned(4 * _scales(graph, node))  # Multipliers and shifts.
    return nbytes


def _scales(graph: Graph, node: Node) -> int:
    """Output channels of a convolution; scales of a fully connected layer, one unless it is quantised by channel."""
    weights = graph.tensors[node.inputs[1]]
    if isinstance(node.operator, FullyConnected):
        return len(weights.quantization.scales) if weights.quantization else 1
    return graph.tensors[node.output].shape[3]


def _parameters(graph: Graph) -> set[tuple[object, ...]]:
    """Tensors that the file has besides the graph's."""
    return {
        (tensor.name, tensor.dtype, tensor.shape, tensor.quantization, tensor.data.tobytes())
        for node in graph.nodes
        for tensor in parameters(node.operator, [graph.tensors[i] for i in node.inputs], graph.tensors[node.output])
        if tensor.data is not None
    }
