"""How each operator of a .tflite file is read into the graph: one function each, found by the name in the schema."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edgepipe.exporters.vision.graph import Tensor
from edgepipe.exporters.vision.operators import (
    NO_PADS,
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
    Pads,
    Quantize,
    Relu,
    Relu6,
    Reshape,
    ResizeNearestNeighbor,
    Shape,
    ShapeError,
    Softmax,
    StridedSlice,
    same_pads,
)
from edgepipe.exporters.vision.tflite_file import FileTensor
from edgepipe.exporters.vision.tflite_tensors import label, read_integers

# The schema's numbers.
_ACTIVATIONS = {0: Activation.NONE, 1: Activation.RELU, 2: Activation.RELU_N1_TO_1, 3: Activation.RELU6}
_SAME, _VALID = 0, 1
# Windows, strides and dilations beyond this are larger than any image of a model that is taken.
_MAX_STEP = 1 << 15


class OperatorError(ValueError):
    """An operator's attributes are missing, damaged, or beyond what the graph can say."""


@dataclass(frozen=True, eq=False)
class Call:
    """What an operator is read from: its options, its inputs that are tensors, and its output.

    ``operands``: the inputs that are attributes in the graph (axes, sizes, paddings), as index and tensor of the file.
    """

    options: Any
    tensors: Sequence[Tensor]
    operands: Sequence[tuple[int, FileTensor]]
    output: Tensor

    @property
    def image(self) -> Shape:
        """Shape of the first input, an image ``[N, H, W, C]``."""
        shape = self.tensors[0].shape
        if len(shape) != 4:
            raise ShapeError(f"the input has shape {shape}: expected batch, rows, columns, channels")
        return shape

    @property
    def filter(self) -> Shape:
        """Shape of the second input, a filter of four axes."""
        shape = self.tensors[1].shape
        if len(shape) != 4:
            raise ShapeError(f"the filter has shape {shape}: expected four axes")
        return shape

    def operand(self, size: int | None = None, *, slot: int = 0) -> tuple[int, ...]:
        """An operand, of ``size`` integers."""
        if len(self.operands) <= slot:
            raise OperatorError(f"{len(self.operands)} of its operands: expected {slot + 1}")
        numbers = read_integers(*self.operands[slot])
        if size is not None and len(numbers) != size:
            raise OperatorError(f"{label(*self.operands[slot])} has {len(numbers)} numbers: expected {size}")
        return numbers


def _activation(options: Any) -> Activation:
    number = options.fusedActivationFunction
    if number not in _ACTIVATIONS:
        raise OperatorError(f"fused activation {number}: expected none, RELU, RELU_N1_TO_1 or RELU6")
    return _ACTIVATIONS[number]


def _pads(options: Any, image: Shape, kernel: tuple[int, int], dilation: tuple[int, int] = (1, 1)) -> Pads:
    """SAME or VALID spelled out; also sees that the window's numbers are sane."""
    numbers = (*kernel, options.strideH, options.strideW, *dilation)
    if not all(1 <= number <= _MAX_STEP for number in numbers):
        raise OperatorError(f"window, strides and dilations are {numbers}: expected 1 to {_MAX_STEP}")
    if options.padding == _VALID:
        return NO_PADS
    if options.padding != _SAME:
        raise OperatorError(f"padding {options.padding}: expected SAME or VALID")
    top, bottom = same_pads(image[1], kernel[0], options.strideH, dilation[0])
    left, right = same_pads(image[2], kernel[1], options.strideW, dilation[1])
    return Pads(top, left, bottom, right)


def _convolution(call: Call, kind: type[Conv2D] | type[DepthwiseConv2D]) -> Operator:
    options = call.options
    kernel = (call.filter[1], call.filter[2])
    dilation = (options.dilationHFactor, options.dilationWFactor)
    pads = _pads(options, call.image, kernel, dilation)
    return kind(kernel, (options.strideH, options.strideW), pads, _activation(options), dilation)


def _depthwise(call: Call) -> Operator:
    multiplier = call.options.depthMultiplier
    if call.filter[3] != call.image[3] * multiplier:
        raise OperatorError(f"{call.image[3]} channels times depth multiplier {multiplier} is not {call.filter[3]}")
    return _convolution(call, DepthwiseConv2D)


def _pool(call: Call, kind: type[AveragePool2D] | type[MaxPool2D]) -> Operator:
    options = call.options
    kernel = (options.filterHeight, options.filterWidth)
    return kind(kernel, (options.strideH, options.strideW), _pads(options, call.image, kernel), _activation(options))


def _fully_connected(call: Call) -> Operator:
    if call.options.weightsFormat:
        raise OperatorError("shuffled weights: expected them in order")
    return FullyConnected(_activation(call.options), bool(call.options.keepNumDims))


def _axis(number: int, rank: int) -> int:
    if not -rank <= number < rank:
        raise OperatorError(f"axis {number} of a tensor of {rank} axes")
    return number % rank


def _concatenation(call: Call) -> Operator:
    if _activation(call.options) is not Activation.NONE:
        raise OperatorError("a fused activation: expected none")
    return Concatenation(_axis(call.options.axis, len(call.output.shape)))


def _mean(call: Call) -> Operator:
    rank = len(call.tensors[0].shape)
    axes = {_axis(number, rank) for number in call.operand()}
    return Mean(tuple(sorted(axes)), bool(call.options.keepDims))


def _before_after(call: Call) -> tuple[tuple[int, int], ...]:
    numbers = call.operand(2 * len(call.output.shape))
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _pad_with_value(call: Call) -> Operator:
    (value,) = call.operand(1, slot=1)
    if not -128 <= value <= 127:
        raise OperatorError(f"it fills with {value}: expected -128 to 127")
    return Pad(_before_after(call), value)


