"""What each node of a graph gives to its C kernel: multipliers, ranges, offsets, tables, filters as they are read.

Formulas: the ``Prepare`` functions of TFLite Micro's reference kernels, in their order of operations and in their
types: some multiply or divide in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision import kernels, operators
from edgepipe.exporters.vision.convolution_parameters import (
    code_range,
    conv,
    depthwise,
    fully_connected,
    image_of,
    quantization_of,
    scale_of,
    window_of,
)
from edgepipe.exporters.vision.fixed_point import Multiplier, mean_multiplier, quantize_multiplier
from edgepipe.exporters.vision.graph import Graph, Node, Tensor
from edgepipe.exporters.vision.kernel_shapes import broadcast_strides, copy_box, merge_axes, nearest
from edgepipe.exporters.vision.lookup_tables import lookup_table, softmax_exponentials
from edgepipe.exporters.vision.operators import Activation

# ADD gives its operands so many bits of fraction.
_SUM_FRACTION = 20
# The sum of a row's exponentials must stay below 2**12.
_SOFTMAX_COLUMNS = 4095


def kernel_calls(graph: Graph, node: Node) -> Sequence[kernels.Kernel]:
    """The calls that compute a node: one, or for a concatenation one for each input.

    Activations go to the kernel in the node's order. A fully connected layer is a `Pointwise` kernel, what depends on
    one code only is a `Lookup`. Constants that an elementwise node adds or multiplies by are given as activations are.

    Raises:
        UnsupportedModel: no kernel computes it; the message names operator and tensor.
    """
    inputs = [graph.tensors[index] for index in node.inputs]
    output = graph.tensors[node.output]
    try:
        return list(_calls(node.operator, inputs, output))
    except (_NoKernel, operators.ShapeError) as reason:
        raise UnsupportedModel(f"{node.operator.name}, tensor {node.output} ({output.name}): {reason}") from None


def residual_parameters(graph: Graph, convolution: Node, add: Node) -> kernels.Residual:
    """What a convolution needs to add the other operand of ``add`` to its output, pixel by pixel."""
    (other,) = (index for index in add.inputs if index != convolution.output)
    operands = [graph.tensors[convolution.output], graph.tensors[other]]
    output = graph.tensors[add.output]
    assert isinstance(add.operator, operators.Add)
    shape = output.shape
    _, _, (_, row, column, channel) = broadcast_strides(shape, shape, operands[1].shape, merge=False)
    try:
        return kernels.Residual(shape[2], row, column, channel, _sum(add.operator, operands, output))
    except _NoKernel as reason:
        raise UnsupportedModel(f"{add.operator.name}, tensor {add.output} ({output.name}): {reason}") from None


class _NoKernel(Exception):
    """Why."""


def _calls(operator: operators.Operator, inputs: Sequence[Tensor], output: Tensor) -> Iterator[kernels.Kernel]:
    for tensor in (*inputs, output):
        if tensor.dtype == "float32":
            raise _NoKernel(f"{tensor.name!r} is float32: expected int8 or uint8, converted on the host")
    match operator:
        case operators.Reshape():  # Nothing to do, if the output lies where the input does.
            yield copy_box((output.nbytes,), (0,), (output.nbytes,), (0,), (output.nbytes,))
        case operators.Concatenation(activation=activation) if activation is not Activation.NONE:
            raise _NoKernel(f"has a fused {activation.value}: expected none")
        case operators.Concatenation(axis=axis):
            start = 0
            for part in inputs:
                size = part.shape[axis]
                begin = tuple(start if other == axis else 0 for other in range(len(output.shape)))
                yield copy_box(part.shape, (0,) * len(begin), output.shape, begin, part.shape)
                start += size
        case _:
            yield _BUILDERS[type(operator)](operator, inputs, output)


def _pool(
    operator: operators.AveragePool2D | operators.MaxPool2D, inputs: Sequence[Tensor], output: Tensor
) -> kernels.Kernel:
    if isinstance(operator, operators.MaxPool2D):
        return kernels.MaxPool(image_of(inputs[0]), window_of(operator), *code_range(operator, output))
    (_, rows, columns, _), pads = inputs[0].shape, operator.pads
    empty = [
        size
        for size, kernel, stride, before, count in (
            (rows, operator.kernel[0], operator.stride[0], pads.top, output.shape[1]),
            (columns, operator.kernel[1], operator.stride[1], pads.left, output.shape[2]),
        )
        if before >= kernel or (count - 1) * stride - before >= size
    ]
    if empty:
        raise _NoKernel(f"averages over a window outside the image: pads {tuple(pads)} of a kernel {operator.kernel}")
    return kernels.AveragePool(image_of(inputs[0]), window_of(operator), *code_range(operator, output))


def _sum(operator: operators.Add, inputs: Sequence[Tensor], output: Tensor) -> kernels.Sum:
    twice_larger = 2 * max(map(scale_of, inputs))
    first, second = (
        kernels.Term(quantization_of(tensor).zero_point, *_smaller_than_one(scale_of(tensor) / twice_larger))
        for tensor in inputs
    )
    to_output = _smaller_than_one(twice_larger / ((1 << _SUM_FRACTION) * scale_of(output)))
    return kernels.Sum(first, second, *to_output, quantization_of(output).zero_point, *code_range(operator, output))


def _smaller_than_one(real: float) -> Multiplier:
    multiplier = quantize_multiplier(real)
    if multiplier.shift > 0:
        raise _NoKernel(f"the ratio of its scales is {real:g}: expected less than 1")
    return multiplier


def _add(operator: operators.Add, inputs: Sequence[Tensor], output: Tensor) -> kernels.Kernel:
    return kernels.Add(*_broadcast(inputs, output), _sum(operator, inputs, output))


def _mul(operator: operators.Mul, inputs: Sequence[Tensor], output: Tensor) -> kernels.Kernel:
    first_zero_point, second_zero_point = (quantization_of(tensor).zero_point for tensor in inputs)
    return kernels.Mul(
        *_broadcast(inputs, output),
        first_zero_point,
        second_zero_point,
        *quantize_multiplier(scale_of(inputs[0]) * scale_of(inputs[1]) / scale_of(output)),
        quantization_of(output).zero_point,
        *code_range(operator, output),
    )


def _broadcast(inputs: Sequence[Tensor], output: Tensor) -> tuple[kernels.Four, kernels.Four, kernels.Four]:
    size, first, second = broadcast_strides(output.shape, *(tensor.shape for tensor in inputs))
    if len(size) > 4:
        raise _NoKernel("more than four axes to broadcast over")
    return size, first, second  # type: ignore[return-value]


def _mean(operator: operators.Mean, inputs: Sequence[Tensor], output: Tensor) -> kernels.Kernel:
    source = inputs[0]
    kept, averaged = merge_axes(source.shape, operator.axes)
    if len(kept) > 2 or len(averaged) > 2:
        raise _NoKernel(f"averages over axes {operator.axes} of a tensor of shape {source.shape}")
    kept, averaged = ([(1, 0)] * (2 - len(each)) + each for each in (kept, averaged))
    count = math.prod(size for size, _ in averaged)
    return kernels.Mean(
        *_columns(kept),
        *_columns(averaged),
        -quantization_of(source).zero_point * count,
        *mean_multiplier(scale_of(source) / scale_of(output), count),
        quantization_of(output).zero_point,
        *code_range(operator, output),
    )


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[kernels.Two, kernels.Two]:
    sizes, strides = zip(*pairs, strict=True)
    return sizes, strides


def _pad(operator: operators.Pad, inputs: Sequence[Tensor], output: Tensor) -> kernels.Kernel:
    begin = tuple(before for before, _ in operator.before_after)
    inside = copy_box(inputs[0].shape, (0,) * len(begin), output.shape, begin, inputs[0].shape)
    value = quantization_of(output).zero_point if operator.value is None else operator.value
    return kernels.Pad(math.prod(output.shape), value, inside)


def _slice(operator: operators.StridedSlice, inputs: Sequence[Tensor], output: Tensor) -> kernels.Kernel:
    return copy_box(inputs[0].shape, operator.begin, output.shape, (0,) * len(operator.begin), output.shape)


def _resize(operator: operators.ResizeNearestNeighbor, inputs: Sequence[Tensor], output: Tensor) -> kernels.Kernel:
    (_, rows, columns, channels), (new_rows, new_columns) = inputs[0].shape, operator.size
    sources = [nearest(operator, size, new) for size, new in ((rows, new_rows), (columns, new_columns))]
    return kernels.ResizeNearest(columns, channels, new_rows, new_columns, *sources)


def _softmax(operator: operators.Softmax, inputs: Sequence[Tensor], output: Tensor) -> kernels.Kernel:
    columns = output.shape[-1]
    if columns > _SOFTMAX_COLUMNS:
        raise _NoKernel(f"normalises {columns} elements: expected at most {_SOFTMAX_COLUMNS}")
    exponentials = softmax_exponentials(quantization_of(inputs[0]), operator.beta)
    return kernels.Softmax(math.prod(output.shape) // columns, columns, exponentials)


def _lookup(operator: operators.Operator, inputs: Sequence[Tensor], output: Tensor) -> kernels.Kernel:
    return kernels.Lookup(math.prod(output.shape), lookup_table(operator, inputs[0], output))


_BUILDERS: dict[type[operators.Operator], Callable[..., kernels.Kernel]] = {
    operators.Conv2D: conv,
    operators.DepthwiseConv2D: depthwise,
    operators.FullyConnected: fully_connected,
    operators.AveragePool2D: _pool,
    operators.MaxPool2D: _pool,
    operators.Add: _add,
    operators.Mul: _mul,
    operators.Mean: _mean,
    operators.Pad: _pad,
    operators.StridedSlice: _slice,
    operators.ResizeNearestNeighbor: _resize,
    operators.Softmax: _softmax,
    operators.Logistic: _lookup,
    operators.HardSwish: _lookup,
    operators.Relu: _lookup,
    operators.Relu6: _lookup,
    operators.Quantize: _lookup,
}
