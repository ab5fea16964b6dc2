"""The int8 operators in torch, in the form that XNNPACK's partitioner takes as int8.

That form is dequantise, operate, quantise, with nothing between: one int8 operator of XNNPACK each. Images lie channels
first, as torch's operators want them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.ao.quantization.fx import _decomposed  # noqa: F401  (registers torch.ops.quantized_decomposed)
from torch.nn import functional

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision import operators as op
from edgepipe.exporters.vision.activation_range import activation_range
from edgepipe.exporters.vision.graph import Quantization, Tensor
from edgepipe.exporters.vision.nearest_neighbor import nearest_indices

LOWEST, HIGHEST = -128, 127  # codes of an int8 activation

CHANNELS_FIRST = (0, 3, 1, 2)  # axes of an NHWC image in torch's order
CHANNELS_LAST = (0, 2, 3, 1)  # and back


@dataclass(frozen=True, eq=False)
class Value:
    """An activation: int8 codes, or float32 where ``quantization`` is None. An image lies channels first."""

    data: torch.Tensor
    quantization: Quantization | None

    @property
    def real(self) -> torch.Tensor:
        """float32, what the codes stand for."""
        if self.quantization is None:
            return self.data
        scale, zero_point = self.quantization.scale, self.quantization.zero_point
        return torch.ops.quantized_decomposed.dequantize_per_tensor.default(
            self.data, scale, zero_point, LOWEST, HIGHEST, torch.int8
        )

    def move(self, movement: Callable[[torch.Tensor], torch.Tensor]) -> Value:
        """Let ``movement`` move or drop elements, without a change of their values."""
        return quantize(movement(self.real), self.quantization)

    def channels_last(self) -> Value:
        """The elements in the order that the graph has them in."""
        return self.move(lambda image: image.permute(CHANNELS_LAST)) if self.data.dim() == 4 else self

    def channels_first(self) -> Value:
        """What `channels_last` undoes."""
        return self.move(lambda image: image.permute(CHANNELS_FIRST)) if self.data.dim() == 4 else self

    def reshape(self, shape: Sequence[int]) -> Value:
        """The same elements as ``shape``, given in the graph's order."""
        return self.channels_last().move(lambda data: data.reshape(shape)).channels_first()


@dataclass(frozen=True, eq=False)
class Weights:
    """Constants of an operator: int8 codes ``[O, ...]``, their scales ``[O]`` and zero points ``[O]``, float32 bias."""

    codes: torch.Tensor
    scales: torch.Tensor
    zero_points: torch.Tensor
    bias: torch.Tensor | None

    @property
    def real(self) -> torch.Tensor:
        """float32, what the codes stand for."""
        return torch.ops.quantized_decomposed.dequantize_per_channel.default(
            self.codes, self.scales, self.zero_points, 0, LOWEST, HIGHEST, torch.int8
        )


def quantize(real: torch.Tensor, quantization: Quantization | None) -> Value:
    """The nearest codes; ``real`` itself where there is no quantisation."""
    if quantization is None:
        return Value(real, None)
    codes = torch.ops.quantized_decomposed.quantize_per_tensor.default(
        real, quantization.scale, quantization.zero_point, LOWEST, HIGHEST, torch.int8
    )
    return Value(codes, quantization)


