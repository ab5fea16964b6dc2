"""ONNX models in float32 as torch modules.

The packages that do this (onnx2torch, onnx2pytorch) need torchvision, and so one exact build of torch; an int8 model
for a microcontroller has few operators.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from edgepipe.errors import EdgepipeError, MissingExtra, UnsupportedModel
from edgepipe.exporters.sources.weights import one_line
from edgepipe.exporters.vision.image_shape import ImageShape, image_shape
from edgepipe.exporters.vision.onnx_operators import NUMBERS, OPERATORS, Attributes

try:
    import onnx
    from onnx import numpy_helper
    from onnxscript import optimizer
except ImportError as missing:
    raise MissingExtra(missing.name or "onnx", "export") from missing

# Images have few channels: an input (1, 224, 224, 3) has them last.
_MOST_CHANNELS = 4
# A ConstantOfShape of more elements makes no shape.
_MOST_FOLDED = 64


def read_onnx(path: Path) -> tuple[nn.Module, ImageShape]:
    """The model as a module on ``[1, C, H, W]``, and the image that it takes; an open batch size becomes 1.

    Raises:
        EdgepipeError: no such file.
        UnsupportedModel: it is damaged, of dynamic shape, not float32, takes no image, or has an operator we lack.
    """
    if not path.is_file():
        raise EdgepipeError(f"no file {path}: expected an ONNX model")
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf's and ONNX's own
        raise UnsupportedModel(f"{path} cannot be read as an ONNX model ({one_line(error)})") from error
    shape = _fix_input(model, path)
    try:
        optimizer.fold_constants(model, onnx_shape_inference=True, should_fold=_makes_shapes)
        model = optimizer.optimize(model)
    except Exception as error:  # passes over the user's graph
        raise UnsupportedModel(f"{path}: its constants cannot be folded ({one_line(error)})") from error
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
            raise UnsupportedModel(
                f"{path}: operator {node.op_type} ({node.name or node.output[0]}) is not supported: "
                f"expected float32 with {', '.join(sorted(OPERATORS))}"
            )
    module: nn.Module = OnnxModule(model).eval()
    if shape[1] > _MOST_CHANNELS >= shape[3]:
        module, shape = nn.Sequential(_ToChannelsLast(), module), (1, shape[3], shape[1], shape[2])
    return module, image_shape(shape, str(path))


class OnnxModule(nn.Module):
    """Runs the nodes of an ONNX graph of one input and one output in their order."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        graph = model.graph
        (opset,) = (entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._buffer_names = {name: f"constant_{index}" for index, name in enumerate(constants)}
        for name, values in constants.items():
            self.register_buffer(self._buffer_names[name], torch.from_numpy(values.copy()))
        self._calls = [_Call(node, opset, constants) for node in graph.node]
        (self._input,) = (value.name for value in graph.input if value.name not in constants)
        self._output = graph.output[0].name

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        values = {name: getattr(self, buffer) for name, buffer in self._buffer_names.items()}
        values[self._input] = image
        for call in self._calls:
            values[call.output] = call(values)
        return values[self._output]


class _Call:
    """One node: its operator, the names of what it reads, and the numbers among that."""

    def __init__(self, node: onnx.NodeProto, opset: int, constants: Mapping[str, np.ndarray]) -> None:
        self.output = node.output[0]
        self._run = OPERATORS[node.op_type]
        self._attributes = Attributes(node, opset)
        self._inputs = tuple(node.input)
        self._numbers: dict[int, list[Any]] = {}
        for position in NUMBERS.get(node.op_type, ()):
            name = node.input[position] if position < len(node.input) else ""
            if name in constants:
                self._numbers[position] = constants[name].flatten().tolist()
            elif name:
                raise self._attributes.refuse(f"input {name}, which is no constant,")

    def __call__(self, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        arguments = [self._numbers.get(position, values.get(name)) for position, name in enumerate(self._inputs)]
        return self._run(self._attributes, *arguments)


class _ToChannelsLast(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.permute(0, 2, 3, 1)


def _makes_shapes(node: Any) -> bool | None:
    """Fold what torch's exporters compute padding with, too; None leaves it to the optimizer's own rules."""
    shape = node.inputs[0].const_value if node.op_type == "ConstantOfShape" else None
    return True if shape is not None and math.prod(shape.numpy().tolist()) <= _MOST_FOLDED else None


def _fix_input(model: onnx.ModelProto, path: Path) -> tuple[int, ...]:
    """Set the batch size to 1, and return the shape of the one input."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        found = f"{len(inputs)} inputs and {len(model.graph.output)} outputs"
        raise UnsupportedModel(f"{path} has {found}: expected one image and one output")
    tensor = inputs[0].type.tensor_type
    if tensor.elem_type != onnx.TensorProto.FLOAT:
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
        raise UnsupportedModel(f"{path} takes a tensor of type {kind}: expected a model in float32")
    axes = tensor.shape.dim
    if axes and not axes[0].dim_value:
        axes[0].dim_value = 1
    sizes = [axis.dim_value or axis.dim_param or "?" for axis in axes]
    image_shape(sizes, str(path))
    return tuple(axis.dim_value for axis in axes)
