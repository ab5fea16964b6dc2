"""The operators of an int8 graph: TFLite's, with padding spelled out in rows and columns.

Activations are NHWC. An operator knows its attributes, the shape of its output, and its multiply-accumulates; what its
inputs are is in its docstring, and the arithmetic is that of TFLite Micro's reference kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgepipe.exporters.vision.operator_base import Activation, Operator, Shape, ShapeError, check_bias
from edgepipe.exporters.vision.window_operators import (
    NO_PADS,
    AveragePool2D,
    Conv2D,
    DepthwiseConv2D,
    MaxPool2D,
    Pads,
    Window,
    same_pads,
)

__all__ = [
    "NO_PADS",
    "Activation",
    "Add",
    "AveragePool2D",
    "Concatenation",
    "Conv2D",
    "DepthwiseConv2D",
    "Dequantize",
    "FullyConnected",
    "HardSwish",
    "Logistic",
    "MaxPool2D",
    "Mean",
    "Mul",
    "Operator",
    "Pad",
    "Pads",
    "Quantize",
    "Relu",
    "Relu6",
    "Reshape",
    "ResizeNearestNeighbor",
    "Shape",
    "ShapeError",
    "Softmax",
    "StridedSlice",
    "Window",
    "same_pads",
]


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
        check_bias(inputs, weights[0])
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
