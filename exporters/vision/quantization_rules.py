"""What the int8 kernels ask of an operator's types, scales and zero points.

Source: the ``Prepare`` functions and the multiplier arithmetic of TFLite Micro's reference kernels. Where they would
stop the program, or differ from build to build, the model is refused instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgepipe.exporters.vision.graph import Tensor
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
    Operator,
    Pad,
    Quantize,
    Relu,
    Relu6,
    Reshape,
    ResizeNearestNeighbor,
    Softmax,
    StridedSlice,
)

# The axis of a filter along which each slice may have its own scale.
_CHANNEL_AXIS: dict[type[Operator], int] = {Conv2D: 0, DepthwiseConv2D: 3, FullyConnected: 0}
# These copy or compare codes: another scale at the output would change what they mean.
_KEEPS_CODES = (AveragePool2D, MaxPool2D, Concatenation, Pad, Reshape, StridedSlice, ResizeNearestNeighbor)
_CODES = {"int8": (-128, 127), "uint8": (0, 255)}

# Where a fused activation clamps, if not at the ends of the codes.
_LIMITS = {Activation.RELU6: 6, Activation.RELU_N1_TO_1: 1}


class QuantizationError(ValueError):
    """An operator cannot take tensors of these types or scales."""


def check_quantization(operator: Operator, inputs: Sequence[Tensor], output: Tensor) -> None:
    """See that a kernel can compute ``output`` from ``inputs`` in int8.

    Raises:
        QuantizationError: with the tensor that does not fit.
    """
    if isinstance(operator, Quantize):
        _quantized_or_float(inputs[0])
        _check_whole(output, "int8", "uint8")
    elif isinstance(operator, Dequantize):
        _check_whole(inputs[0], "int8", "uint8")
        _check_type(output, "float32")
    elif isinstance(operator, Reshape):
        _quantized_or_float(inputs[0])
        _quantized_or_float(output)
        _check_type(output, inputs[0].dtype)
    elif type(operator) in _CHANNEL_AXIS:
        _check_whole(inputs[0], "int8")
        _check_filter(inputs[1], _CHANNEL_AXIS[type(operator)])
        _check_whole(output, "int8")
        for bias in inputs[2:]:
            _check_bias(bias, inputs[0], inputs[1])
    else:
        for tensor in (*inputs, output):
            _check_whole(tensor, "int8")
    if isinstance(operator, _KEEPS_CODES):
        for tensor in inputs:
            _check_same(tensor, output)
    _check_multipliers(operator, inputs, output)


def _quantized_or_float(tensor: Tensor) -> None:
    if tensor.dtype != "float32":
        _check_whole(tensor, "int8", "uint8")


def _check_type(tensor: Tensor, *expected: str) -> None:
    if tensor.dtype not in expected:
        hint = {
            "float32": ": quantise the model to int8 first",
            "uint8": ": convert the model anew, with int8 inside (uint8 is taken at its inputs and outputs)",
        }.get(tensor.dtype, "")
        raise QuantizationError(f"{tensor.name[:80]!r} is {tensor.dtype}, expected {' or '.join(expected)}{hint}")


def _check_whole(tensor: Tensor, *types: str) -> None:
    _check_type(tensor, *types)
    quantization = tensor.quantization
    if quantization is None:
        raise QuantizationError(f"{tensor.name[:80]!r} has no scale: quantise the model to int8 first")
    if len(quantization.scales) != 1:
        raise QuantizationError(f"{tensor.name[:80]!r} has {len(quantization.scales)} scales, expected one")
    lowest, highest = _CODES[tensor.dtype]
    if not lowest <= quantization.zero_point <= highest:
        raise QuantizationError(
            f"{tensor.name[:80]!r} has zero point {quantization.zero_point}, expected {lowest} to {highest}"
        )


def _check_filter(weights: Tensor, channel_axis: int) -> None:
    _check_type(weights, "int8")
    if weights.data is None:
        raise QuantizationError(f"the weights {weights.name[:80]!r} are computed, expected them stored in the model")
    if weights.quantization is None:
        raise QuantizationError(f"{weights.name[:80]!r} has no scale: quantise the model to int8 first")
    if len(weights.quantization.scales) > 1 and weights.quantization.axis != channel_axis:
        raise QuantizationError(
            f"{weights.name[:80]!r} has its scales along axis {weights.quantization.axis}, expected {channel_axis}"
        )
    if any(weights.quantization.zero_points):
        raise QuantizationError(f"{weights.name[:80]!r} has zero points other than 0: make its weights symmetric")


def _check_bias(bias: Tensor, image: Tensor, weights: Tensor) -> None:
    _check_type(bias, "int32")
    if bias.data is None:
        raise QuantizationError(f"the bias {bias.name[:80]!r} is computed, expected it stored in the model")
    if bias.quantization is None or image.quantization is None or weights.quantization is None:
        raise QuantizationError(f"{bias.name[:80]!r} has no scale: quantise the model to int8 first")
    # The kernels add the bias as it is, whatever its scale says: another scale means that something else was meant.
    expected = [image.quantization.scale * scale for scale in weights.quantization.scales]
    found = bias.quantization.scales
    if len(found) not in (1, len(expected)) and len(expected) > 1:
        raise QuantizationError(f"{bias.name[:80]!r} has {len(found)} scales, expected {len(expected)}")
    length = max(len(found), len(expected))
    for number, scale in zip(_repeated(found, length), _repeated(expected, length), strict=True):
        if abs(number - scale) > 0.01 * scale:
            raise QuantizationError(
                f"{bias.name[:80]!r} has scale {number:g}, expected the input's times the weights', {scale:g}"
            )
    if any(bias.quantization.zero_points):
        raise QuantizationError(f"{bias.name[:80]!r} has zero points other than 0")


def _repeated(scales: Sequence[float], length: int) -> Sequence[float]:
    return scales if len(scales) == length else [scales[0]] * length


def _check_same(tensor: Tensor, output: Tensor) -> None:
    if tensor.quantization is None or output.quantization is None:  # float32
        return
    ratio = tensor.quantization.scale / output.quantization.scale
    # TFLite's converters may round the same scale twice.
    if abs(ratio - 1) > 1e-6 or tensor.quantization.zero_point != output.quantization.zero_point:
        raise QuantizationError(
            f"{tensor.name[:80]!r} and the output differ in scale or zero point, expected them equal"
        )


def _check_multipliers(operator: Operator, inputs: Sequence[Tensor], output: Tensor) -> None:
    """Ratios of scales that become fixed-point multipliers, each within what its kernel can shift by."""
    scales = [tensor.quantization.scales for tensor in inputs if tensor.quantization]
    if output.quantization is None or any(tensor.dtype == "float32" for tensor in inputs):
        return
    to = output.quantization.scale
    limit = 6 if isinstance(operator, Relu6) else _LIMITS.get(getattr(operator, "activation", Activation.NONE), 0)
    if limit / to >= 2**31:
        raise QuantizationError(f"the output has scale {to:g}: a clamp at {limit} does not fit into 32 bits")
    if type(operator) in _CHANNEL_AXIS:
        _check_range("a multiplier", max(scales[0]) * max(scales[1]) / to, 0, 2**30)
    elif isinstance(operator, Mul):
        _check_range("the multiplier", max(scales[0]) * max(scales[1]) / to, 0, 2**30)
    elif isinstance(operator, Add):
        _check_range("twice the larger input scale over the output's", 2 * max(scales[0] + scales[1]) / to, 0, 2**20)
    elif isinstance(operator, (Mean, Quantize, Relu, Relu6)):
        _check_range("the input's scale over the output's", scales[0][0] / to, 0, 2**30)
    elif isinstance(operator, HardSwish):
        _check_range("the input's scale over the output's", scales[0][0] / to, 0, 2**7)
    elif isinstance(operator, Softmax):
        _check_range("beta times the input's scale", operator.beta * scales[0][0], 2**-26, 2**30)
    elif isinstance(operator, Logistic):
        _check_range("the input's scale", scales[0][0], 2**-28, 2**3)
    if isinstance(operator, (Softmax, Logistic)) and (to, output.quantization.zero_point) != (1 / 256, -128):
        raise QuantizationError(
            f"the output has scale {to:g} and zero point {output.quantization.zero_point}, expected 1/256 and -128"
        )


def _check_range(what: str, value: float, above: float, below: float) -> None:
    if not above < value < below:
        raise QuantizationError(f"{what} is {value:g}, expected more than {above:g} and less than {below:g}")
