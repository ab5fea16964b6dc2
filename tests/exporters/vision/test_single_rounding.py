"""One rounding of lifted sums against TFLite's two."""

from __future__ import annotations

import numpy as np
import pytest

from edgepipe.exporters.vision.fixed_point import quantize_multiplier, rescale
from edgepipe.exporters.vision.graph import Quantization, Tensor
from edgepipe.exporters.vision.operators import Activation, Conv2D, FullyConnected, Operator
from edgepipe.exporters.vision.single_rounding import bias_lift

CONV = Conv2D((1, 1))


def output(zero_point: int) -> Tensor:
    return Tensor("output", (1, 4, 4, 1), "int8", Quantization((0.05,), (zero_point,)))


def test_lifted_sums_are_far_more_often_those_of_two_roundings() -> None:
    generator = np.random.default_rng(0)
    multipliers = 2 ** generator.uniform(-9, -3, 60)
    lift = bias_lift(CONV, multipliers, output(-128))
    plain = lifted = 0
    for multiplier, one in zip(multipliers, lift, strict=True):
        sums = generator.integers(0, int(255 / multiplier), 3000)
        twice = np.array([rescale(int(value), quantize_multiplier(multiplier)) for value in sums])
        plain += np.count_nonzero(np.rint(sums * multiplier) != twice)
        lifted += np.count_nonzero(np.rint((sums + one) * multiplier) != twice)
    assert plain > 1000
    assert plain / lifted == pytest.approx(2.6, abs=0.5)


@pytest.mark.parametrize(
    ("operator", "zero_point", "multiplier", "expected"),
    [
        (CONV, -128, 0.01, 1),
        (CONV, -128, 0.6, 0),  # no second rounding
        (CONV, 3, 0.01, 0),  # codes below the zero point
        (Conv2D((1, 1), activation=Activation.RELU), 3, 0.01, 1),
        (Conv2D((1, 1), activation=Activation.RELU_N1_TO_1), 3, 0.01, 0),
        (FullyConnected(), -128, 0.01, 0),
    ],
)
def test_only_what_is_lifted_there_is_lifted(
    operator: Operator, zero_point: int, multiplier: float, expected: int
) -> None:
    lift = bias_lift(operator, np.array([multiplier, 0.7]), output(zero_point))
    np.testing.assert_array_equal(lift, [expected, 0])
    assert lift.dtype == np.int32
