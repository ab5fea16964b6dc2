"""The int8 graph that everything in vision reads, splits and writes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.operators import Operator, Shape, ShapeError

# NumPy's names of the types a tensor may have, and the bytes of an element.
ELEMENT_BYTES = {"int8": 1, "uint8": 1, "int32": 4, "float32": 4}


@dataclass(frozen=True)
class Quantization:
    """``real = scale * (code - zero_point)``, for the whole tensor or for each slice along ``axis``.

    ``scales``: one or more floats (exactly representable in float32); ``zero_points``: as many integers.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int = 0

    @property
    def scale(self) -> float:
        """The one scale of a tensor quantised as a whole."""
        (scale,) = self.scales
        return scale

    @property
    def zero_point(self) -> int:
        """The one zero point of a tensor quantised as a whole."""
        (zero_point,) = self.zero_points
        return zero_point


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value in the graph; a constant has ``data`` of its shape and type."""

    name: str
    shape: Shape
    dtype: str
    quantization: Quantization | None = None
    data: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Node:
    """One operation: ``operator`` on tensors ``inputs`` (indices into the graph's tensors) giving tensor ``output``."""

    operator: Operator
    inputs: tuple[int, ...]
    output: int


@dataclass(frozen=True, eq=False)
class Graph:
    """Tensors and the nodes between them, in an order in which they can run; batch 1.

    ``inputs`` and ``outputs`` are indices into ``tensors``. `check` holds the rest.
    """

    tensors: tuple[Tensor, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def input_shapes(self, node: Node) -> list[Shape]:
        """Shapes of a node's inputs."""
        return [self.tensors[index].shape for index in node.inputs]

    def is_constant(self, index: int) -> bool:
        """Whether tensor ``index`` is stored in the model."""
        return self.tensors[index].data is not None

    def activations(self, node: Node) -> tuple[int, ...]:
        """A node's inputs that are not constants."""
        return tuple(index for index in node.inputs if not self.is_constant(index))

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return sum(node.operator.macs(self.input_shapes(node), self.tensors[node.output].shape) for node in self.nodes)

    @property
    def constant_bytes(self) -> int:
        """Bytes of all constants: the weights in flash."""
        return sum(tensor.nbytes for tensor in self.tensors if tensor.data is not None)

    def check(self) -> None:
        """See that every node can run: its inputs are there before it, and its output has the shape it says.

        Raises:
            UnsupportedModel: with the node's index, operator and tensor.
        """
        ready = {index for index in range(len(self.tensors)) if self.is_constant(index)} | set(self.inputs)
        for position, node in enumerate(self.nodes):
            here = f"node {position} ({node.operator.name})"
            for index in node.inputs:
                if index not in ready:
                    raise UnsupportedModel(f"{here} reads tensor {index} before anything wrote it")
            if node.output in ready:
                raise UnsupportedModel(f"{here} writes tensor {node.output}, which is there already")
            output = self.tensors[node.output]
            try:
                expected = node.operator.output_shape(*self.input_shapes(node))
            except ShapeError as error:
                raise UnsupportedModel(f"{here}, tensor {node.output} ({output.name}): {error}") from error
            if expected != output.shape:
                raise UnsupportedModel(
                    f"{here}, tensor {node.output} ({output.name}) has shape {output.shape}: expected {expected}"
                )
            ready.add(node.output)
        for index in self.outputs:
            if index not in ready:
                raise UnsupportedModel(f"nothing writes the output, tensor {index}")


@dataclass
class GraphBuilder:
    """Grows a graph node by node; tensors are referred to by the index that `tensor` or `node` returned."""

    tensors: list[Tensor] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def tensor(self, tensor: Tensor) -> int:
        """Add a graph input or a constant."""
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def node(
        self,
        operator: Operator,
        inputs: Sequence[int],
        name: str,
        dtype: str = "int8",
        quantization: Quantization | None = None,
    ) -> int:
        """Add a node and its output, whose shape follows from the inputs'."""
        shape = operator.output_shape(*(self.tensors[index].shape for index in inputs))
        output = self.tensor(Tensor(name, shape, dtype, quantization))
        self.nodes.append(Node(operator, tuple(inputs), output))
        return output

    def build(self, inputs: Iterable[int], outputs: Iterable[int]) -> Graph:
        """The graph so far."""
        return Graph(tuple(self.tensors), tuple(self.nodes), tuple(inputs), tuple(outputs))