def run(operator: op.Operator, inputs: Sequence[Value], output: Tensor) -> Value:
    """An operator without weights on its activations; ``output`` describes the result.

    Raises:
        UnsupportedModel: the operator is not among them, or would compute in float32.
    """
    first = inputs[0]
    match operator:
        case op.Quantize() | op.Dequantize():
            return _requantize(first, output.quantization)
        case op.Reshape():
            return first.reshape(operator.shape)
    if output.quantization is None:
        raise UnsupportedModel(f"{operator.name} gives {output.name!r} as {output.dtype}: expected int8")
    quantization = output.quantization
    match operator:
        case op.Add() | op.Mul():
            a, b = (_raise_rank(value, len(output.shape)).real for value in inputs)
            return _clamped(a + b if isinstance(operator, op.Add) else a * b, operator.activation, quantization)
        case op.AveragePool2D():
            return _average_pool(operator, first, quantization)
        case op.MaxPool2D():
            return _max_pool(operator, first, quantization)
        case op.Mean():
            axes = [_order(first).index(axis) for axis in operator.axes]
            return quantize(first.real.mean(axes, keepdim=True), quantization).reshape(output.shape)
        case op.Concatenation():
            joined = torch.cat([value.real for value in inputs], _order(first).index(operator.axis))
            return _activate(quantize(joined, quantization), operator.activation, quantization)
        case op.Pad():
            real = 0.0 if operator.value is None else _real(operator.value, quantization)
            return _pad(first, [operator.before_after[axis] for axis in _order(first)], real)
        case op.StridedSlice():
            return first.move(lambda data: _slice(data, operator, _order(first)))
        case op.ResizeNearestNeighbor():
            return _resize(operator, first)
        case op.Relu():
            return _activate(_requantize(first, quantization), op.Activation.RELU, quantization)
        case op.Relu6():
            return _activate(_requantize(first, quantization), op.Activation.RELU6, quantization)
        case op.Logistic():
            return quantize(torch.sigmoid(first.real), quantization)
        case op.HardSwish():
            return quantize(functional.hardswish(first.real), quantization)
        case op.Softmax():
            logits = first.reshape((-1, output.shape[-1])).real
            logits = logits if operator.beta == 1 else logits * operator.beta
            return quantize(torch.softmax(logits, -1), quantization).reshape(output.shape)
    raise UnsupportedModel(f"the ExecuTorch writer has no {operator.name}: leave executorch out of --formats")


def run_weighted(operator: op.Operator, value: Value, weights: Weights, output: Tensor) -> Value:
    """A convolution or a fully connected layer; ``output`` describes the result, which is int8."""
    assert output.quantization is not None
    match operator:
        case op.Conv2D() | op.DepthwiseConv2D():
            groups = value.data.shape[1] if isinstance(operator, op.DepthwiseConv2D) else 1
            pads = operator.pads
            inside = (pads.top, pads.left)
            if inside != (pads.bottom, pads.right):  # XNNPACK's own padding is the same on both sides
                value, inside = _pad_image(value, pads), (0, 0)
            real = functional.conv2d(
                value.real, weights.real, weights.bias, operator.stride, inside, operator.dilation, groups
            )
            return _clamped(real, operator.activation, output.quantization)
        case op.FullyConnected():
            rows = value.reshape((-1, weights.codes.shape[1]))
            real = functional.linear(rows.real, weights.real, weights.bias)
            return _clamped(real, operator.activation, output.quantization).reshape(output.shape)
    raise UnsupportedModel(f"the ExecuTorch writer has no {operator.name}: leave executorch out of --formats")


def _order(value: Value) -> tuple[int, ...]:
    """The graph's axes in the order in which ``value`` has them."""
    return CHANNELS_FIRST if value.data.dim() == 4 else tuple(range(value.data.dim()))


def _raise_rank(value: Value, rank: int) -> Value:
    """Leading axes of one, so that broadcasting pairs the graph's last axes."""
    missing = rank - value.data.dim()
    return value.reshape((1,) * missing + tuple(value.data.shape)) if missing else value


def _clamped(real: torch.Tensor, activation: op.Activation, quantization: Quantization) -> Value:
    """Quantise what the activation lets through; the range of the codes may do that by itself."""
    codes = activation_range(activation, quantization, "int8")
    if codes != (LOWEST, HIGHEST):
        low, high = (_real(code, quantization) for code in codes)
        real = functional.hardtanh(real, low, high)
    return quantize(real, quantization)


