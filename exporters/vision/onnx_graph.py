"""A QDQ graph under construction: the tensors of an int8 graph as ONNX values of codes and of real numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra, UnsupportedModel
from edgepipe.exporters.vision.activation_range import activation_range
from edgepipe.exporters.vision.graph import Graph, Quantization, Tensor
from edgepipe.exporters.vision.operators import Activation

try:
    import onnx
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
except ImportError as missing:
    raise MissingExtra("onnx", "export") from missing

# Old enough for every engine on a device; 13 brought per-channel DequantizeLinear, 14 HardSwish.
OPSET = 17
IR_VERSION = 8

TO_CHANNELS_FIRST = (0, 3, 1, 2)
TO_CHANNELS_LAST = (0, 2, 3, 1)


class QdqGraph:
    """Holds for each tensor its codes in one or both of two layouts, and transposes where the other one is asked for.

    Tensors of rank 4 are NHWC at the model's boundary, as in TFLite, and NCHW inside, as ONNX's operators want them;
    tensors of other ranks have one layout.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._nodes: list[NodeProto] = []
        self._initializers: dict[tuple[str, str, tuple[int, ...], bytes], TensorProto] = {}
        self._first: dict[int, str] = {}
        self._last: dict[int, str] = {}
        self._names: dict[str, int] = {}
        for index in graph.inputs:
            self._last[index] = self.unique(graph.tensors[index].name)
        self._outputs = [self.unique(graph.tensors[index].name) for index in graph.outputs]

    def unique(self, name: str) -> str:
        """``name``, or where that is taken, ``name`` with a number."""
        name = name or "tensor"
        taken = self._names.get(name, 0)
        self._names[name] = taken + 1
        return self.unique(f"{name}.{taken}") if taken else name

    def constant(self, name: str, values: np.ndarray) -> str:
        """An initializer; equal ones of one name are stored once."""
        key = (name, values.dtype.str, values.shape, values.tobytes())
        if key not in self._initializers:
            self._initializers[key] = numpy_helper.from_array(np.array(values, order="C"), self.unique(name))
        return self._initializers[key].name

    def integers(self, *values: int) -> str:
        """An int64 vector, for shapes, axes and indices."""
        return self.constant("integers", np.array(values, np.int64))

    def node(self, op_type: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Append a node with one output, which is called something like ``name``."""
        output = self.unique(name)
        self._nodes.append(helper.make_node(op_type, inputs, [output], f"{op_type}:{output}", **attributes))
        return output

    def first(self, index: int, rank: int = 4) -> str:
        """Codes of a tensor with its channels on axis 1; a constant is seen as one of ``rank`` at least."""
        tensor = self.graph.tensors[index]
        if tensor.data is not None:
            return self.constant(tensor.name, channels_first(tensor.data.reshape(_extended(tensor.shape, rank))))
        if len(tensor.shape) != 4:
            return self._last[index]
        if index not in self._first:
            self._first[index] = self.node("Transpose", [self._last[index]], tensor.name, perm=TO_CHANNELS_FIRST)
        return self._first[index]

    def last(self, index: int) -> str:
        """Codes of a tensor in TFLite's layout."""
        tensor = self.graph.tensors[index]
        if tensor.data is not None:
            return self.constant(tensor.name, tensor.data)
        if index not in self._last:
            self._last[index] = self.node("Transpose", [self._first[index]], tensor.name, perm=TO_CHANNELS_LAST)
        return self._last[index]

    def store_first(self, index: int, codes: str) -> None:
        """Let ``codes``, with channels on axis 1, be the value of a tensor."""
        (self._first if len(self.graph.tensors[index].shape) == 4 else self._last)[index] = codes

    def store_last(self, index: int, codes: str) -> None:
        """Let ``codes``, in TFLite's layout, be the value of a tensor."""
        self._last[index] = codes

    def real_first(self, index: int, rank: int = 4) -> str:
        """Real numbers of a tensor with its channels on axis 1; a constant is seen as one of ``rank`` at least."""
        tensor = self.graph.tensors[index]
        rank = max(rank, len(tensor.shape)) if tensor.data is not None else len(tensor.shape)
        codes = self.first(index, rank)
        if tensor.quantization is None or len(tensor.quantization.scales) == 1:
            return self._real(tensor, codes, 0)
        return self._real(tensor, codes, axis_first(tensor.quantization.axis + rank - len(tensor.shape), rank))

    def real_last(self, index: int) -> str:
        """Real numbers of a tensor in TFLite's layout."""
        tensor = self.graph.tensors[index]
        return self._real(tensor, self.last(index), tensor.quantization.axis if tensor.quantization else 0)

    def _real(self, tensor: Tensor, codes: str, axis: int) -> str:
        return codes if tensor.dtype == "float32" else self.dequantize(codes, tensor, axis)

    def dequantize(self, codes: str, tensor: Tensor, axis: int = 0) -> str:
        """The real numbers of ``codes`` quantised as ``tensor`` is, by a node of their own, as fusion wants it.

        ``axis`` is that of the scales where there are several.
        """
        return self.node("DequantizeLinear", [codes, *self.parameters(tensor)], f"{tensor.name}.real", axis=axis)

    def quantize(self, index: int, real: str, activation: Activation = Activation.NONE) -> str:
        """The codes of real numbers under the quantisation of tensor ``index``, after an activation."""
        tensor = self.graph.tensors[index]
        if tensor.dtype == "float32":
            if activation is not Activation.NONE:
                raise UnsupportedModel(f"{tensor.name} is float32 with a fused {activation.value}: expected int8")
            return real
        codes = self.node("QuantizeLinear", [real, *self.parameters(tensor)], tensor.name)
        return self.clamp(index, codes, activation)

    def clamp(self, index: int, codes: str, activation: Activation) -> str:
        """Codes of tensor ``index`` after an activation, which saturation alone often is."""
        tensor = self.graph.tensors[index]
        if activation is Activation.NONE:
            return codes
        low, high = activation_range(activation, quantization_of(tensor), tensor.dtype)
        if (low, high) == (np.iinfo(tensor.dtype).min, np.iinfo(tensor.dtype).max):
            return codes
        bounds = [self.constant("bound", np.array(bound, tensor.dtype)) for bound in (low, high)]
        return self.node("Clip", [codes, *bounds], tensor.name)

    def look_up(self, codes: str, table: np.ndarray, tensor: Tensor) -> str:
        """Codes of ``tensor``, the bytes that ``table`` ``[256]`` has for the bytes of ``codes``."""
        places = self.node("Cast", [codes], f"{tensor.name}.places", to=TensorProto.INT32)
        return self.node("Gather", [self.constant("table", table.view(tensor.dtype)), places], tensor.name)

    def parameters(self, tensor: Tensor) -> list[str]:
        """Scale and zero point; scalars for a tensor quantised as a whole."""
        quantization = quantization_of(tensor)
        shape = () if len(quantization.scales) == 1 else (-1,)
        scales = np.array(quantization.scales, np.float32).reshape(shape)
        zero_points = np.array(quantization.zero_points, tensor.dtype).reshape(shape)
        return [
            self.constant(f"{tensor.name}.scale", scales),
            self.constant(f"{tensor.name}.zero_point", zero_points),
        ]

    def save(self, path: Path) -> None:
        """Write the model with all of the graph's outputs."""
        graph = self.graph
        inputs = [_value_info(self._last[index], graph.tensors[index]) for index in graph.inputs]
        outputs = []
        for index, name in zip(graph.outputs, self._outputs, strict=True):
            self._nodes.append(helper.make_node("Identity", [self.last(index)], [name], f"Identity:{name}"))
            outputs.append(_value_info(name, graph.tensors[index]))
        body = helper.make_graph(self._nodes, path.stem, inputs, outputs, list(self._initializers.values()))
        model: ModelProto = helper.make_model(
            body, producer_name="edgepipe", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)


def quantization_of(tensor: Tensor) -> Quantization:
    """The quantisation that a tensor of codes must have.

    Raises:
        UnsupportedModel: it has none.
    """
    if tensor.quantization is None:
        raise UnsupportedModel(f"tensor {tensor.name} ({tensor.dtype}) has no scale and zero point: expected both")
    return tensor.quantization


def axis_first(axis: int, rank: int) -> int:
    """Where an axis of a tensor in TFLite's layout is with the channels on axis 1."""
    return TO_CHANNELS_FIRST.index(axis) if rank == 4 else axis


def channels_first(values: np.ndarray) -> np.ndarray:
    """An NHWC array as NCHW; an array of another rank as it is."""
    return values.transpose(TO_CHANNELS_FIRST) if values.ndim == 4 else values


def _extended(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def _value_info(name: str, tensor: Tensor) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)), tensor.shape)
