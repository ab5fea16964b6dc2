"""Takes the transposes out of a float TFLite model that came from torch, so that all its images are NHWC."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

_TO_NCHW, _TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
_BY_ELEMENT = ("ADD", "DIV", "HARD_SWISH", "LOGISTIC", "MUL", "RELU", "RELU_N1_TO_1", "SUB")
_NAMES = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}


def drop_transposes(content: bytes) -> bytes:
    """The same model, where it can be, without a TRANSPOSE.

    litert-torch converts convolutions and pools to NHWC between two transposes and cancels most of them. What is left
    is around operators that work on either layout, or that read an image several times: these are rewritten to NHWC
    one after the other, until nothing reads the NCHW side. An output that is an image in NCHW becomes NHWC. A SUM over
    axes of size 1, as which a mean of a single value arrives, becomes MEAN again.
    """
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content))
    if len(model.subgraphs) > 1:
        return content
    _Rewriter(model).run()
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


class _Rewriter:
    def __init__(self, model: Any) -> None:
        self._model = model
        (self._graph,) = model.subgraphs
        # For a tensor in NCHW, the same image in NHWC; and for a tensor that is no longer written, the one to read.
        self._last: dict[int, int] = {}
        self._instead: dict[int, int] = {}
        self._operators: list[Any] = []
        self._rewrites: dict[str, Callable[[Any], bool]] = {
            **dict.fromkeys(_BY_ELEMENT, self._by_element),
            "CONCATENATION": self._concatenation,
            "MEAN": self._mean,
            "PAD": self._pad,
            "PADV2": self._pad,
            "RELU6": self._relu6,
            "RESHAPE": self._flatten,
            "SUM": self._sum,
            "TRANSPOSE": self._transpose,
        }

    def run(self) -> None:
        """Rewrite the operators in their order, then leave out those that nothing reads any more."""
        for operator in self._graph.operators:
            operator.inputs = [self._instead.get(index, index) for index in operator.inputs]
            rewrite = self._rewrites.get(self._name(operator))
            if rewrite is None or not rewrite(operator):
                self._operators.append(operator)
        self._write_outputs_channels_last()
        wanted = set(self._graph.outputs)
        needed = []
        for operator in reversed(self._operators):
            if not wanted.isdisjoint(operator.outputs):
                needed.append(operator)
                wanted.update(operator.inputs)
        self._graph.operators = needed[::-1]
        written = {index for operator in needed for index in operator.outputs}
        self._leave_out_tensors(written | wanted | set(self._graph.inputs))

    def _write_outputs_channels_last(self) -> None:
        self._graph.outputs = [self._last.get(index, index) for index in self._graph.outputs]
        for signature in self._model.signatureDefs or ():
            for entry in signature.outputs:
                entry.tensorIndex = self._last.get(entry.tensorIndex, entry.tensorIndex)

    def _leave_out_tensors(self, used: set[int]) -> None:
        """Keep the tensors ``used`` only: the quantizer wants values of each."""
        places = {index: place for place, index in enumerate(sorted(used - {-1}))} | {-1: -1}
        self._graph.tensors = [self._graph.tensors[index] for index in sorted(used - {-1})]
        for holder in (self._graph, *self._graph.operators):
            holder.inputs = [places[index] for index in holder.inputs]
            holder.outputs = [places[index] for index in holder.outputs]
        for signature in self._model.signatureDefs or ():
            for entry in (*signature.inputs, *signature.outputs):
                entry.tensorIndex = places[entry.tensorIndex]

    def _transpose(self, operator: Any) -> bool:
        image, order = operator.inputs
        (output,) = operator.outputs
        permutation = tuple(self._constant(order).tolist())
        if permutation == _TO_NCHW:
            self._last[output] = image
        elif permutation == _TO_NHWC and image in self._last:
            self._instead[output] = self._last[image]
            return True
        return False

    def _by_element(self, operator: Any) -> bool:
        if not any(index in self._last for index in operator.inputs):
            return False
        inputs = [self._channels_last(index) for index in operator.inputs]
        if None in inputs:
            return False
        operator.inputs = inputs
        self._write_channels_last(operator)
        return True

    def _relu6(self, operator: Any) -> bool:
        """A RELU6 that no operator before it took in, as a product with 1 that does: the quantizer knows no other."""
        operator.opcodeIndex = self._code("MUL")
        operator.builtinOptionsType = schema.BuiltinOptions.MulOptions
        operator.builtinOptions = schema.MulOptionsT()
        operator.builtinOptions.fusedActivationFunction = schema.ActivationFunctionType.RELU6
        operator.inputs = [*operator.inputs, self._add_constant(np.ones(1, np.float32))]
        return self._by_element(operator)

    def _concatenation(self, operator: Any) -> bool:
        if not all(index in self._last for index in operator.inputs):
            return False
        operator.inputs = [self._last[index] for index in operator.inputs]
        operator.builtinOptions.axis = _TO_NHWC.index(operator.builtinOptions.axis % 4)
        self._write_channels_last(operator)
        return True

    def _pad(self, operator: Any) -> bool:
        image, pads, *value = operator.inputs
        if image not in self._last:
            return False
        operator.inputs = [self._last[image], self._add_constant(self._constant(pads)[list(_TO_NHWC)]), *value]
        self._write_channels_last(operator)
        return True

    def _mean(self, operator: Any) -> bool:
        image, axes = operator.inputs
        along = sorted(int(axis) % 4 for axis in self._constant(axes).flatten())
        if image not in self._last or (not operator.builtinOptions.keepDims and along != [2, 3]):
            return False
        mapped = np.array([_TO_NHWC.index(axis) for axis in along], np.int32)
        operator.inputs = [self._last[image], self._add_constant(mapped)]
        if operator.builtinOptions.keepDims:
            self._write_channels_last(operator)
        else:
            self._operators.append(operator)
        return True

    def _sum(self, operator: Any) -> bool:
        image, axes = operator.inputs
        shape = self._tensor(image).shape
        if any(shape[axis] != 1 for axis in self._constant(axes).flatten()):
            return False
        operator.opcodeIndex = self._code("MEAN")
        return self._mean(operator)

    def _flatten(self, operator: Any) -> bool:
        """Flatten rows, columns, channels in this order, and let the weights of the layers that read it follow."""
        image, (output,) = operator.inputs[0], operator.outputs
        shape = tuple(self._tensor(image).shape)
        if image not in self._last or tuple(self._tensor(output).shape) != (1, math.prod(shape)):
            return False
        readers = [reader for reader in self._graph.operators if output in reader.inputs]
        if output in self._graph.outputs or any(self._name(reader) != "FULLY_CONNECTED" for reader in readers):
            return False
        for reader in readers:
            weights = self._constant(reader.inputs[1]).reshape(-1, *shape[1:])
            reader.inputs = list(reader.inputs)
            reader.inputs[1] = self._add_constant(weights.transpose(_TO_NHWC).reshape(len(weights), -1))
        operator.inputs = [self._last[image], *operator.inputs[1:]]
        self._operators.append(operator)
        return True

    def _channels_last(self, index: int) -> int | None:
        """An input in NHWC, if there is one, or one can be made without moving data."""
        tensor = self._tensor(index)
        shape = tuple(tensor.shape) if tensor.shape is not None else ()
        if index in self._last or math.prod(shape) == 1:
            return self._last.get(index, index)
        if len(shape) == 4 and self._model.buffers[tensor.buffer].data is not None:
            return self._add_constant(self._constant(index).transpose(_TO_NHWC))
        if len(shape) == 4 and 1 in (shape[1], shape[2] * shape[3]):
            moved = self._add_tensor(index, [shape[axis] for axis in _TO_NHWC], "_nhwc")
            self._add_transpose(index, moved, _TO_NHWC)
            return moved
        return None

    def _write_channels_last(self, operator: Any) -> None:
        """Let an operator write NHWC, and give what reads NCHW still a transpose."""
        (output,) = operator.outputs
        shape = list(self._tensor(output).shape)
        moved = self._add_tensor(output, [shape[axis] for axis in _TO_NHWC], "_nhwc")
        operator.outputs = [moved]
        self._operators.append(operator)
        self._add_transpose(moved, output, _TO_NCHW)
        self._last[output] = moved

    def _add_transpose(self, source: int, target: int, order: tuple[int, ...]) -> None:
        operator = schema.OperatorT()
        operator.opcodeIndex = self._code("TRANSPOSE")
        operator.builtinOptionsType = schema.BuiltinOptions.TransposeOptions
        operator.builtinOptions = schema.TransposeOptionsT()
        operator.inputs, operator.outputs = [source, self._add_constant(np.array(order, np.int32))], [target]
        self._operators.append(operator)

    def _code(self, name: str) -> int:
        """The place of an operator's code in the model, which is added where it is not there yet."""
        names = [_NAMES[_builtin(entry)] for entry in self._model.operatorCodes]
        if name not in names:
            entry = schema.OperatorCodeT()
            entry.builtinCode = entry.deprecatedBuiltinCode = getattr(schema.BuiltinOperator, name)
            self._model.operatorCodes.append(entry)
        return names.index(name) if name in names else len(names)

    def _add_tensor(self, like: int, shape: list[int], suffix: str) -> int:
        tensor = copy.copy(self._tensor(like))
        tensor.name, tensor.shape, tensor.shapeSignature = tensor.name + suffix.encode(), shape, None
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def _add_constant(self, values: np.ndarray) -> int:
        tensor, buffer = schema.TensorT(), schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
        self._model.buffers.append(buffer)
        tensor.name, tensor.shape = f"constant_{len(self._graph.tensors)}".encode(), list(values.shape)
        tensor.type = schema.TensorType.FLOAT32 if values.dtype == np.float32 else schema.TensorType.INT32
        tensor.buffer = len(self._model.buffers) - 1
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def _constant(self, index: int) -> np.ndarray:
        tensor = self._tensor(index)
        kind = {schema.TensorType.FLOAT32: np.float32, schema.TensorType.INT32: np.int32}[tensor.type]
        content = np.asarray(self._model.buffers[tensor.buffer].data, np.uint8).tobytes()
        return np.frombuffer(content, kind).reshape(tuple(tensor.shape))

    def _tensor(self, index: int) -> Any:
        return self._graph.tensors[index]

    def _name(self, operator: Any) -> str:
        return _NAMES[_builtin(self._model.operatorCodes[operator.opcodeIndex])]


def _builtin(entry: Any) -> int:
    return max(entry.builtinCode, entry.deprecatedBuiltinCode)
