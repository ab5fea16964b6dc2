"""What engines that round once can do to give the codes of TFLite's reference, which rounds twice."""

from __future__ import annotations

import numpy as np

from edgepipe.exporters.vision.activation_range import activation_range
from edgepipe.exporters.vision.graph import Tensor
from edgepipe.exporters.vision.operators import Operator, Window


def bias_lift(operator: Operator, multipliers: np.ndarray, output: Tensor) -> np.ndarray:
    """What to add to the bias of a convolution or a fully connected layer, int32: 0 or 1 for each channel.

    TFLite multiplies a sum by 1/2 to 1 and rounds; then it shifts and rounds again, halves away from the zero point. So
    it lifts sums that lack 1/2 to 1 of a half, too. With 1 added to it, a sum that is rounded once becomes another code
    2.6 times less often than without (multipliers spread evenly on a logarithmic scale). Below the zero point all is
    the other way round: channels that reach there are left alone, as are multipliers that need no second rounding.

    Args:
        operator: what gives ``output``. LiteRT's fully connected layers round once.
        multipliers: float ``[O]`` or ``[1]``, the step of a sum over that of the output.
        output: of one scale.
    """
    if not isinstance(operator, Window) or output.quantization is None:
        return np.zeros(multipliers.shape, np.int32)
    lowest, _ = activation_range(operator.activation, output.quantization, output.dtype)
    return ((multipliers < 0.5) & (lowest >= output.quantization.zero_point)).astype(np.int32)
