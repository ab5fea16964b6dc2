"""What a .tflite file says, as plain values: every offset checked to lie in it, every list bounded by its size."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra, UnsupportedModel

# A model for a microcontroller has a few hundred tensors; more than this is no model, or one made to keep us busy.
MAX_TABLES = 10_000
# How much more than the file's size its lists may come to, all told.
MAX_SHARED_BYTES = 1 << 22

_NO_NUMBERS = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class FileTensor:
    """A tensor as the file describes it; nothing is checked but that it can be read.

    ``type_name``: the schema's name, as in ``INT8``; ``content``: bytes ``[N]`` (uint8) of a constant.
    ``signature``: the shape with -1 for what may vary. ``scales`` (float32) and ``zero_points`` (int64) may be empty.
    """

    name: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    type_name: str
    content: np.ndarray | None
    scales: np.ndarray
    zero_points: np.ndarray
    axis: int
    is_variable: bool
    is_sparse: bool


@dataclass(frozen=True, eq=False)
class FileOperator:
    """An operator: ``name`` as in the schema, ``options`` an object of the schema's (``Conv2DOptionsT``, ...).

    ``inputs``, ``outputs``: whatever numbers the file has; -1 stands for an input left out.
    """

    name: str
    options: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TfliteFile:
    """The main subgraph."""

    tensors: tuple[FileTensor, ...]
    operators: tuple[FileOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def parse_tflite(content: bytes) -> TfliteFile:
    """Read the flatbuffer.

    Raises:
        UnsupportedModel: it is not one, or is damaged, or no such file could come from a converter.
    """
    if content[4:8] != b"TFL3":
        raise UnsupportedModel("not a TFLite file: expected 'TFL3' in bytes 4 to 8")
    try:
        return _Parser(content).file()
    except (struct.error, TypeError, ValueError, OverflowError) as error:
        raise UnsupportedModel("a damaged TFLite file: fetch it again") from error


def _schema() -> ModuleType:
    try:
        from ai_edge_litert import schema_py_generated
    except ImportError as error:
        raise MissingExtra("ai-edge-litert", "export") from error
    return schema_py_generated


def _names(enumeration: type) -> dict[int, str]:
    return {value: name for name, value in vars(enumeration).items() if isinstance(value, int)}


class _Parser:
    def __init__(self, content: bytes) -> None:
        self._schema = _schema()
        self._operator_names = _names(self._schema.BuiltinOperator)
        self._type_names = _names(self._schema.TensorType)
        self._bytes = content
        self._model = self._schema.Model.GetRootAs(content)
        # Writers may store equal lists once, but a small file whose lists overlap could cost any time and memory.
        self._bytes_left = 2 * len(content) + MAX_SHARED_BYTES
        self._contents: dict[int, np.ndarray | None] = {}

    def file(self) -> TfliteFile:
        if self._model.SubgraphsLength() == 0:
            raise UnsupportedModel("the file has no graph")
        subgraph = self._model.Subgraphs(0)
        tensors = _bounded(subgraph.TensorsLength(), "tensors")
        operators = _bounded(subgraph.OperatorsLength(), "operators")
        return TfliteFile(
            tensors=tuple(self._tensor(index, subgraph.Tensors(index)) for index in range(tensors)),
            operators=tuple(self._operator(index, subgraph.Operators(index)) for index in range(operators)),
            inputs=self._integers(subgraph.InputsAsNumpy()),
            outputs=self._integers(subgraph.OutputsAsNumpy()),
        )

    def _tensor(self, index: int, table: Any) -> FileTensor:
        quantization = table.Quantization()
        if quantization is not None and quantization.DetailsType():
            raise UnsupportedModel(f"tensor {index} has a custom quantisation: expected scales and zero points")
        return FileTensor(
            name=self._text(table.Name(), f"the name of tensor {index}"),
            shape=self._integers(table.ShapeAsNumpy()),
            signature=self._integers(table.ShapeSignatureAsNumpy()),
            type_name=self._type_names.get(table.Type(), f"of unknown type {table.Type()}"),
            content=self._content(index, table.Buffer()),
            scales=self._numbers(quantization.ScaleAsNumpy() if quantization else 0),
            zero_points=self._numbers(quantization.ZeroPointAsNumpy() if quantization else 0),
            axis=quantization.QuantizedDimension() if quantization else 0,
            is_variable=table.IsVariable(),
            is_sparse=table.Sparsity() is not None,
        )

    def _content(self, index: int, buffer: int) -> np.ndarray | None:
        """Bytes of a buffer, or None for an empty one, which is how TFLite marks an activation."""
        if buffer not in self._contents:
            if buffer >= self._model.BuffersLength():
                raise UnsupportedModel(
                    f"tensor {index} is stored in buffer {buffer}: the file has {self._model.BuffersLength()}"
                )
            table = self._model.Buffers(buffer)
            content = self._numbers(table.DataAsNumpy())
            # Newer converters put the data behind the flatbuffer; offsets of 0 and 1 say that it is inside.
            if table.Offset() > 1:
                content = self._numbers(np.frombuffer(self._bytes, np.uint8, table.Size(), table.Offset()))
            self._contents[buffer] = content if content.size else None
        return self._contents[buffer]

    def _operator(self, index: int, table: Any) -> FileOperator:
        kind = table.OpcodeIndex()
        if kind >= self._model.OperatorCodesLength():
            raise UnsupportedModel(
                f"operator {index} is of kind {kind}: the file has {self._model.OperatorCodesLength()}"
            )
        code = self._model.OperatorCodes(kind)
        # Codes above 127 did not fit into the old byte-wide field: the larger of the two counts.
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        name = self._operator_names.get(number, f"operator code {number}")
        if name == "CUSTOM":
            name = f"custom operator {self._text(code.CustomCode(), f'the kind of operator {index}')}"
        options = None
        if name in OPTIONS and table.BuiltinOptionsType() == getattr(self._schema.BuiltinOptions, OPTIONS[name]):
            options = self._schema.BuiltinOptionsCreator(table.BuiltinOptionsType(), table.BuiltinOptions())
        return FileOperator(
            name=name,
            options=options,
            inputs=self._integers(table.InputsAsNumpy()),
            outputs=self._integers(table.OutputsAsNumpy()),
        )

    def _numbers(self, vector: Any) -> np.ndarray:
        """A list as the schema's accessors give it: an array, or 0 where the file has none."""
        array = vector if isinstance(vector, np.ndarray) else _NO_NUMBERS
        self._spend(array.nbytes)
        return array

    def _integers(self, vector: Any) -> tuple[int, ...]:
        return tuple(self._numbers(vector).tolist())

    def _text(self, value: bytes | None, what: str) -> str:
        value = value or b""
        self._spend(len(value))
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise UnsupportedModel(f"{what} is not UTF-8") from None
        # A line break or an escape code would end up in messages, tables and generated files.
        if not text.isprintable():
            raise UnsupportedModel(f"{what} has characters that cannot be printed: {text[:80]!r}")
        return text

    def _spend(self, count: int) -> None:
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise UnsupportedModel("a damaged TFLite file (its lists overlap): fetch it again")


# The schema's table of options of each operator that has them.
OPTIONS = {
    "ADD": "AddOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "CONCATENATION": "ConcatenationOptions",
    "CONV_2D": "Conv2DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "MUL": "MulOptions",
    "RESHAPE": "ReshapeOptions",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
    "SOFTMAX": "SoftmaxOptions",
    "SQUEEZE": "SqueezeOptions",
    "STRIDED_SLICE": "StridedSliceOptions",
}


def _bounded(count: int, what: str) -> int:
    if count > MAX_TABLES:
        raise UnsupportedModel(f"the file has {count} {what}: expected at most {MAX_TABLES}")
    return count
