"""Writes an int8 graph for onnxruntime: QuantizeLinear and DequantizeLinear around ONNX's own operators.

The engine fuses each DequantizeLinear, operator, QuantizeLinear into one integer kernel where it has it. That it does
so whatever the size of the image makes tiles equal to the whole: see `edgepipe.exporters.vision.unsigned_codes`.
Such a kernel accumulates exactly and scales once in float32, rounding half to even, where TFLite's reference rounds
twice in fixed point (gemmlowp's double rounding): a code may differ by one. What only moves or compares codes (padding,
slicing, joining, maximum, clamping, nearest neighbours) is written on the codes themselves and is exact, and so are
averages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.fixed_point import mean_multiplier
from edgepipe.exporters.vision.graph import Graph, Node, Quantization, Tensor
from edgepipe.exporters.vision.lookup_tables import lookup_table
from edgepipe.exporters.vision.nearest_neighbor import nearest_indices
from edgepipe.exporters.vision.onnx_graph import TO_CHANNELS_FIRST, QdqGraph, axis_first, quantization_of
from edgepipe.exporters.vision.operators import (
    Activation,
    Add,
    AveragePool2D,
    Concatenation,
    Conv2D,
    DepthwiseConv2D,
    Dequantize,
    FullyConnected,
    HardSwish,
    Logistic,
    MaxPool2D,
    Mean,
    Mul,
    Pad,
    Quantize,
    Relu,
    Relu6,
    Reshape,
    ResizeNearestNeighbor,
    Softmax,
    StridedSlice,
    Window,
)
from edgepipe.exporters.vision.single_rounding import bias_lift
from edgepipe.exporters.vision.unsigned_codes import OFFSET, with_unsigned_codes

Item = TypeVar("Item")


def write_onnx(graph: Graph, path: Path) -> None:
    """Write ``graph`` to ``path`` as one QDQ model of opset 17; inputs and outputs are those of the graph, NHWC.

    Raises:
        MissingExtra: the package onnx is not installed.
        UnsupportedModel: an operator cannot be written, or a tensor lacks its quantisation.
    """
    qdq = QdqGraph(with_unsigned_codes(graph))
    for node in qdq.graph.nodes:
        _write(qdq, node)
    qdq.save(path)


def _write(qdq: QdqGraph, node: Node) -> None:
    """Add what one node is in ONNX."""
    operator, output = node.operator, node.output
    name = qdq.graph.tensors[output].name
    match operator:
        case Conv2D() | DepthwiseConv2D():
            real = _convolution(qdq, node, operator)
            qdq.store_first(output, qdq.quantize(output, real, operator.activation))
        case AveragePool2D():
            codes = _average_pool(qdq, node, operator)
            qdq.store_first(output, qdq.clamp(output, codes, operator.activation))
        case MaxPool2D():
            codes = qdq.node("MaxPool", [qdq.first(node.inputs[0])], name, **_window(operator))
            qdq.store_first(output, qdq.clamp(output, codes, operator.activation))
        case FullyConnected():
            _fully_connected(qdq, node, operator)
        case Add() | Mul():
            _binary(qdq, node, operator)
        case Concatenation():
            axis = axis_first(operator.axis, len(qdq.graph.tensors[output].shape))
            codes = qdq.node("Concat", [qdq.first(index) for index in node.inputs], name, axis=axis)
            qdq.store_first(output, qdq.clamp(output, codes, operator.activation))
        case Mean():
            qdq.store_last(output, _mean(qdq, node, operator))
        case Pad():
            _pad(qdq, node, operator)
        case Reshape(shape):
            qdq.store_last(output, qdq.node("Reshape", [qdq.last(node.inputs[0]), qdq.integers(*shape)], name))
        case StridedSlice(begin, end):
            bounds = [qdq.integers(*_axes_first(values)) for values in (begin, end)]
            qdq.store_first(output, qdq.node("Slice", [qdq.first(node.inputs[0]), *bounds], name))
        case ResizeNearestNeighbor():
            _resize(qdq, node, operator)
        case Softmax():
            _softmax(qdq, node, operator)
        case Logistic() | HardSwish():
            function = "Sigmoid" if isinstance(operator, Logistic) else "HardSwish"
            real = qdq.node(function, [qdq.real_first(node.inputs[0])], f"{name}.real")
            qdq.store_first(output, qdq.quantize(output, real))
        case Relu() | Relu6():
            _requantize(qdq, node, Activation[operator.name])
        case Quantize() | Dequantize():
            _requantize(qdq, node)
        case _:
            raise UnsupportedModel(f"{operator.name} cannot be written to ONNX")


def _convolution(qdq: QdqGraph, node: Node, operator: Conv2D | DepthwiseConv2D) -> str:
    """Real numbers of a convolution; a depthwise one has a group for each channel of the image."""
    channels = qdq.graph.tensors[node.inputs[0]].shape[3]
    inputs = [
        qdq.real_first(node.inputs[0]),
        # [O, kh, kw, I] and [1, kh, kw, O] become [O, I, kh, kw] and [O, 1, kh, kw].
        _weights(qdq, node, (0, 3, 1, 2) if isinstance(operator, Conv2D) else (3, 0, 1, 2)),
        *_bias(qdq, node),
    ]
    return qdq.node(
        "Conv",
        inputs,
        f"{qdq.graph.tensors[node.output].name}.real",
        group=1 if isinstance(operator, Conv2D) else channels,
        dilations=operator.dilation,
        **_window(operator),
    )


def _fully_connected(qdq: QdqGraph, node: Node, operator: FullyConnected) -> None:
    data, weights = (qdq.graph.tensors[index] for index in node.inputs[:2])
    output = qdq.graph.tensors[node.output]
    rows = qdq.node("Reshape", [qdq.last(node.inputs[0]), qdq.integers(-1, weights.shape[1])], f"{output.name}.rows")
    inputs = [qdq.dequantize(rows, data), _weights(qdq, node, (1, 0)), *_bias(qdq, node)]
    codes = qdq.quantize(node.output, qdq.node("Gemm", inputs, f"{output.name}.real"), operator.activation)
    if len(output.shape) != 2:
        codes = qdq.node("Reshape", [codes, qdq.integers(*output.shape)], output.name)
    qdq.store_last(node.output, codes)


def _average_pool(qdq: QdqGraph, node: Node, operator: AveragePool2D) -> str:
    """Codes of an average, which is one of codes: input and output are quantised alike.

    In float32, exact with codes: onnxruntime's kernel for codes would round after adding the zero point.
    """
    codes = replace(qdq.graph.tensors[node.output], quantization=Quantization((1,), (OFFSET,)))
    real = qdq.dequantize(qdq.first(node.inputs[0]), codes)
    return _round_away(qdq, qdq.node("AveragePool", [real], f"{codes.name}.mean", **_window(operator)), codes)


def _mean(qdq: QdqGraph, node: Node, operator: Mean) -> str:
    """Codes of a mean, rounded twice as in TFLite: of few terms, the first rounding is coarse."""
    source, output = (qdq.graph.tensors[index] for index in (node.inputs[0], node.output))
    count = math.prod(source.shape[axis] for axis in operator.axes)
    multiplier, shift = mean_multiplier(quantization_of(source).scale / quantization_of(output).scale, count)
    factor = np.array(math.ldexp(multiplier, max(shift, 0) - 31), np.float32)
    codes = replace(source, quantization=Quantization((1,), quantization_of(source).zero_points))
    steps = replace(output, quantization=Quantization((2.0 ** max(-shift, 0),), quantization_of(output).zero_points))
    real = qdq.dequantize(qdq.last(node.inputs[0]), codes)
    total = qdq.node(
        "ReduceSum", [real, qdq.integers(*operator.axes)], f"{output.name}.sum", keepdims=operator.keep_dims
    )
    scaled = qdq.node("Mul", [total, qdq.constant(f"{output.name}.factor", factor)], f"{output.name}.scaled")
    return _round_away(qdq, qdq.node("Round", [scaled], f"{output.name}.rounded"), steps)


def _round_away(qdq: QdqGraph, real: str, tensor: Tensor) -> str:
    """Codes of real numbers, quantised as ``tensor`` is, with halves rounded away from the zero point as in TFLite.

    QuantizeLinear rounds them to even. A factor just above 1 decides, and moves no other multiple of 1/4096 of a step
    across a half.
    """
    above = qdq.constant("above", np.array(1 + 2**-20, np.float32))
    nudged = qdq.node("Mul", [real, above], f"{tensor.name}.nudged")
    return qdq.node("QuantizeLinear", [nudged, *qdq.parameters(tensor)], tensor.name)


def _requantize(qdq: QdqGraph, node: Node, activation: Activation = Activation.NONE) -> None:
    """Codes of one quantisation from those of another: by a table, with the reference's rounding.

    onnxruntime merges QuantizeLinear, DequantizeLinear, QuantizeLinear, DequantizeLinear into one pair of a scale
    between both, but not where a file ends amid them: tiles and tail would then differ from the whole.
    """
    source, output = (qdq.graph.tensors[index] for index in (node.inputs[0], node.output))
    codes = qdq.first(node.inputs[0])
    changed = (source.dtype, source.quantization) != (output.dtype, output.quantization)
    if source.quantization and output.quantization and source.dtype == output.dtype:
        if changed or activation is not Activation.NONE:
            codes = qdq.look_up(codes, lookup_table(node.operator, source, output), output)
    elif changed or activation is not Activation.NONE:
        codes = qdq.quantize(node.output, qdq.real_first(node.inputs[0]), activation)
    qdq.store_first(node.output, codes)


def _weights(qdq: QdqGraph, node: Node, order: tuple[int, ...]) -> str:
    """Real weights with their axes in another order.

    Nodes do not share them: onnxruntime's precise mode on x86 (see the engine) refuses initializers that do.
    """
    tensor = qdq.graph.tensors[node.inputs[1]]
    own = replace(tensor, name=f"{tensor.name}.{node.output}")
    codes = qdq.constant(own.name, _stored(tensor).transpose(order))
    return qdq.dequantize(codes, own, order.index(quantization_of(tensor).axis))


def _bias(qdq: QdqGraph, node: Node) -> list[str]:
    """Real bias, if any; its scales are by definition the products of the input's and the weights'."""
    data, weights, *bias = (qdq.graph.tensors[index] for index in node.inputs)
    output = qdq.graph.tensors[node.output]
    scales = np.float32(quantization_of(data).scale) * np.array(quantization_of(weights).scales, np.float32)
    lift = bias_lift(node.operator, scales / quantization_of(output).scale, output)
    quantization = Quantization(tuple(map(float, scales)), (0,) * len(scales))
    return [
        qdq.dequantize(qdq.constant(tensor.name, _stored(tensor) + lift), replace(tensor, quantization=quantization))
        for tensor in bias
    ]


def _stored(tensor: Tensor) -> np.ndarray:
    """What a tensor of weights holds."""
    if tensor.data is None:
        raise UnsupportedModel(f"the weights {tensor.name} are computed in the model: expected a constant")
    return tensor.data


def _window(operator: Window) -> dict[str, Any]:
    return {"kernel_shape": operator.kernel, "strides": operator.stride, "pads": operator.pads}


def _binary(qdq: QdqGraph, node: Node, operator: Add | Mul) -> None:
    """Sum or product; broadcasting matches the last axes of TFLite's layout."""
    output = qdq.graph.tensors[node.output]
    rank = len(output.shape)
    in_place = all(len(qdq.graph.tensors[index].shape) == rank for index in qdq.graph.activations(node))
    inputs = [qdq.real_first(index, rank) if in_place else qdq.real_last(index) for index in node.inputs]
    real = qdq.node("Add" if isinstance(operator, Add) else "Mul", inputs, f"{output.name}.real")
    codes = qdq.quantize(node.output, real, operator.activation)
    if in_place:
        qdq.store_first(node.output, codes)
    else:
        qdq.store_last(node.output, codes)


