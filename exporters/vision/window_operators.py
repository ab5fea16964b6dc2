"""The operators that slide a window over an image: convolutions and pooling, with padding in rows and columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from edgepipe.exporters.vision.operator_base import Activation, Operator, Shape, ShapeError, check_bias


class Pads(NamedTuple):
    """Rows and columns of zero points around an image."""

    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0


NO_PADS = Pads()


def same_pads(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Padding before and after one axis under TFLite's SAME: the output has ``ceil(size / stride)`` elements."""
    reach = (kernel - 1) * dilation + 1
    total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    return total // 2, total - total // 2


@dataclass(frozen=True)
class Window(Operator):
    """Base of the operators that slide a window of ``kernel`` rows and columns over an image."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pads: Pads = NO_PADS
    activation: Activation = Activation.NONE
    dilation: tuple[int, int] = (1, 1)

    def window_shape(self, image: Shape) -> tuple[int, int]:
        """Rows and columns of the output."""
        if len(image) != 4:
            raise ShapeError(f"the input has shape {image}: expected batch, rows, columns, channels")
        rows = _window_count(
            image[1] + self.pads.top + self.pads.bottom, self.kernel[0], self.stride[0], self.dilation[0]
        )
        columns = _window_count(
            image[2] + self.pads.left + self.pads.right, self.kernel[1], self.stride[1], self.dilation[1]
        )
        return rows, columns

    def same_pads(self, image: Shape) -> Pads:
        """What TFLite's SAME is for an image of this shape."""
        top, bottom = same_pads(image[1], self.kernel[0], self.stride[0], self.dilation[0])
        left, right = same_pads(image[2], self.kernel[1], self.stride[1], self.dilation[1])
        return Pads(top, left, bottom, right)

    def with_pads(self, pads: Pads) -> Window:
        """The same operator with other padding."""
        return replace(self, pads=pads)


def _window_count(padded: int, kernel: int, stride: int, dilation: int) -> int:
    reach = (kernel - 1) * dilation + 1
    if stride < 1 or padded < reach:
        raise ShapeError(f"a window of {reach} with stride {stride} does not fit into {padded}")
    return (padded - reach) // stride + 1


@dataclass(frozen=True)
class Conv2D(Window):
    """Inputs: image ``[N, H, W, I]``, filter ``[O, kh, kw, I]``, optionally bias ``[O]`` (int32)."""

    name = "CONV_2D"

    def output_shape(self, *inputs: Shape) -> Shape:
        image, weights = inputs[:2]
        rows, columns = self.window_shape(image)
        if len(weights) != 4 or weights[1:3] != self.kernel or weights[3] != image[3]:
            raise ShapeError(f"a filter of shape {weights} does not fit an image of shape {image}")
        check_bias(inputs, weights[0])
        return image[0], rows, columns, weights[0]

    def macs(self, inputs: Sequence[Shape], output: Shape) -> int:
        return math.prod(output) * math.prod(inputs[1][1:])


@dataclass(frozen=True)
class DepthwiseConv2D(Window):
    """Inputs: image ``[N, H, W, I]``, filter ``[1, kh, kw, I * multiplier]``, optionally bias (int32)."""

    name = "DEPTHWISE_CONV_2D"

    def output_shape(self, *inputs: Shape) -> Shape:
        image, weights = inputs[:2]
        rows, columns = self.window_shape(image)
        if len(weights) != 4 or weights[:3] != (1, *self.kernel) or weights[3] % image[3]:
            raise ShapeError(f"a depthwise filter of shape {weights} does not fit an image of shape {image}")
        check_bias(inputs, weights[3])
        return image[0], rows, columns, weights[3]

    def macs(self, inputs: Sequence[Shape], output: Shape) -> int:
        return math.prod(output) * math.prod(self.kernel)


@dataclass(frozen=True)
class AveragePool2D(Window):
    """Input: image ``[N, H, W, C]``. Only taps inside the image are counted."""

    name = "AVERAGE_POOL_2D"

    def output_shape(self, *inputs: Shape) -> Shape:
        rows, columns = self.window_shape(inputs[0])
        return inputs[0][0], rows, columns, inputs[0][3]


@dataclass(frozen=True)
class MaxPool2D(Window):
    """Input: image ``[N, H, W, C]``. Only taps inside the image are seen."""

    name = "MAX_POOL_2D"

    def output_shape(self, *inputs: Shape) -> Shape:
        rows, columns = self.window_shape(inputs[0])
        return inputs[0][0], rows, columns, inputs[0][3]
