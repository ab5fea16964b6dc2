"""The codes that a fused activation lets through."""

from __future__ import annotations

import numpy as np

from edgepipe.exporters.vision.graph import Quantization
from edgepipe.exporters.vision.operators import Activation

# Real bounds of each activation.
BOUNDS: dict[Activation, tuple[float | None, float | None]] = {
    Activation.NONE: (None, None),
    Activation.RELU: (0.0, None),
    Activation.RELU6: (0.0, 6.0),
    Activation.RELU_N1_TO_1: (-1.0, 1.0),
}


def activation_range(activation: Activation, quantization: Quantization, dtype: str) -> tuple[int, int]:
    """Lowest and highest code of an int8 or uint8 output after ``activation``.

    As TFLite's ``CalculateActivationRangeQuantized``: a bound's code is its quotient by the scale in float32, rounded
    half away from zero, plus the zero point.
    """
    type_range = np.iinfo(dtype)

    def code(bound: float) -> int:
        quotient = float(np.float32(bound) / np.float32(quantization.scale))
        return quantization.zero_point + int(np.copysign(np.floor(abs(quotient) + 0.5), quotient))

    low, high = BOUNDS[activation]
    return (
        type_range.min if low is None else max(type_range.min, code(low)),
        type_range.max if high is None else min(type_range.max, code(high)),
    )
