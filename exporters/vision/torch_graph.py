"""An int8 graph as a torch module."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision import operators as op
from edgepipe.exporters.vision.graph import Graph, Node, Quantization, Tensor
from edgepipe.exporters.vision.single_rounding import bias_lift
from edgepipe.exporters.vision.torch_operators import CHANNELS_FIRST, Value, Weights, run, run_weighted

LARGEST_MULTIPLIER = 256  # exclusive; of the step of an accumulator over the output's, in XNNPACK

WEIGHTED = (op.Conv2D, op.DepthwiseConv2D, op.FullyConnected)


class TorchGraph(nn.Module):
    """A `Graph` that ``torch.export`` can trace: its scales are constants.

    Inputs and outputs have the graph's shapes and types; inside, uint8 activations are int8, moved down by 128.
    """

    def __init__(self, graph: Graph) -> None:
        """``graph`` is one that `edgepipe.exporters.vision.read_tflite` would give.

        Raises:
            UnsupportedModel: XNNPACK does not take the scales of a convolution or a fully connected layer.
        """
        super().__init__()
        self.graph = graph
        self._quantizations = [_as_int8(tensor) for tensor in graph.tensors]
        for position, node in enumerate(graph.nodes):
            if isinstance(node.operator, WEIGHTED):
                self._add_weights(position, node)
            else:
                self._add_constants(node)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the graph on its inputs."""
        values = {index: self._enter(index, data) for index, data in zip(self.graph.inputs, inputs, strict=True)}
        for position, node in enumerate(self.graph.nodes):
            output = replace(self.graph.tensors[node.output], quantization=self._quantizations[node.output])
            if isinstance(node.operator, WEIGHTED):
                weights = self._weights(position)
                values[node.output] = run_weighted(node.operator, values[node.inputs[0]], weights, output)
            else:
                read = [values.get(index) or self._constant(index) for index in node.inputs]
                values[node.output] = run(node.operator, read, output)
        return tuple(self._leave(index, values[index]) for index in self.graph.outputs)

    def _enter(self, index: int, data: torch.Tensor) -> Value:
        if self.graph.tensors[index].dtype == "uint8":
            data = (data.to(torch.int16) - 128).to(torch.int8)
        return Value(data, self._quantizations[index]).channels_first()

    def _leave(self, index: int, value: Value) -> torch.Tensor:
        data = value.channels_last().data
        return (data.to(torch.int16) + 128).to(torch.uint8) if self.graph.tensors[index].dtype == "uint8" else data

    def _add_constants(self, node: Node) -> None:
        for index in node.inputs:
            tensor = self.graph.tensors[index]
            if tensor.data is not None:
                data = tensor.data.transpose(CHANNELS_FIRST) if tensor.data.ndim == 4 else tensor.data
                self._add(f"constant_{index}", data)

    def _constant(self, index: int) -> Value:
        return Value(self.get_buffer(f"constant_{index}"), self._quantizations[index])

    def _add_weights(self, position: int, node: Node) -> None:
        """Weights with the output's channels first, a scale for each of these, and the bias as real numbers."""
        image, filters, *bias = (self.graph.tensors[index] for index in node.inputs)
        output = self.graph.tensors[node.output]
        assert image.quantization
        assert output.quantization
        assert filters.quantization
        assert filters.data is not None
        codes = filters.data
        if isinstance(node.operator, op.Conv2D):
            codes = codes.transpose(CHANNELS_FIRST)
        elif isinstance(node.operator, op.DepthwiseConv2D):
            codes = codes.transpose(3, 0, 1, 2)
        channels = codes.shape[0]
        scales = np.broadcast_to(np.array(filters.quantization.scales, np.float32), channels)
        steps = scales.astype(np.float64) * image.quantization.scale
        self._check_steps(position, steps)
        self._add(f"weights_{position}", codes)
        self._add(f"scales_{position}", scales)
        self._add(f"zero_points_{position}", np.zeros(channels, np.int64))
        if bias:
            # ExecuTorch divides by the steps again.
            assert bias[0].data is not None
            lift = bias_lift(node.operator, steps / output.quantization.scale, output)
            self._add(f"bias_{position}", ((bias[0].data + lift) * steps).astype(np.float32))

    def _check_steps(self, position: int, steps: np.ndarray) -> None:
        """``steps``: float64 ``[O]``, what one unit of the accumulator stands for."""
        node = self.graph.nodes[position]
        output = self.graph.tensors[node.output]
        assert output.quantization
        largest = steps.max() / output.quantization.scale
        if largest >= LARGEST_MULTIPLIER or steps.min() < np.finfo(np.float32).tiny:
            raise UnsupportedModel(
                f"node {position} ({node.operator.name}), tensor {node.output} ({output.name}): its multipliers reach "
                f"{largest:g} and its bias steps {steps.min():g}: XNNPACK takes less than {LARGEST_MULTIPLIER} and "
                "normal float32 numbers; leave executorch out of --formats"
            )

    def _weights(self, position: int) -> Weights:
        buffers = dict(self.named_buffers())
        return Weights(
            codes=buffers[f"weights_{position}"],
            scales=buffers[f"scales_{position}"],
            zero_points=buffers[f"zero_points_{position}"],
            bias=buffers.get(f"bias_{position}"),
        )

    def _add(self, name: str, data: np.ndarray) -> None:
        self.register_buffer(name, torch.from_numpy(np.array(data, order="C")))


def _as_int8(tensor: Tensor) -> Quantization | None:
    """The quantisation of a tensor whose codes are kept as int8."""
    if tensor.dtype == "uint8" and tensor.quantization is not None:
        return replace(tensor.quantization, zero_points=tuple(zero - 128 for zero in tensor.quantization.zero_points))
    return tensor.quantization
