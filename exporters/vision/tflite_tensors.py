"""Tensors of a .tflite file, checked and turned into the graph's."""

from __future__ import annotations

import math

import numpy as np

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.graph import ELEMENT_BYTES, Quantization, Tensor
from edgepipe.exporters.vision.tflite_file import FileTensor

# The largest tensors taken. Boards have a few megabytes; a shape beyond this is a mistake, or meant to exhaust memory.
MAX_ACTIVATION_BYTES = 1 << 26
MAX_CONSTANT_BYTES = 1 << 28
# TFLite's kernels broadcast over six axes at most.
MAX_RANK = 6
# The longest list of axes or sizes that an operator takes: two numbers for each axis.
_MAX_OPERAND = 2 * MAX_RANK
_INTEGER_BYTES = {"INT8": 1, "INT32": 4, "INT64": 8}


def label(index: int, stored: FileTensor) -> str:
    """How messages name a tensor."""
    return f"tensor {index} ({stored.name[:80]})"


def read_tensor(index: int, stored: FileTensor) -> Tensor:
    """The graph's tensor, with ``data`` viewing the file's bytes if it is a constant.

    Raises:
        UnsupportedModel: with the tensor's index and name.
    """
    here = label(index, stored)
    dtype = stored.type_name.lower()
    if dtype not in ELEMENT_BYTES:
        raise UnsupportedModel(f"{here} is {stored.type_name}: expected {', '.join(ELEMENT_BYTES).upper()}")
    if stored.is_variable or stored.is_sparse:
        raise UnsupportedModel(f"{here} is {'a variable' if stored.is_variable else 'sparse'}: expected a plain tensor")
    _check_shape(here, stored)
    nbytes = math.prod(stored.shape) * ELEMENT_BYTES[dtype]
    most = MAX_ACTIVATION_BYTES if stored.content is None else MAX_CONSTANT_BYTES
    if nbytes > most:
        raise UnsupportedModel(f"{here} of shape {stored.shape} has {nbytes} bytes: expected at most {most}")
    data = None
    if stored.content is not None:
        if stored.content.size != nbytes:
            raise UnsupportedModel(f"{here} has {stored.content.size} bytes of data: its shape asks for {nbytes}")
        data = _elements(stored.content, dtype).reshape(stored.shape)
    return Tensor(stored.name, stored.shape, dtype, _quantization(here, stored), data)


def read_integers(index: int, stored: FileTensor) -> tuple[int, ...]:
    """A stored list of axes, sizes or paddings, flattened.

    Raises:
        UnsupportedModel: it is not stored, not integers, or longer than any such list.
    """
    here = label(index, stored)
    if stored.content is None:
        raise UnsupportedModel(f"{here} is computed while the model runs: expected it stored")
    if stored.type_name not in _INTEGER_BYTES:
        raise UnsupportedModel(f"{here} is {stored.type_name}: expected INT32")
    _check_shape(here, stored)
    count = math.prod(stored.shape)
    if count > _MAX_OPERAND or stored.content.size != count * _INTEGER_BYTES[stored.type_name]:
        raise UnsupportedModel(
            f"{here} of shape {stored.shape} has {stored.content.size} bytes: "
            f"expected those of its shape, and at most {_MAX_OPERAND} numbers"
        )
    return tuple(_elements(stored.content, stored.type_name.lower()).tolist())


def _elements(content: np.ndarray, dtype: str) -> np.ndarray:
    # A damaged file may have its data anywhere; arrays must start where their type does.
    return np.require(content.view(np.dtype(dtype).newbyteorder("<")), requirements="A")


def _check_shape(here: str, stored: FileTensor) -> None:
    if len(stored.shape) > MAX_RANK or any(size < 1 for size in stored.shape):
        raise UnsupportedModel(f"{here} has shape {stored.shape[:8]}: expected up to {MAX_RANK} sizes of 1 or more")
    # Converters leave the batch open and write 1 for it; the graph is for this 1.
    varies = [axis for axis, size in enumerate(stored.signature) if size < 0]
    if varies and (varies != [0] or not stored.shape or stored.shape[0] != 1):
        raise UnsupportedModel(
            f"{here} has the dynamic shape {stored.signature[:8]}: fix all its sizes when converting the model"
        )


def _quantization(here: str, stored: FileTensor) -> Quantization | None:
    scales, zero_points = stored.scales, stored.zero_points
    if scales.size == 0 or stored.type_name == "FLOAT32":
        return None
    axis = stored.axis if scales.size > 1 else 0
    if scales.size > 1 and (not 0 <= axis < len(stored.shape) or scales.size != stored.shape[axis]):
        raise UnsupportedModel(
            f"{here} has {scales.size} scales along axis {axis}: its shape {stored.shape} does not fit them"
        )
    if zero_points.size not in (1, scales.size):
        raise UnsupportedModel(f"{here} has {scales.size} scales and {zero_points.size} zero points")
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise UnsupportedModel(f"{here} has a scale that is not a positive number")
    if (zero_points != zero_points.astype(np.int32)).any():
        raise UnsupportedModel(f"{here} has a zero point beyond 32 bits")
    return Quantization(tuple(scales.tolist()), tuple(np.broadcast_to(zero_points, scales.shape).tolist()), axis)