def _pad(qdq: QdqGraph, node: Node, operator: Pad) -> None:
    output = qdq.graph.tensors[node.output]
    before, after = zip(*_axes_first(operator.before_after), strict=True)
    value = quantization_of(output).zero_point if operator.value is None else operator.value
    inputs = [
        qdq.first(node.inputs[0]),
        qdq.integers(*before, *after),
        qdq.constant("pad_value", np.array(value, output.dtype)),
    ]
    qdq.store_first(node.output, qdq.node("Pad", inputs, output.name))


def _resize(qdq: QdqGraph, node: Node, operator: ResizeNearestNeighbor) -> None:
    """Two gathers: ONNX's Resize divides by the scale that TFLite multiplies by, and so may pick the next pixel."""
    sizes = qdq.graph.tensors[node.inputs[0]].shape[1:3]
    codes = qdq.first(node.inputs[0])
    for axis, (size, wanted) in enumerate(zip(sizes, operator.size, strict=True), start=2):
        indices = qdq.integers(*nearest_indices(size, wanted, operator))
        codes = qdq.node("Gather", [codes, indices], qdq.graph.tensors[node.output].name, axis=axis)
    qdq.store_first(node.output, codes)


def _softmax(qdq: QdqGraph, node: Node, operator: Softmax) -> None:
    name = qdq.graph.tensors[node.output].name
    real = qdq.real_last(node.inputs[0])
    if operator.beta != 1:
        real = qdq.node("Mul", [real, qdq.constant("beta", np.array(operator.beta, np.float32))], f"{name}.scaled")
    real = qdq.node("Softmax", [real], f"{name}.real", axis=-1)
    qdq.store_last(node.output, qdq.quantize(node.output, real))


def _axes_first(values: Sequence[Item]) -> list[Item]:
    """One value for each axis of TFLite's layout, in the order of the axes with channels on axis 1."""
    return [values[axis] for axis in TO_CHANNELS_FIRST] if len(values) == 4 else list(values)
