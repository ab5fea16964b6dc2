"""Puts a TFLite file together from traced pieces: several subgraphs over one set of weights, which lie behind them."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from edgepipe.exporters.llm.tflite_trace import SLOTS, Trace, schema
from edgepipe.exporters.vision.write_tflite import SharingBuilder

# Buffers start at multiples of this, as XNNPACK wants to read them.
ALIGNMENT = 64
# Of buffers in a first pass, which only finds out how long the part before them is.
_SOMEWHERE = 1 << 40


@dataclass(frozen=True)
class Parameter:
    """A constant in the file. ``scales`` quantise its rows; ``block_scales`` its blocks of ``block_size`` columns."""

    name: str
    buffer: int
    shape: tuple[int, ...]
    type: int
    scales: np.ndarray | None = None
    block_scales: Parameter | None = None
    block_size: int = 0


class TFLiteModel:
    """A file that is being written; a context manager that removes the file of weights in the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.subgraphs: list[Subgraph] = []
        self._weights = open(path.with_suffix(".weights"), "w+b")  # noqa: SIM115 (closed by __exit__)
        self._buffers: list[Any] = [schema.BufferT()]  # the first is that of tensors without data
        self._codes: list[Any] = []
        self._code_of: dict[tuple[int, int], int] = {}
        self._small: dict[bytes, int] = {}

    def __enter__(self) -> TFLiteModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._weights.close()
        Path(self._weights.name).unlink()

    def store(self, name: str, values: np.ndarray, **fields: Any) -> Parameter:
        """Append ``values`` to the weights; ``fields`` are the parameter's other than name, buffer, shape and type."""
        self._weights.write(bytes(-self._weights.tell() % ALIGNMENT))
        offset = self._weights.tell()
        self._weights.write(np.ascontiguousarray(values).data)
        self._buffers.append(schema.BufferT(offset=offset, size=values.nbytes))
        fields = {"shape": values.shape, "type": _TYPES.get(values.dtype.name), **fields}
        return Parameter(name, len(self._buffers) - 1, **fields)

    def small_buffer(self, data: bytes) -> int:
        """A buffer for a shape or an axis, equal ones in one place."""
        if data not in self._small:
            self._buffers.append(schema.BufferT(data=np.frombuffer(data, np.uint8)))
            self._small[data] = len(self._buffers) - 1
        return self._small[data]

    def operator_code(self, code: int, version: int) -> int:
        """The index of an operator."""
        if (code, version) not in self._code_of:
            self._code_of[code, version] = len(self._codes)
            # Readers from before the codes outgrew a byte look at the deprecated field.
            deprecated = min(code, schema.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES)
            self._codes.append(schema.OperatorCodeT(deprecated, None, version, code))
        return self._code_of[code, version]

    def save(self, description: str) -> int:
        """Write the file; returns its size in bytes."""
        stored = [(buffer, buffer.offset) for buffer in self._buffers if buffer.size]
        model = schema.ModelT(
            version=3,
            description=description,
            operatorCodes=self._codes,
            subgraphs=[graph.schema() for graph in self.subgraphs],
            signatureDefs=[graph.signature(index) for index, graph in enumerate(self.subgraphs)],
            buffers=self._buffers,
        )

        def packed(start: int) -> bytes:
            for buffer, offset in stored:
                buffer.offset = start + offset
            builder = SharingBuilder()
            builder.Finish(model.Pack(builder), b"TFL3")
            return bytes(builder.Output())

        length = len(packed(_SOMEWHERE))
        start = length + -length % ALIGNMENT
        with open(self.path, "wb") as file:
            file.write(packed(start).ljust(start, b"\0"))
            self._weights.seek(0)
            shutil.copyfileobj(self._weights, file, 1 << 20)
            return file.tell()


