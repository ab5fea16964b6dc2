"""How TFLite spells an operator: its options, the constants that it takes as further inputs, its version."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra, UnsupportedModel
from edgepipe.exporters.vision.graph import Quantization, Tensor
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
    MaxPool2D,
    Mean,
    Mul,
    Operator,
    Pad,
    Quantize,
    Reshape,
    ResizeNearestNeighbor,
    Softmax,
    StridedSlice,
    Window,
)

try:
    from ai_edge_litert import schema_py_generated as schema
except ImportError as missing:
    raise MissingExtra("ai-edge-litert", "export") from missing


def options(operator: Operator, inputs: Sequence[Tensor]) -> Any | None:
    """The operator's table of options in TFLite's schema; None for operators that have none.

    Raises:
        UnsupportedModel: TFLite's kernels do not take these attributes.
    """
    match operator:
        case Conv2D():
            return schema.Conv2DOptionsT(**_window(operator, inputs[0]), **_dilation(operator))
        case DepthwiseConv2D():
            multiplier = inputs[1].shape[3] // inputs[0].shape[3]
            return schema.DepthwiseConv2DOptionsT(
                **_window(operator, inputs[0]), **_dilation(operator), depthMultiplier=multiplier
            )
        case AveragePool2D() | MaxPool2D():
            rows, columns = operator.kernel
            return schema.Pool2DOptionsT(**_window(operator, inputs[0]), filterHeight=rows, filterWidth=columns)
        case FullyConnected():
            return schema.FullyConnectedOptionsT(**_fused(operator.activation), keepNumDims=operator.keep_dims)
        case Add():
            return schema.AddOptionsT(**_fused(operator.activation))
        case Mul():
            return schema.MulOptionsT(**_fused(operator.activation))
        case Concatenation():
            if operator.activation is not Activation.NONE:
                raise UnsupportedModel(f"CONCATENATION with a fused {operator.activation.value}: expected none")
            return schema.ConcatenationOptionsT(axis=operator.axis)
        case Mean():
            return schema.ReducerOptionsT(keepDims=operator.keep_dims)
        case Pad(value=None):
            return schema.PadOptionsT()
        case Pad():
            return schema.PadV2OptionsT()
        case Reshape():
            return schema.ReshapeOptionsT(newShape=list(operator.shape))
        case StridedSlice():
            return schema.StridedSliceOptionsT()
        case ResizeNearestNeighbor():
            return schema.ResizeNearestNeighborOptionsT(operator.align_corners, operator.half_pixel_centers)
        case Softmax():
            return schema.SoftmaxOptionsT(operator.beta)
        case HardSwish():
            return schema.HardSwishOptionsT()
        case Quantize():
            return schema.QuantizeOptionsT()
        case Dequantize():
            return schema.DequantizeOptionsT()
    return None


def parameters(operator: Operator, inputs: Sequence[Tensor], output: Tensor) -> list[Tensor]:
    """Constants that TFLite takes as inputs after the others: attributes, and the bias that LiteRT's kernels demand."""
    match operator:
        case Conv2D() | DepthwiseConv2D() if len(inputs) == 2:
            return [_zero_bias(inputs[0], inputs[1], output.shape[3])]
        case Pad(value=None):
            return [_indices("pads", operator.before_after)]
        case Pad():
            value = np.array([operator.value], output.dtype)
            return [
                _indices("pads", operator.before_after),
                Tensor("pad_value", value.shape, output.dtype, output.quantization, value),
            ]
        case Reshape():
            return [_indices("shape", operator.shape)]
        case Mean():
            return [_indices("axes", operator.axes)]
        case StridedSlice():
            strides = (1,) * len(operator.begin)
            return [_indices("begin", operator.begin), _indices("end", operator.end), _indices("strides", strides)]
        case ResizeNearestNeighbor():
            return [_indices("size", operator.size)]
    return []


def version(operator: Operator, inputs: Sequence[Tensor], output: Tensor) -> int:
    """The version that TFLite's converter gives the operator (its ``op_version.cc``)."""
    signed = inputs[0].dtype == "int8"
    match operator:
        case Conv2D():
            return 3 if signed else 1
        case DepthwiseConv2D():
            return 3 if signed else 1 if operator.dilation == (1, 1) else 2
        case FullyConnected():
            return 6 if len(inputs) == 2 else 5 if operator.keep_dims else 4 if signed else 1
        case Mul() if _rescale(inputs, output) >= 1:
            return 3
        case Pad() | StridedSlice() if len(inputs[0].shape) > 4:
            return 4
        case ResizeNearestNeighbor() if operator.align_corners or operator.half_pixel_centers:
            return 3
        case Quantize() | Reshape() | HardSwish():
            return 1
    return 2 if signed else 1


def _window(operator: Window, image: Tensor) -> dict[str, int]:
    assert operator.pads in (NO_PADS, operator.same_pads(image.shape)), "lower_pads comes before"
    padding = schema.Padding.VALID if operator.pads == NO_PADS else schema.Padding.SAME
    rows, columns = operator.stride
    return {"padding": padding, "strideH": rows, "strideW": columns, **_fused(operator.activation)}


def _dilation(operator: Window) -> dict[str, int]:
    rows, columns = operator.dilation
    return {"dilationHFactor": rows, "dilationWFactor": columns}


def _fused(activation: Activation) -> dict[str, int]:
    return {"fusedActivationFunction": getattr(schema.ActivationFunctionType, activation.value)}


def _zero_bias(image: Tensor, weights: Tensor, channels: int) -> Tensor:
    assert image.quantization is not None
    assert weights.quantization is not None
    scales = tuple(float(np.float32(image.quantization.scale * scale)) for scale in weights.quantization.scales)
    data = np.zeros(channels, np.int32)
    return Tensor("zero_bias", data.shape, "int32", Quantization(scales, (0,) * len(scales)), data)


def _indices(name: str, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    data = np.array(values, np.int32)
    return Tensor(name, data.shape, "int32", data=data)


def _rescale(inputs: Sequence[Tensor], output: Tensor) -> float:
    scales = [tensor.quantization.scale if tensor.quantization else math.nan for tensor in (*inputs, output)]
    return scales[0] * scales[1] / scales[2]
