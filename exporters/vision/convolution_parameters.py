"""What the kernels of convolutions and fully connected layers are given, and what all parameters are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgepipe.exporters.vision import kernels, operators
from edgepipe.exporters.vision.activation_range import activation_range
from edgepipe.exporters.vision.fixed_point import Multiplier, quantize_multiplier
from edgepipe.exporters.vision.graph import Quantization, Tensor
from edgepipe.exporters.vision.operators import Activation


def quantization_of(tensor: Tensor) -> Quantization:
    """A tensor's quantisation, which it has."""
    assert tensor.quantization is not None
    return tensor.quantization


def scale_of(tensor: Tensor) -> float:
    """The one scale of a tensor."""
    return quantization_of(tensor).scale


def code_range(operator: operators.Operator, output: Tensor) -> tuple[int, int]:
    """Lowest and highest code after the activation that an operator has fused, if any."""
    activation = getattr(operator, "activation", Activation.NONE)
    return activation_range(activation, quantization_of(output), output.dtype)


def image_of(tensor: Tensor) -> kernels.Image:
    """Rows, columns and channels."""
    return kernels.Image(*tensor.shape[1:])


def window_of(operator: operators.Window) -> kernels.Window:
    """A window as the kernels have it."""
    return kernels.Window(*operator.kernel, *operator.stride, *operator.dilation, *operator.pads)


def _requantization(
    operator: operators.Operator,
    inputs: Sequence[Tensor],
    output: Tensor,
    multipliers: Sequence[Multiplier],
    weight_sums: np.ndarray,
) -> kernels.Requantization:
    """``weight_sums``: int64 ``[channels]``. Sums wrap at 32 bits, as the kernels' do."""
    zero_point = quantization_of(inputs[0]).zero_point
    bias = np.zeros(len(weight_sums), np.int64) if len(inputs) < 3 else _data(inputs[2]).astype(np.int64)
    lowest, highest = code_range(operator, output)
    if len(multipliers) == 1:
        multipliers = [*multipliers] * len(weight_sums)
    return kernels.Requantization(
        zero_point=quantization_of(output).zero_point,
        lowest=lowest,
        highest=highest,
        bias=(bias - zero_point * weight_sums).astype(np.int32),
        multiplier=np.array([each.multiplier for each in multipliers], np.int32),
        shift=np.array([each.shift for each in multipliers], np.int8),
    )


def _data(tensor: Tensor) -> np.ndarray:
    assert tensor.data is not None
    return tensor.data


def _multipliers(inputs: Sequence[Tensor], output: Tensor) -> list[Multiplier]:
    scales = quantization_of(inputs[1]).scales
    return [quantize_multiplier(scale_of(inputs[0]) * scale / scale_of(output)) for scale in scales]


def conv(operator: operators.Conv2D, inputs: Sequence[Tensor], output: Tensor) -> kernels.Kernel:
    """Of a convolution: pointwise, if its window is one pixel."""
    image, filters = inputs[0], _data(inputs[1])
    sums = filters.sum((1, 2, 3), np.int64)
    to = _requantization(operator, inputs, output, _multipliers(inputs, output), sums)
    if operator.kernel == operator.stride == (1, 1) and operator.pads == operators.NO_PADS:
        _, rows, columns, depth = image.shape
        return kernels.Pointwise(rows * columns, depth, filters.shape[0], filters.reshape(-1, depth), to)
    zero_point = quantization_of(image).zero_point
    return kernels.Conv(image_of(image), window_of(operator), zero_point, filters.shape[0], filters, to)


def depthwise(operator: operators.DepthwiseConv2D, inputs: Sequence[Tensor], output: Tensor) -> kernels.Kernel:
    """Of a depthwise convolution: the filter channel by channel."""
    image, filters = inputs[0], _data(inputs[1])[0]
    to = _requantization(operator, inputs, output, _multipliers(inputs, output), filters.sum((0, 1), np.int64))
    by_channel = np.ascontiguousarray(filters.transpose(2, 0, 1))
    multiplier = output.shape[3] // image.shape[3]
    return kernels.Depthwise(
        image_of(image), window_of(operator), quantization_of(image).zero_point, multiplier, by_channel, to
    )


def fully_connected(operator: operators.FullyConnected, inputs: Sequence[Tensor], output: Tensor) -> kernels.Kernel:
    """Of a fully connected layer. With one scale, TFLite multiplies those of input and weights in float32."""
    source, weights = inputs[0], _data(inputs[1])
    scales = quantization_of(inputs[1]).scales
    if len(scales) == 1:
        product = float(np.float32(scale_of(source)) * np.float32(scales[0]))
        multipliers = [quantize_multiplier(product / scale_of(output))]
    else:
        multipliers = _multipliers(inputs, output)
    to = _requantization(operator, inputs, output, multipliers, weights.sum(1, np.int64))
    rows = math.prod(source.shape) // weights.shape[1]
    return kernels.Pointwise(rows, weights.shape[1], weights.shape[0], weights, to)
