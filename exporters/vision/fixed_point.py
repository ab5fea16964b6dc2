"""The fixed-point arithmetic of TFLite's reference kernels, for what is computed at export.

Integers are Python's; ``Qn`` has n bits after the point. Sources: ``quantization_util.cc`` and gemmlowp's
``fixedpoint.h``, with both roundings (``TFLITE_SINGLE_ROUNDING`` not set).
"""

from __future__ import annotations

import math
from typing import NamedTuple

INT32_MAX = 2**31 - 1


class Multiplier(NamedTuple):
    """``multiplier / 2**31 * 2**shift``; ``multiplier`` is in Q31."""

    multiplier: int
    shift: int


def quantize_multiplier(real: float) -> Multiplier:
    """The nearest multiplier to a real number that is not negative; 0 for what is less than ``2**-32``."""
    fraction, shift = math.frexp(real)
    multiplier = _round(fraction * 2**31)
    if multiplier == 2**31:
        multiplier, shift = 2**30, shift + 1
    return Multiplier(0, 0) if shift < -31 else Multiplier(multiplier, shift)


def mean_multiplier(ratio: float, count: int) -> Multiplier:
    """What ``MEAN`` scales a sum of ``count`` codes by: ``ratio / count``, of which as many bits as fit are kept."""
    multiplier, shift = quantize_multiplier(ratio)
    fraction = min(count.bit_length() - 1, 32, 31 + shift)
    return Multiplier(wrap((multiplier << fraction) // count), shift - fraction)


def _round(value: float) -> int:
    """Half away from zero."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def wrap(value: int, bits: int = 32) -> int:
    """A signed integer of so many bits: what is beyond them is lost."""
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def saturate(value: int, bits: int = 32) -> int:
    """The nearest signed integer of so many bits."""
    return max(-(1 << (bits - 1)), min(value, (1 << (bits - 1)) - 1))


def high_product(a: int, b: int, bits: int = 32) -> int:
    """The upper half of twice the product, ties upwards (``SaturatingRoundingDoublingHighMul``)."""
    return saturate((a * b + (1 << (bits - 2))) >> (bits - 1), bits)


def divide_by_power(value: int, exponent: int) -> int:
    """``value / 2**exponent``, ties away from zero (``RoundingDivideByPOT``)."""
    if exponent == 0:
        return value
    half = 1 << (exponent - 1)
    return (value + half - (value < 0)) >> exponent


def rescale(value: int, by: Multiplier) -> int:
    """``MultiplyByQuantizedMultiplier``."""
    left, right = max(by.shift, 0), max(-by.shift, 0)
    return divide_by_power(high_product(wrap(value << left), by.multiplier), right)


def exponential(value: int, integer_bits: int) -> int:
    """``exp(value)`` in Q31, for a ``value`` in Q(31 - integer_bits) that is not positive."""
    if value == 0:
        return INT32_MAX
    fraction_bits = 31 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    below = (value & (quarter - 1)) - quarter  # from -1/4 up to 0
    result = _exponential_of_quarter(saturate(below << integer_bits))
    remainder = below - value
    for exponent, factor in _EXPONENTIALS.items():
        if exponent < integer_bits and remainder >> (fraction_bits + exponent) & 1:
            result = high_product(result, factor)
    return result


# exp(-2**exponent) in Q31.
_EXPONENTIALS = {-2: 1672461947, -1: 1302514674, 0: 790015084, 1: 290630308, 2: 39332535, 3: 720401, 4: 242}


def _exponential_of_quarter(value: int) -> int:
    """``exp(value)`` for -1/4 <= value < 0, both in Q31: a Taylor series around -1/8."""
    at_centre, third = 1895147668, 715827883
    x = value + (1 << 28)
    x2 = high_product(x, x)
    x3, x4 = high_product(x2, x), high_product(x2, x2)
    higher = divide_by_power(high_product(divide_by_power(x4, 2) + x3, third) + x2, 1)
    return at_centre + high_product(at_centre, x + higher)


def reciprocal_of_one_plus(value: int) -> int:
    """``1 / (1 + value)`` for 0 <= value <= 1, both in Q31: three steps of Newton and Raphson in Q29."""
    half = (value + INT32_MAX + 1) >> 1
    x = 1515870810 + high_product(half, -1010580540)  # 48/17 - 32/17 * half
    for _ in range(3):
        x += saturate(high_product(x, (1 << 29) - high_product(half, x)) << 2)
    return saturate(x << 1)


def logistic(value: int, integer_bits: int) -> int:
    """``1 / (1 + exp(-value))`` in Q31, for a ``value`` in Q(31 - integer_bits)."""
    if value == 0:
        return 1 << 30
    positive = reciprocal_of_one_plus(exponential(-abs(value), integer_bits))
    return positive if value > 0 else INT32_MAX - positive
