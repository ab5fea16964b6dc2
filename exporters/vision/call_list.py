"""One inference as the calls of kernels that it takes, in order, on the tensors' places in the arena."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgepipe.exporters.vision import kernels
from edgepipe.exporters.vision.arena import Arena
from edgepipe.exporters.vision.graph import Graph, Node
from edgepipe.exporters.vision.kernel_parameters import kernel_calls, residual_parameters
from edgepipe.exporters.vision.operators import Reshape

_WITH_LINE_BUFFER = (kernels.Depthwise, kernels.AveragePool, kernels.MaxPool)
_WITH_RESIDUAL = (kernels.Conv, kernels.Pointwise)

# A tensor's offset in the arena, a constant, or an argument that is not there.
Argument = int | np.ndarray | None


@dataclass(frozen=True, eq=False)
class Call:
    """A call of ``kernel``.

    ``inputs``: what it reads. ``residual`` and ``added``: what a convolution adds to its output, and where that lies.
    ``line_buffer``: of a kernel that works in place. ``nodes``: what of the graph it computes.
    """

    kernel: kernels.Kernel
    inputs: tuple[Argument, ...]
    output: int
    nodes: tuple[Node, ...]
    residual: kernels.Residual | None = None
    added: Argument = None
    line_buffer: int | None = None

    @property
    def takes_residual(self) -> bool:
        """Whether the kernel has arguments for one."""
        return isinstance(self.kernel, _WITH_RESIDUAL)

    @property
    def takes_line_buffer(self) -> bool:
        """Whether the kernel has an argument for one."""
        return isinstance(self.kernel, _WITH_LINE_BUFFER)


def call_list(graph: Graph, arena: Arena) -> Iterator[Call]:
    """The calls that compute ``graph`` in ``arena``, which was planned for it.

    Raises:
        UnsupportedModel: no kernel computes some node.
    """
    places = arena.tensors

    def place(index: int) -> int | np.ndarray:
        data = graph.tensors[index].data
        return places[index] if data is None else data

    fused = set(arena.fused.values())
    for position, node in enumerate(graph.nodes):
        if position in fused:  # Runs together with the Add that takes its output.
            continue
        output = places[node.output]
        if isinstance(node.operator, Reshape) and places.get(node.inputs[0]) == output:
            continue
        if position in arena.fused:
            convolution = graph.nodes[arena.fused[position]]
            (kernel,) = kernel_calls(graph, convolution)
            residual = residual_parameters(graph, convolution, node)
            (other,) = (index for index in node.inputs if index != convolution.output)
            inputs = (place(convolution.inputs[0]),)
            yield Call(kernel, inputs, output, (convolution, node), residual, place(other))
            continue
        for number, kernel in enumerate(kernel_calls(graph, node)):
            # A concatenation copies its inputs one by one; of most others, only the first is no parameter.
            elementwise = isinstance(kernel, (kernels.Add, kernels.Mul))
            operands = node.inputs if elementwise else node.inputs[number : number + 1]
            yield Call(kernel, tuple(map(place, operands)), output, (node,), line_buffer=arena.scratch.get(position))