def _activate(value: Value, activation: op.Activation, quantization: Quantization) -> Value:
    """An activation on its own, for operators that XNNPACK cannot fuse it with."""
    whole = activation_range(activation, quantization, "int8") == (LOWEST, HIGHEST)
    return value if whole else _clamped(value.real, activation, quantization)


def _real(code: int, quantization: Quantization) -> float:
    return quantization.scale * (code - quantization.zero_point)


def _requantize(value: Value, quantization: Quantization | None) -> Value:
    return value if value.quantization == quantization else quantize(value.real, quantization)


def _pad(value: Value, before_after: Sequence[tuple[int, int]], real: float = 0.0) -> Value:
    """Add elements of a real value along each of the value's axes."""
    if not any(map(any, before_after)):
        return value
    sizes = [size for both in reversed(before_after) for size in both]
    return value.move(lambda data: functional.pad(data, sizes, value=real))


def _pad_image(image: Value, pads: op.Pads, real: float = 0.0) -> Value:
    return _pad(image, [(0, 0), (0, 0), (pads.top, pads.bottom), (pads.left, pads.right)], real)


def _max_pool(operator: op.MaxPool2D, image: Value, quantization: Quantization) -> Value:
    padded = _pad_image(image, operator.pads, _real(LOWEST, quantization))
    if operator.kernel == (1, 1):
        pooled = _subsample(padded, operator.stride)
    else:
        pooled = padded.move(lambda data: functional.max_pool2d(data, operator.kernel, operator.stride))
    return _activate(pooled, operator.activation, quantization)


def _average_pool(operator: op.AveragePool2D, image: Value, quantization: Quantization) -> Value:
    """XNNPACK pools averages in float32 only; elements outside the image do not count."""
    if operator.kernel == (1, 1):
        return _activate(_subsample(image, operator.stride), operator.activation, quantization)
    padded = _pad_image(image, operator.pads)
    real = functional.avg_pool2d(padded.real, operator.kernel, operator.stride, count_include_pad=False)
    if operator.pads != op.NO_PADS:
        real = real * torch.from_numpy(_inverse_share_inside(operator, image.data.shape[2:]))
    # TFLite rounds halves away from the code 0, XNNPACK to even: a nudge that is less than any other fraction decides.
    code_0, nudge = torch.tensor([_real(0, quantization)]), quantization.scale / 4096
    real = real + functional.hardtanh(real - code_0, -nudge, nudge)
    return _clamped(real, operator.activation, quantization)


def _inverse_share_inside(operator: op.AveragePool2D, size: Sequence[int]) -> np.ndarray:
    """float32 ``[1, 1, rows, columns]``: elements of each window over those of them inside the image."""
    pads = operator.pads
    shares = []
    for axis, both in enumerate(((pads.top, pads.bottom), (pads.left, pads.right))):
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(np.ones(size[axis]), both), operator.kernel[axis])
        shares.append(windows[:: operator.stride[axis]].mean(1))
    return np.float32(1 / np.outer(*shares)).reshape(1, 1, len(shares[0]), len(shares[1]))


def _subsample(image: Value, stride: tuple[int, int]) -> Value:
    """Pooling by windows of one element, which XNNPACK refuses."""
    return image.move(lambda data: data[:, :, :: stride[0], :: stride[1]])


def _slice(data: torch.Tensor, operator: op.StridedSlice, order: Sequence[int]) -> torch.Tensor:
    for position, axis in enumerate(order):
        begin, end = operator.begin[axis], operator.end[axis]
        if (begin, end) != (0, data.shape[position]):
            data = data.narrow(position, begin, end - begin)
    return data


def _resize(operator: op.ResizeNearestNeighbor, image: Value) -> Value:
    codes = image.data
    for axis, size in zip((2, 3), operator.size, strict=True):
        codes = codes.index_select(axis, torch.tensor(nearest_indices(codes.shape[axis], size, operator)))
    return Value(codes, image.quantization)