def _reshape(call: Call) -> Operator:
    """The output's shape counts; where the file says it again, it must say the same (-1 stands for what is left)."""
    shape = call.output.shape
    again: Sequence[int] | None = None
    if call.options is not None and call.options.newShape is not None:
        again = call.options.newShape
    if call.operands and call.operands[0][1].content is not None:
        again = call.operand()
    if again is not None and not _says(again, shape):
        raise OperatorError(f"the new shape is {tuple(again)[:8]}, but the output's is {shape}")
    return Reshape(shape)


def _says(written: Sequence[int], shape: Shape) -> bool:
    return (
        len(written) == len(shape)
        and sum(number == -1 for number in written) <= 1
        and all(number in (-1, size) for number, size in zip(written, shape, strict=True))
    )


def _squeeze(call: Call) -> Operator:
    shape = call.tensors[0].shape
    dims = call.options.squeezeDims
    numbers = dims.tolist() if dims is not None else []
    gone = {_axis(number, len(shape)) for number in numbers} or {axis for axis, size in enumerate(shape) if size == 1}
    if any(shape[axis] != 1 for axis in gone):
        raise OperatorError(f"axes {sorted(gone)} of {shape} are not all of size 1")
    return Reshape(tuple(size for axis, size in enumerate(shape) if axis not in gone))


def _transpose(call: Call) -> Operator:
    shape = call.tensors[0].shape
    order = call.operand(len(shape))
    if sorted(order) != list(range(len(shape))):
        raise OperatorError(f"the order {order} does not name each of {len(shape)} axes once")
    moved = [axis for axis in order if shape[axis] > 1]
    if moved != sorted(moved):
        raise OperatorError(
            f"the order {order} moves data of shape {shape}: only axes of size 1 may move, so leave out permutations, "
            "and reshapes of images but for flattening all of one"
        )
    return Reshape(tuple(shape[axis] for axis in order))


def _resize(call: Call) -> Operator:
    rows, columns = call.operand(2)
    if call.options is None:
        return ResizeNearestNeighbor((rows, columns))
    return ResizeNearestNeighbor((rows, columns), bool(call.options.alignCorners), bool(call.options.halfPixelCenters))


def _strided_slice(call: Call) -> Operator:
    shape, options = call.tensors[0].shape, call.options
    begin, end, strides = (call.operand(len(shape), slot=slot) for slot in range(3))
    if set(strides) - {1} or options.ellipsisMask or options.newAxisMask or options.shrinkAxisMask:
        raise OperatorError(f"strides {strides} or masks that change the axes: expected strides of 1 and none")
    return StridedSlice(
        tuple(
            0 if options.beginMask >> axis & 1 else number + size * (number < 0)
            for axis, (number, size) in enumerate(zip(begin, shape, strict=True))
        ),
        tuple(
            size if options.endMask >> axis & 1 else min(number + size * (number < 0), size)
            for axis, (number, size) in enumerate(zip(end, shape, strict=True))
        ),
    )


def _softmax(call: Call) -> Operator:
    beta = call.options.beta
    if not (math.isfinite(beta) and beta > 0):
        raise OperatorError(f"beta is {beta}: expected a positive number")
    return Softmax(beta)


@dataclass(frozen=True)
class Reader:
    """How an operator is read.

    ``tensors``: the least and the most of its first inputs that are tensors in the graph. ``operands``: the most that
    may follow. ``needs_options``: whether it says nothing without its options.
    """

    read: Callable[[Call], Operator]
    tensors: tuple[int, int] = (1, 1)
    operands: int = 0
    needs_options: bool = False


READERS: dict[str, Reader] = {
    "ADD": Reader(lambda call: Add(_activation(call.options)), (2, 2), needs_options=True),
    "AVERAGE_POOL_2D": Reader(lambda call: _pool(call, AveragePool2D), needs_options=True),
    "CONCATENATION": Reader(_concatenation, (1, 64), needs_options=True),
    "CONV_2D": Reader(lambda call: _convolution(call, Conv2D), (2, 3), needs_options=True),
    "DEPTHWISE_CONV_2D": Reader(_depthwise, (2, 3), needs_options=True),
    "DEQUANTIZE": Reader(lambda call: Dequantize()),
    "FULLY_CONNECTED": Reader(_fully_connected, (2, 3), needs_options=True),
    "HARD_SWISH": Reader(lambda call: HardSwish()),
    "LOGISTIC": Reader(lambda call: Logistic()),
    "MAX_POOL_2D": Reader(lambda call: _pool(call, MaxPool2D), needs_options=True),
    "MEAN": Reader(_mean, operands=1, needs_options=True),
    "MUL": Reader(lambda call: Mul(_activation(call.options)), (2, 2), needs_options=True),
    "PAD": Reader(lambda call: Pad(_before_after(call)), operands=1),
    "PADV2": Reader(_pad_with_value, operands=2),
    "QUANTIZE": Reader(lambda call: Quantize()),
    "RELU": Reader(lambda call: Relu()),
    "RELU6": Reader(lambda call: Relu6()),
    "RESHAPE": Reader(_reshape, operands=1),
    "RESIZE_NEAREST_NEIGHBOR": Reader(_resize, operands=1),
    "SOFTMAX": Reader(_softmax, needs_options=True),
    "SQUEEZE": Reader(_squeeze, needs_options=True),
    "STRIDED_SLICE": Reader(_strided_slice, operands=3, needs_options=True),
    "TRANSPOSE": Reader(_transpose, operands=1),
}