class Subgraph:
    """One signature of a model. Sizes of `SLOTS`, alone or with ``width`` more, are dynamic in the file.

    ``slots`` is what the file says in their place.
    """

    def __init__(self, model: TFLiteModel, name: str, width: int, slots: int) -> None:
        self.name = name
        self._model = model
        self._sizes = {SLOTS: slots, SLOTS + width: slots + width}
        self._tensors: list[Any] = []
        self._operators: list[Any] = []
        self._inputs: dict[str, int] = {}
        self._outputs: dict[str, int] = {}
        self._parameters: dict[str, int] = {}
        model.subgraphs.append(self)

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> int:
        """Add an input; returns its tensor, as all methods here do."""
        self._inputs[name] = self._tensor(name, shape, _TYPES[dtype])
        return self._inputs[name]

    def output(self, name: str, tensor: int) -> None:
        """Make a tensor an output."""
        self._outputs[name] = tensor

    def parameter(self, stored: Parameter) -> int:
        """A stored parameter."""
        if stored.name not in self._parameters:
            index = self._tensor(stored.name, stored.shape, stored.type, stored.buffer)
            self._tensors[index].quantization = self._quantization(stored)
            self._parameters[stored.name] = index
        return self._parameters[stored.name]

    def add(
        self, traced: Trace, inputs: Sequence[int], parameters: Mapping[str, Parameter], count: int | None = None
    ) -> list[int]:
        """Add a traced module; returns its first ``count`` outputs, without what the others take."""
        codes, outputs = traced.model.operatorCodes, traced.subgraph.outputs.tolist()[:count]
        here = {-1: -1, **dict(zip(traced.subgraph.inputs.tolist(), inputs, strict=True))}
        for index, name in traced.parameters.items():
            here[index] = self.parameter(parameters[name])
        operators = traced.operators(outputs)
        for index in (index for operator in operators for index in (*operator.inputs, *operator.outputs)):
            if index not in here:
                here[index] = self._copied(index, traced)
        for operator in operators:
            code = codes[operator.opcodeIndex]
            if code.builtinCode == schema.BuiltinOperator.SLICE and SLOTS in traced.numbers(operator.inputs[2]):
                self._slice_to_the_end(operator, traced, here)
                continue
            operator = copy.copy(operator)
            operator.opcodeIndex = self._model.operator_code(code.builtinCode, code.version)
            if code.builtinCode == schema.BuiltinOperator.FULLY_CONNECTED:
                # Against integer weights, the engine then quantises the input anew for every row.
                operator.builtinOptions = copy.copy(operator.builtinOptions)
                is_float = self._tensors[here[operator.inputs[1]]].type == schema.TensorType.FLOAT32
                operator.builtinOptions.asymmetricQuantizeInputs = not is_float
            operator.inputs = _int32([here[index] for index in operator.inputs])
            operator.outputs = _int32([here[index] for index in operator.outputs])
            self._operators.append(operator)
        return [here[index] for index in outputs]

    def operator(
        self, kind: str, inputs: Sequence[int], shape: Sequence[int], options: Any = None, dtype: str = "float32"
    ) -> int:
        """Add an operator, for example ``"GATHER"``; returns its output of ``shape``."""
        output = self._tensor(f"t{len(self._tensors)}", shape, _TYPES[dtype])
        self._operator(kind, inputs, output, options)
        return output

    def schema(self) -> Any:
        """As an object of the schema."""
        inputs, outputs = (_int32(list(ends.values())) for ends in (self._inputs, self._outputs))
        return schema.SubGraphT(self._tensors, inputs, outputs, self._operators, self.name)

    def signature(self, index: int) -> Any:
        """Its entry in a model where it is the subgraph ``index``."""
        inputs, outputs = (
            [schema.TensorMapT(name, tensor) for name, tensor in ends.items()] for ends in (self._inputs, self._outputs)
        )
        return schema.SignatureDefT(inputs, outputs, self.name, index)

    def _operator(self, kind: str, inputs: Sequence[int], output: int, options: Any) -> None:
        table = "NONE" if options is None else type(options).__name__.removesuffix("T")
        self._operators.append(
            schema.OperatorT(
                opcodeIndex=self._model.operator_code(getattr(schema.BuiltinOperator, kind), 1),
                inputs=_int32(inputs),
                outputs=_int32([output]),
                builtinOptionsType=getattr(schema.BuiltinOptions, table),
                builtinOptions=options,
            )
        )

    def _slice_to_the_end(self, operator: Any, traced: Trace, here: Mapping[int, int]) -> None:
        """A slice of all slots: XNNPACK takes it where the end is left open in this operator, and not in that one."""
        begin, size = (traced.numbers(index) for index in operator.inputs[1:])
        is_open = [count == SLOTS for count in size]
        bounds = (begin, [first + count for first, count in zip(begin, size, strict=True)], [1] * len(size))
        inputs = [self._constant(_int32(bound)) for bound in bounds]
        options = schema.StridedSliceOptionsT(endMask=sum(1 << axis for axis, is_ in enumerate(is_open) if is_))
        self._operator("STRIDED_SLICE", [here[operator.inputs[0]], *inputs], here[operator.outputs[0]], options)

    def _copied(self, index: int, traced: Trace) -> int:
        """A tensor of a traced module that is neither an input nor a parameter."""
        tensor, data = traced.subgraph.tensors[index], traced.constant(index)
        if data is None:
            return self._tensor(f"t{len(self._tensors)}", tensor.shape.tolist(), tensor.type)
        if tensor.type == schema.TensorType.INT32:  # a shape has one dynamic size at most: the rest of the elements
            return self._constant(_int32([-1 if size in self._sizes else size for size in traced.numbers(index)]))
        copied = self._tensor(f"t{len(self._tensors)}", tensor.shape.tolist(), tensor.type)
        self._tensors[copied].buffer = self._model.small_buffer(bytes(data))
        return copied

    def _constant(self, numbers: np.ndarray) -> int:
        buffer = self._model.small_buffer(numbers.tobytes())
        return self._tensor(f"t{len(self._tensors)}", numbers.shape, schema.TensorType.INT32, buffer)

    def _tensor(self, name: str, shape: Sequence[int], type: int, buffer: int = 0) -> int:
        sizes = [self._sizes.get(size, size) for size in shape]
        signature = [-1 if size in self._sizes else size for size in shape]
        self._tensors.append(
            schema.TensorT(
                name=name,
                shape=_int32(sizes),
                shapeSignature=_int32(signature) if -1 in signature else None,
                type=type,
                buffer=buffer,
                hasRank=True,
            )
        )
        return len(self._tensors) - 1

    def _quantization(self, stored: Parameter) -> Any:
        if stored.block_scales is not None:
            scales = self.parameter(stored.block_scales)
            return schema.QuantizationParametersT(
                detailsType=schema.QuantizationDetails.BlockwiseQuantization,
                details=schema.BlockwiseQuantizationT(scales=scales, zeroPoints=-1, blockSize=stored.block_size),
            )
        if stored.scales is not None:
            zeros = np.zeros(stored.scales.shape, np.int64)
            return schema.QuantizationParametersT(scale=stored.scales, zeroPoint=zeros, quantizedDimension=0)
        return None


_TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "float16": schema.TensorType.FLOAT16,
    "int32": schema.TensorType.INT32,
    "int8": schema.TensorType.INT8,
}


def _int32(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.array(values, np.int32)
