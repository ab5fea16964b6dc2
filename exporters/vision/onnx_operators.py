"""ONNX's operators in torch, as far as models for microcontrollers have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import torch
from torch import Tensor
from torch.nn import functional

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.operators import same_pads

Value = Tensor | None
# The content of a constant that torch wants as numbers.
Numbers = list[Any] | None


class Attributes:
    """The attributes of a node, and the version of its operators."""

    def __init__(self, node: onnx.NodeProto, opset: int) -> None:
        self.node = f"{node.op_type} ({node.name or node.output[0]})"
        self.opset = opset
        self._values = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute's value; text as str."""
        value = self._values.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def refuse(self, what: str) -> UnsupportedModel:
        """The error that says what of the node is not supported."""
        return UnsupportedModel(f"{self.node}: {what} is not supported")


def _window_pads(attributes: Attributes, image: Tensor, kernel: list[int]) -> list[int]:
    """Padding in torch's order: left, right, top, bottom."""
    strides, dilations = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    mode = attributes.get("auto_pad", "NOTSET")
    if len(kernel) != 2 or mode == "SAME_LOWER" or attributes.get("ceil_mode", 0):
        raise attributes.refuse("a window that is not 2D, auto_pad SAME_LOWER or ceil_mode")
    if mode == "SAME_UPPER":
        sides = [same_pads(image.shape[2 + axis], kernel[axis], strides[axis], dilations[axis]) for axis in (0, 1)]
        return [*sides[1], *sides[0]]
    top, left, bottom, right = [0, 0, 0, 0] if mode == "VALID" else attributes.get("pads", [0, 0, 0, 0])
    return [left, right, top, bottom]


def _conv(attributes: Attributes, image: Tensor, weights: Tensor, bias: Value = None) -> Tensor:
    left, right, top, bottom = _window_pads(attributes, image, list(weights.shape[2:]))
    if (left, top) != (right, bottom):
        image, left, top = functional.pad(image, (left, right, top, bottom)), 0, 0
    strides, dilations = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    return functional.conv2d(image, weights, bias, strides, (top, left), dilations, attributes.get("group", 1))


def _max_pool(attributes: Attributes, image: Tensor) -> Tensor:
    kernel, strides, pads = _pool_window(attributes, image)
    return functional.max_pool2d(image, kernel, strides, pads, attributes.get("dilations", [1, 1]))


def _average_pool(attributes: Attributes, image: Tensor) -> Tensor:
    kernel, strides, pads = _pool_window(attributes, image)
    if attributes.get("dilations", [1, 1]) != [1, 1]:
        raise attributes.refuse("dilation")
    return functional.avg_pool2d(image, kernel, strides, pads, False, bool(attributes.get("count_include_pad", 0)))


def _pool_window(attributes: Attributes, image: Tensor) -> tuple[list[int], list[int], tuple[int, int]]:
    kernel = attributes.get("kernel_shape")
    left, right, top, bottom = _window_pads(attributes, image, kernel)
    if (left, top) != (right, bottom):
        raise attributes.refuse("padding that differs between sides")
    return kernel, attributes.get("strides", [1, 1]), (top, left)


