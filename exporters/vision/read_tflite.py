"""Reads int8 TFLite models into the graph."""

from __future__ import annotations

from pathlib import Path

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.graph import Graph, Node, Tensor
from edgepipe.exporters.vision.operators import Reshape, ShapeError
from edgepipe.exporters.vision.quantization_rules import QuantizationError, check_quantization
from edgepipe.exporters.vision.tflite_file import FileOperator, FileTensor, TfliteFile, parse_tflite
from edgepipe.exporters.vision.tflite_readers import READERS, Call, OperatorError
from edgepipe.exporters.vision.tflite_tensors import label, read_tensor

# Larger than any model for a microcontroller, small enough to be read at once.
MAX_FILE_BYTES = 1 << 28
# The scales of all operators together. A large network has some ten thousand; a file may name the same ones over and
# over to keep us busy.
MAX_SCALES = 1 << 20


def read_tflite(path: Path) -> Graph:
    """The main subgraph of an int8 model, as it stands in the file.

    SAME and VALID become pads; SQUEEZE and a TRANSPOSE that moves no data become RESHAPE, which vanishes where it
    changes nothing; operators whose results nobody reads, and tensors that only gave shapes, are left out.

    Raises:
        UnsupportedModel: it is no TFLite file, damaged, or has what the graph cannot say, naming operator and tensor.
        MissingExtra: without ai-edge-litert, whose schema is used.
    """
    try:
        if not path.is_file():
            raise UnsupportedModel("no such file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UnsupportedModel(f"{path.stat().st_size} bytes: expected at most {MAX_FILE_BYTES}")
        return graph_from_tflite(path.read_bytes())
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from error
    except OSError as error:
        raise UnsupportedModel(f"{path} cannot be read: {error.strerror}") from error


def graph_from_tflite(content: bytes) -> Graph:
    """The same for a model in memory."""
    graph = _GraphReader(parse_tflite(content)).graph()
    graph.check()
    return graph


class _GraphReader:
    def __init__(self, file: TfliteFile) -> None:
        self._file = file
        self._tensors: list[Tensor] = []
        self._nodes: list[Node] = []
        # Where tensors of the file stand in the graph; two share a place when a RESHAPE between them vanished.
        self._places: dict[int, int] = {}
        self._scales_left = MAX_SCALES

    def graph(self) -> Graph:
        file = self._file
        for what, indices in (("input", file.inputs), ("output", file.outputs)):
            if not indices or len(set(indices)) != len(indices):
                raise UnsupportedModel(f"the model's {what}s are tensors {list(indices[:8])}: expected one or more")
        for index in file.inputs:
            tensor = self._tensor(index)
            if tensor.data is not None:
                raise UnsupportedModel(f"the model's input, {self._label(index)}, is a constant")
            if not tensor.shape or tensor.shape[0] != 1:
                raise UnsupportedModel(
                    f"the model's input, {self._label(index)}, has shape {tensor.shape}: expected a batch of 1"
                )
            self._place(index, tensor)
        for position in self._needed():
            self._add_operator(position)
        for index in file.outputs:
            if index not in self._places or self._tensors[self._places[index]].data is not None:
                raise UnsupportedModel(f"no operator computes the model's output, {self._label(index)}")
        if not self._nodes:
            raise UnsupportedModel("the model is empty: its outputs are its inputs")
        inputs = tuple(self._places[index] for index in file.inputs)
        outputs = tuple(self._places[index] for index in file.outputs)
        return Graph(tuple(self._tensors), tuple(self._nodes), inputs, outputs)

    def _needed(self) -> list[int]:
        """Positions of the operators that the outputs depend on, in order.

        What only computes the shape for a RESHAPE is not among them: the output's own shape says it already.
        """
        wanted = set(self._file.outputs)
        positions = []
        for position in reversed(range(len(self._file.operators))):
            operator = self._file.operators[position]
            if not wanted.isdisjoint(operator.outputs):
                positions.append(position)
                wanted.update(operator.inputs[:1] if operator.name == "RESHAPE" else operator.inputs)
        return positions[::-1]

    def _add_operator(self, position: int) -> None:
        operator = self._file.operators[position]
        output = operator.outputs[0]
        here = f"operator {position} ({operator.name}), {self._label(output)}"
        try:
            if operator.name not in READERS:
                raise OperatorError(f"not supported; these are: {', '.join(READERS)}")
            self._add_node(operator, output)
        except (OperatorError, ShapeError, QuantizationError, UnsupportedModel) as error:
            raise UnsupportedModel(f"{here}: {error}") from error

    def _add_node(self, operator: FileOperator, output: int) -> None:
        reader = READERS[operator.name]
        if reader.needs_options and operator.options is None:
            raise OperatorError("its options are missing")
        least, most = reader.tensors
        if len(operator.inputs) > most + reader.operands:
            raise OperatorError(f"{len(operator.inputs)} inputs: expected at most {most + reader.operands}")
        # A missing bias may be left out, or be -1.
        read = operator.inputs[:most]
        if len(read) > least and read[-1] == -1:
            read = read[:-1]
        if len(read) < least or len(operator.outputs) != 1:
            raise OperatorError(f"{len(read)} inputs and {len(operator.outputs)} outputs: expected {least} and 1")
        for index in read:
            if index not in self._places:
                self._place_constant(index)
        places = tuple(self._places[index] for index in read)
        inputs = [self._tensors[place] for place in places]
        tensor = self._tensor(output)
        if output in self._places or tensor.data is not None:
            raise OperatorError("it is there already before this operator writes it")
        self._scales_left -= sum(len(given.quantization.scales) for given in inputs if given.quantization)
        if self._scales_left < 0:
            raise OperatorError(f"with it the operators have more than {MAX_SCALES} scales")
        operands = [(index, self._stored(index)) for index in operator.inputs[most:]]
        converted = reader.read(Call(operator.options, inputs, operands, tensor))
        expected = converted.output_shape(*(given.shape for given in inputs))
        if expected != tensor.shape:
            raise ShapeError(f"it has shape {tensor.shape}: expected {expected}")
        check_quantization(converted, inputs, tensor)
        changes_nothing = isinstance(converted, Reshape) and tensor.shape == inputs[0].shape
        if changes_nothing and tensor.quantization == inputs[0].quantization:
            self._places[output] = places[0]
        else:
            self._nodes.append(Node(converted, places, self._place(output, tensor)))

    def _place_constant(self, index: int) -> None:
        tensor = self._tensor(index)
        if tensor.data is None:
            raise OperatorError(f"reads {self._label(index)} before anything wrote it")
        self._place(index, tensor)

    def _place(self, index: int, tensor: Tensor) -> int:
        self._tensors.append(tensor)
        self._places[index] = len(self._tensors) - 1
        return self._places[index]

    def _stored(self, index: int) -> FileTensor:
        if not 0 <= index < len(self._file.tensors):
            raise UnsupportedModel(f"no tensor {index}: the file has {len(self._file.tensors)}")
        return self._file.tensors[index]

    def _tensor(self, index: int) -> Tensor:
        return read_tensor(index, self._stored(index))

    def _label(self, index: int) -> str:
        return label(index, self._stored(index))
