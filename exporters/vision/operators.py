"""The operators of an int8 graph: TFLite's, with padding spelled out in rows and columns.

Activations are NHWC. An operator knows its attributes, the shape of its output, and its multiply-accumulates; what its
inputs are is in its docstring, and the arithmetic is that of TFLite Micro's reference kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

Shape = tuple[int, ...]


class Activation(Enum):
    """Clamp fused into an operator, named as in TFLite's schema."""

    NONE = "NONE"
    RELU = "RELU"
    RELU_N1_TO_1 = "RELU_N1_TO_1"
    RELU6 = "RELU6"


class Pads(NamedTuple):
    """Rows and columns of zero points around an image."""

    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0


NO_PADS = Pads()


class ShapeError(ValueError):
    """An operator cannot take inputs of these shapes."""


def same_pads(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Padding before and after one axis under TFLite's SAME: the output has ``ceil(size / stride)`` elements."""
    reach = (kernel - 1) * dilation + 1
    total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    return total // 2, total - total // 2


@dataclass(frozen=True)
class Operator:
    """Base of all operators."""

    def output_shape(self, *inputs: Shape) -> Shape:
        """Shape of the output for inputs of these shapes.

        Raises:
            ShapeError: the operator cannot take them.
        """
        raise NotImplementedError

    def macs(self, inputs: Sequence[Shape], output: Shape) -> int:
        """Multiply-accumulates that an output of this shape costs."""
        return 0

    @property
    def name(self) -> str:
        """The operator's name in TFLite's schema."""
        raise NotImplementedError


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
        _check_bias(inputs, weights[0])
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
        _check_bias(inputs, weights[3])
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


def _check_bias(inputs: Sequence[Shape], channels: int) -> None:
    if len(inputs) > 2 and inputs[2] != (channels,):
        raise ShapeError(f"the bias has shape {inputs[2]}: expected {(channels,)}")


@dataclass(frozen=True)
class FullyConnected(Operator):
    """Inputs: ``[..., I]`` (any shape whose size is a multiple of I), weights ``[O, I]``, optionally bias ``[O]``."""

    activation: Activation = Activation.NONE
    keep_dims: bool = False

    name = "FULLY_CONNECTED"

    def output_shape(self, *inputs: Shape) -> Shape:
        data, weights = inputs[:2]
        if len(weights) != 2 or not weights[1] or math.prod(data) % weights[1]:
            raise ShapeError(f"weights of shape {weights} do not fit an input of shape {data}")
        _check_bias(inputs, weights[0])
        if self.keep_dims:
            if data[-1] != weights[1]:
                raise ShapeError(f"weights of shape {weights} do not fit an input of shape {data}")
            return *data[:-1], weights[0]
        return math.prod(data) // weights[1], weights[0]

    def macs(self, inputs: Sequence[Shape], output: Shape) -> int:
        return math.prod(output) * inputs[1][1]


@dataclass(frozen=True)
class _Binary(Operator):
    activation: Activation = Activation.NONE

    def output_shape(self, *inputs: Shape) -> Shape:
        if len(inputs) != 2:
            raise ShapeError(f"{len(inputs)} inputs: expected 2")
        length = max(map(len, inputs))
        first, second = ((1,) * (length - len(shape)) + shape for shape in inputs)
        if any(a != b and 1 not in (a, b) for a, b in zip(first, second, strict=True)):
            raise ShapeError(f"shapes {inputs[0]} and {inputs[1]} do not match")
        return tuple(b if a == 1 else a for a, b in zip(first, second, strict=True))


@dataclass(frozen=True)
class Add(_Binary):
    """Inputs: two tensors, broadcast against each other."""

    name = "ADD"


@dataclass(frozen=True)
class Mul(_Binary):
    """Inputs: two tensors, broadcast against each other."""

    name = "MUL"


@dataclass(frozen=True)
class Concatenation(Operator):
    """Inputs: tensors that differ along ``axis`` (not negative) only, all of the output's quantisation."""

    axis: int
    activation: Activation = Activation.NONE

    name = "CONCATENATION"

    def output_shape(self, *inputs: Shape) -> Shape:
        first = inputs[0]
        if not 0 <= self.axis < len(first):
            raise ShapeError(f"axis {self.axis} of a tensor of shape {first}")
        others = {shape[: self.axis] + shape[self.axis + 1 :] for shape in inputs}
        if len(others) != 1 or {len(shape) for shape in inputs} != {len(first)}:
            raise ShapeError(f"shapes {', '.join(map(str, inputs))} cannot be joined along axis {self.axis}")
        return *first[: self.axis], sum(shape[self.axis] for shape in inputs), *first[self.axis + 1 :]


@dataclass(frozen=True)
class Mean(Operator):
    """Input: a tensor; averages over ``axes`` (sorted, not negative)."""

    axes: tuple[int, ...]
    keep_dims: bool = False

    name = "MEAN"

    def output_shape(self, *inputs: Shape) -> Shape:
        shape = inputs[0]
        if not all(0 <= axis < len(shape) for axis in self.axes):
            raise ShapeError(f"axes {self.axes} of a tensor of shape {shape}")
        if self.keep_dims:
            return tuple(1 if axis in self.axes else size for axis, size in enumerate(shape))
        return tuple(size for axis, size in enumerate(shape) if axis not in self.axes)


@dataclass(frozen=True)
class Pad(Operator):
    """Input: a tensor; adds ``before_after[axis]`` elements of the output's zero point, or of the code ``value``."""

    before_after: tuple[tuple[int, int], ...]
    value: int | None = None

    @property
    def name(self) -> str:
        return "PAD" if self.value is None else "PADV2"

    def output_shape(self, *inputs: Shape) -> Shape:
        if len(self.before_after) != len(inputs[0]) or min(map(min, self.before_after)) < 0:
            raise ShapeError(f"padding {self.before_after} of a tensor of shape {inputs[0]}")
        return tuple(size + sum(both) for size, both in zip(inputs[0], self.before_after, strict=True))


@dataclass(frozen=True)
class Reshape(Operator):
    """Input: a tensor; the same elements as ``shape``. TFLite's SQUEEZE is read as one of these."""

    shape: Shape

    name = "RESHAPE"

    def output_shape(self, *inputs: Shape) -> Shape:
        if math.prod(self.shape) != math.prod(inputs[0]):
            raise ShapeError(f"a tensor of shape {inputs[0]} has not the elements of {self.shape}")
        return self.shape


@dataclass(frozen=True)
class StridedSlice(Operator):
    """Input: a tensor; elements ``begin`` (included) to ``end`` (excluded) of every axis. Crops a patch's window."""

    begin: tuple[int, ...]
    end: tuple[int, ...]

    name = "STRIDED_SLICE"

    def output_shape(self, *inputs: Shape) -> Shape:
        shape = inputs[0]
        fits = len(self.begin) == len(self.end) == len(shape) and all(
            0 <= begin < end <= size for begin, end, size in zip(self.begin, self.end, shape, strict=True)
        )
        if not fits:
            raise ShapeError(f"slice {self.begin} to {self.end} of a tensor of shape {shape}")
        return tuple(end - begin for begin, end in zip(self.begin, self.end, strict=True))


@dataclass(frozen=True)
class ResizeNearestNeighbor(Operator):
    """Input: image ``[N, H, W, C]``; the output has ``size`` rows and columns."""

    size: tuple[int, int]
    align_corners: bool = False
    half_pixel_centers: bool = False

    name = "RESIZE_NEAREST_NEIGHBOR"

    def output_shape(self, *inputs: Shape) -> Shape:
        if len(inputs[0]) != 4 or min(self.size) < 1:
            raise ShapeError(f"resizing a tensor of shape {inputs[0]} to {self.size}")
        return inputs[0][0], *self.size, inputs[0][3]


@dataclass(frozen=True)
class _Pointwise(Operator):
    def output_shape(self, *inputs: Shape) -> Shape:
        return inputs[0]


@dataclass(frozen=True)
class Relu(_Pointwise):
    """Input: a tensor."""

    name = "RELU"


@dataclass(frozen=True)
class Relu6(_Pointwise):
    """Input: a tensor of the output's quantisation (TFLite Micro clamps codes and does not rescale them)."""

    name = "RELU6"


@dataclass(frozen=True)
class Logistic(_Pointwise):
    """Input: a tensor. The output's scale is 1/256, its zero point -128."""

    name = "LOGISTIC"


@dataclass(frozen=True)
class HardSwish(_Pointwise):
    """Input: a tensor."""

    name = "HARD_SWISH"


@dataclass(frozen=True)
class Softmax(_Pointwise):
    """Input: a tensor, normalised along its last axis. The output's scale is 1/256, its zero point -128."""

    beta: float = 1.0

    name = "SOFTMAX"


@dataclass(frozen=True)
class Quantize(_Pointwise):
    """Input: a tensor of one quantisation (or float32); the output is of another."""

    name = "QUANTIZE"


@dataclass(frozen=True)
class Dequantize(_Pointwise):
    """Input: a quantised tensor; the output is float32."""

    name = "DEQUANTIZE"