def _batch_norm(
    attributes: Attributes, image: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Tensor:
    return functional.batch_norm(image, mean, var, scale, bias, eps=attributes.get("epsilon", 1e-5))


def _clip(attributes: Attributes, data: Tensor, low: Numbers = None, high: Numbers = None) -> Tensor:
    lowest = low[0] if low else attributes.get("min")
    highest = high[0] if high else attributes.get("max")
    return functional.relu6(data) if (lowest, highest) == (0, 6) else data.clamp(lowest, highest)


def _gemm(attributes: Attributes, data: Tensor, weights: Tensor, bias: Value = None) -> Tensor:
    if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1 or attributes.get("beta", 1.0) != 1:
        raise attributes.refuse("transA, alpha or beta")
    return functional.linear(data, weights if attributes.get("transB", 0) else weights.t(), bias)


def _pad(
    attributes: Attributes, data: Tensor, pads: Numbers = None, value: Numbers = None, axes: Numbers = None
) -> Tensor:
    amounts = pads or attributes.get("pads")
    if attributes.get("mode", "constant") != "constant" or axes is not None or amounts is None:
        raise attributes.refuse("a mode other than constant, or axes")
    before, after = amounts[: data.dim()], amounts[data.dim() :]
    reverse = [size for axis in reversed(range(data.dim())) for size in (before[axis], after[axis])]
    while len(reverse) > 2 and reverse[-2:] == [0, 0]:
        del reverse[-2:]
    return functional.pad(data, reverse, value=value[0] if value else attributes.get("value", 0.0))


def _reduce_mean(attributes: Attributes, data: Tensor, axes: Numbers = None) -> Tensor:
    along = axes or attributes.get("axes") or list(range(data.dim()))
    return data.mean(along, keepdim=bool(attributes.get("keepdims", 1)))


def _reshape(attributes: Attributes, data: Tensor, shape: list[int]) -> Tensor:
    return data.reshape([data.shape[axis] if size == 0 else size for axis, size in enumerate(shape)])


def _squeeze(attributes: Attributes, data: Tensor, axes: Numbers = None) -> Tensor:
    along = axes or attributes.get("axes")
    return data.squeeze() if along is None else data.squeeze(along)


def _unsqueeze(attributes: Attributes, data: Tensor, axes: Numbers = None) -> Tensor:
    along = axes or attributes.get("axes", [])
    for axis in sorted(axis % (data.dim() + len(along)) for axis in along):
        data = data.unsqueeze(axis)
    return data


def _softmax(attributes: Attributes, data: Tensor) -> Tensor:
    if attributes.opset < 13 and attributes.get("axis", 1) not in (-1, data.dim() - 1):
        raise attributes.refuse("an axis before the last, of an opset before 13,")
    return data.softmax(attributes.get("axis", -1))


def _resize(
    attributes: Attributes, image: Tensor, region: Numbers = None, scales: Numbers = None, sizes: Numbers = None
) -> Tensor:
    way = (attributes.get("mode", "nearest"), attributes.get("coordinate_transformation_mode", "half_pixel"))
    if way != ("nearest", "asymmetric") or attributes.get("nearest_mode", "round_prefer_floor") != "floor":
        raise attributes.refuse("resizing other than nearest, asymmetric, floor")
    if sizes:
        return functional.interpolate(image, sizes[2:])
    return functional.interpolate(image, scale_factor=(scales or [])[2:])


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "Add": lambda _, first, second: first + second,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Concat": lambda attributes, *parts: torch.cat(parts, attributes.get("axis")),
    "Conv": _conv,
    "Dropout": lambda _, data, *rest: data,
    "Flatten": lambda attributes, data: data.flatten(attributes.get("axis", 1)),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda _, image: functional.adaptive_avg_pool2d(image, 1),
    "HardSwish": lambda _, data: functional.hardswish(data),
    "Identity": lambda _, data: data,
    "MatMul": lambda _, first, second: first @ second,
    "MaxPool": _max_pool,
    "Mul": lambda _, first, second: first * second,
    "Pad": _pad,
    "ReduceMean": _reduce_mean,
    "Relu": lambda _, data: functional.relu(data),
    "Reshape": _reshape,
    "Resize": _resize,
    "Sigmoid": lambda _, data: data.sigmoid(),
    "Softmax": _softmax,
    "Squeeze": _squeeze,
    "Transpose": lambda attributes, data: data.permute(attributes.get("perm") or list(range(data.dim()))[::-1]),
    "Unsqueeze": _unsqueeze,
}
# Inputs that are numbers to torch: constants of the model.
NUMBERS = {
    "Clip": (1, 2),
    "Pad": (1, 2, 3),
    "ReduceMean": (1,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
}
