"""TFLite files: several graphs, one set of weights."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra
from edgepipe.exporters.vision.graph import Graph, Quantization, Tensor
from edgepipe.exporters.vision.lower_concatenations import lower_concatenations
from edgepipe.exporters.vision.lower_pads import lower_pads
from edgepipe.exporters.vision.tflite_encoding import options, parameters, version

try:
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema
except ImportError as missing:
    raise MissingExtra("ai-edge-litert", "export") from missing

# Constants start at multiples of this, so that a microcontroller reads them where they are.
BUFFER_ALIGNMENT = 16


def write_tflite(graphs: Mapping[str, Graph], path: Path) -> None:
    """Write a model with a subgraph and a signature per entry; the first is the main one.

    A signature's inputs are named ``args_0``, ``args_1``, ..., its outputs ``output_0``, ... Equal constants are
    stored once, whichever graphs hold them. LiteRT runs any graph by its signature. TFLite Micro runs the main one, but
    give it a file of one graph where others use scratch memory (MEAN; with CMSIS-NN, convolutions too): it sets that up
    for subgraphs that are called only, and reads uninitialised memory for the others.

    Raises:
        UnsupportedModel: TFLite cannot say an operator as it is.
        MissingExtra: ai-edge-litert, which brings the schema, is not installed.
    """
    writer = _Writer()
    model = schema.ModelT(
        version=3,
        description="edgepipe",
        subgraphs=[writer.subgraph(name, lower(graph)) for name, graph in graphs.items()],
        signatureDefs=[_signature(position, name, graph) for position, (name, graph) in enumerate(graphs.items())],
        operatorCodes=writer.operator_codes,
        buffers=writer.buffers,
    )
    builder = SharingBuilder()
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(builder.Output())


def lower(graph: Graph) -> Graph:
    """The graph as it is written: in forms that TFLite and TFLite Micro have; tensors keep their indices."""
    return lower_concatenations(lower_pads(graph))


class _AlignedBuffer(schema.BufferT):
    """A buffer placed as TFLite's schema demands, which the generated Python does not know of."""

    def Pack(self, builder: flatbuffers.Builder) -> int:
        builder.Prep(BUFFER_ALIGNMENT, len(self.data))
        data = builder.CreateByteVector(self.data)
        schema.BufferStart(builder)
        schema.BufferAddData(builder, data)
        return schema.BufferEnd(builder)


class SharingBuilder(flatbuffers.Builder):
    """Writes equal names, shapes and scales once: tiles repeat them, and they would outweigh the small graphs."""

    def __init__(self) -> None:
        super().__init__(1024)
        self._position_of: dict[Hashable, int] = {}

    def CreateString(self, s: str, *encoding: str) -> int:
        if s not in self._position_of:
            self._position_of[s] = super().CreateString(s, *encoding)
        return self._position_of[s]

    def CreateNumpyVector(self, x: np.ndarray) -> int:
        key = x.dtype, x.tobytes()
        if key not in self._position_of:
            self._position_of[key] = super().CreateNumpyVector(x)
        return self._position_of[key]


class _Writer:
    """What the subgraphs of a model share: buffers and operator codes."""

    def __init__(self) -> None:
        self.buffers: list[Any] = [schema.BufferT()]  # the first is that of tensors without data
        self.operator_codes: list[Any] = []
        self._buffer_of: dict[bytes, int] = {}
        self._code_of: dict[tuple[int, int], int] = {}

    def subgraph(self, name: str, graph: Graph) -> Any:
        """A subgraph of the schema; the graph's tensors keep their indices, parameters follow them."""
        tensors = [self._tensor(tensor) for tensor in graph.tensors]
        parameter_of: dict[tuple[Any, ...], int] = {}

        def parameter(tensor: Tensor) -> int:
            key = (tensor.name, tensor.dtype, tensor.shape, tensor.quantization, _data(tensor))
            if key not in parameter_of:
                parameter_of[key] = len(tensors)
                tensors.append(self._tensor(tensor))
            return parameter_of[key]

        operators = []
        for node in graph.nodes:
            inputs = [graph.tensors[index] for index in node.inputs]
            output = graph.tensors[node.output]
            table = options(node.operator, inputs)
            code = getattr(schema.BuiltinOperator, node.operator.name)
            operators.append(
                schema.OperatorT(
                    opcodeIndex=self._operator_code(code, version(node.operator, inputs, output)),
                    inputs=_indices([*node.inputs, *map(parameter, parameters(node.operator, inputs, output))]),
                    outputs=_indices([node.output]),
                    builtinOptionsType=_options_type(table),
                    builtinOptions=table,
                )
            )
        return schema.SubGraphT(tensors, _indices(graph.inputs), _indices(graph.outputs), operators, name)

    def _tensor(self, tensor: Tensor) -> Any:
        return schema.TensorT(
            # TensorFlow's converter names a fused operator after all that it was made of: the first tells enough.
            name=tensor.name.split(";")[0],
            shape=_indices(tensor.shape),
            type=getattr(schema.TensorType, tensor.dtype.upper()),
            buffer=0 if tensor.data is None else self._buffer(_data(tensor)),
            quantization=_quantization(tensor.quantization),
            hasRank=True,
        )

    def _buffer(self, data: bytes) -> int:
        if data not in self._buffer_of:
            self._buffer_of[data] = len(self.buffers)
            self.buffers.append(_AlignedBuffer(data))
        return self._buffer_of[data]

    def _operator_code(self, code: int, version: int) -> int:
        if (code, version) not in self._code_of:
            self._code_of[code, version] = len(self.operator_codes)
            # Readers from before the codes outgrew a byte look at the deprecated field.
            deprecated = min(code, schema.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES)
            self.operator_codes.append(schema.OperatorCodeT(deprecated, None, version, code))
        return self._code_of[code, version]


def _data(tensor: Tensor) -> bytes:
    assert tensor.data is not None
    return np.ascontiguousarray(tensor.data, np.dtype(tensor.dtype).newbyteorder("<")).tobytes()


def _indices(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int32)


def _quantization(quantization: Quantization | None) -> Any | None:
    if quantization is None:
        return None
    return schema.QuantizationParametersT(
        scale=np.array(quantization.scales, np.float32),
        zeroPoint=np.array(quantization.zero_points, np.int64),
        quantizedDimension=quantization.axis if len(quantization.scales) > 1 else 0,
    )


def _options_type(table: Any | None) -> int:
    if table is None:
        return schema.BuiltinOptions.NONE
    return getattr(schema.BuiltinOptions, type(table).__name__.removesuffix("T"))


def _signature(position: int, name: str, graph: Graph) -> Any:
    def named(prefix: str, indices: Sequence[int]) -> Iterator[Any]:
        for number, index in enumerate(indices):
            yield schema.TensorMapT(f"{prefix}_{number}", index)

    inputs, outputs = list(named("args", graph.inputs)), list(named("output", graph.outputs))
    return schema.SignatureDefT(inputs, outputs, name, position)
