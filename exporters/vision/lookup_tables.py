"""Functions of one code as tables of 256 codes: what TFLite Micro's kernels would compute for each of them.

A microcontroller then spends a load on an element, whatever the function.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from edgepipe.exporters.vision.activation_range import activation_range
from edgepipe.exporters.vision.fixed_point import (
    divide_by_power,
    exponential,
    high_product,
    logistic,
    quantize_multiplier,
    rescale,
    saturate,
    wrap,
)
from edgepipe.exporters.vision.graph import Quantization, Tensor
from edgepipe.exporters.vision.operators import (
    Activation,
    HardSwish,
    Logistic,
    Operator,
    Quantize,
    Relu,
    Relu6,
)

# Integer bits of what LOGISTIC and SOFTMAX exponentiate.
_LOGISTIC_BITS = 4
_SOFTMAX_BITS = 5


def lookup_table(operator: Operator, source: Tensor, output: Tensor) -> np.ndarray:
    """int8 ``[256]``: the byte of the output for each byte of the input; either may be int8 or uint8."""
    to = _quantization(output)
    match operator:
        case Quantize():
            of = _requantized(_quantization(source), to, *activation_range(Activation.NONE, to, output.dtype))
        case Relu():
            of = _requantized(_quantization(source), to, *activation_range(Activation.RELU, to, output.dtype))
        case Relu6():
            of = _clamped(*activation_range(Activation.RELU6, _quantization(source), output.dtype))
        case Logistic():
            of = _logistic(_quantization(source))
        case HardSwish():
            of = _hard_swish(_quantization(source), to)
        case _:
            raise TypeError(operator.name)
    codes = np.arange(256, dtype=np.uint8).view(source.dtype)
    return np.array([of(int(code)) for code in codes]).astype(output.dtype).view(np.int8)


def _quantization(tensor: Tensor) -> Quantization:
    assert tensor.quantization is not None
    return tensor.quantization


def _requantized(source: Quantization, output: Quantization, lowest: int, highest: int) -> Callable[[int], int]:
    multiplier = quantize_multiplier(float(np.float32(source.scale) / np.float32(output.scale)))

    def of(code: int) -> int:
        return max(lowest, min(rescale(code - source.zero_point, multiplier) + output.zero_point, highest))

    return of


def _clamped(lowest: int, highest: int) -> Callable[[int], int]:
    return lambda code: max(lowest, min(code, highest))


def _logistic(source: Quantization) -> Callable[[int], int]:
    multiplier = quantize_multiplier(source.scale * 2 ** (31 - _LOGISTIC_BITS))
    radius = input_radius(_LOGISTIC_BITS, multiplier.shift)

    def of(code: int) -> int:
        value = code - source.zero_point
        if abs(value) >= radius:
            return 127 if value > 0 else -128
        share = logistic(rescale(value, multiplier), _LOGISTIC_BITS)
        return saturate(divide_by_power(share, 31 - 8) - 128, 8)

    return of


def input_radius(integer_bits: int, shift: int) -> int:
    """How far from zero an input may be before its rescaled value overflows (``CalculateInputRadius``)."""
    return math.floor(((1 << integer_bits) - 1) * (1 << (31 - integer_bits)) / 2**shift)


def _hard_swish(source: Quantization, output: Quantization) -> Callable[[int], int]:
    """In int16: ``x * relu6(x + 3) / 6``, where the second factor is kept as ``(x / 3 + 1) / 2`` in Q15."""
    fine_scale = np.float32(1 / 128) * np.float32(source.scale)
    to_output = quantize_multiplier(float(fine_scale / np.float32(output.scale)))
    to_reluish = quantize_multiplier(float(fine_scale / np.float32(3 / 32768)))
    output_factor, reluish_factor = _upper_half(to_output.multiplier), _upper_half(to_reluish.multiplier)

    def of(code: int) -> int:
        fine = wrap((code - source.zero_point) * 128, 16)
        scaled = high_product(fine, output_factor, 16)
        reluish = fine
        if to_reluish.shift > 0:
            reluish = saturate(reluish << (to_reluish.shift - 1), 16)
        reluish = high_product(reluish, reluish_factor, 16)
        reluish = saturate(reluish << 1, 16) if to_reluish.shift > 0 else divide_by_power(reluish, -to_reluish.shift)
        reluish = (reluish + (1 << 15)) >> 1
        product = int(saturate(reluish * scaled, 32) / (1 << 15))  # truncates
        return saturate(divide_by_power(saturate(product, 16), -to_output.shift) + output.zero_point, 8)

    return of


def _upper_half(multiplier: int) -> int:
    """A multiplier in Q15."""
    return min((multiplier + (1 << 15)) >> 16, 2**15 - 1)


def softmax_exponentials(source: Quantization, beta: float) -> np.ndarray:
    """int32 ``[256]``, Q31: ``exp(-beta * scale * distance)``; 0 where TFLite leaves an element out."""
    real = min(beta * source.scale * 2 ** (31 - _SOFTMAX_BITS), 2.0**31 - 1)
    multiplier = quantize_multiplier(real)
    furthest = input_radius(_SOFTMAX_BITS, multiplier.shift)
    return np.array(
        [
            exponential(rescale(-distance, multiplier), _SOFTMAX_BITS) if distance <= furthest else 0
            for distance in range(256)
        ],
        np.int32,
    )
