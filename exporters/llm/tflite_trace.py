"""A torch module as a piece of a TFLite graph, which litert-torch converts once for all layers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra, UnsupportedModel
from edgepipe.exporters.sources.quiet import no_output
from edgepipe.exporters.sources.weights import one_line

try:
    import torch
    from torch import Tensor, nn

    with no_output():
        import litert_torch
        from ai_edge_litert import schema_py_generated as schema
except ImportError as missing:
    raise MissingExtra(missing.name or "litert-torch", "export") from missing

# Slots while tracing: a prime that no other size of a model is, so that it can be found again.
SLOTS = 10_007


@dataclass(frozen=True)
class Trace:
    """A converted module: a model of the schema with one subgraph, and the names of the tensors that are parameters."""

    model: Any
    parameters: dict[int, str]

    @property
    def subgraph(self) -> Any:
        """The module's graph; inputs and outputs are in the order of its arguments and results."""
        return self.model.subgraphs[0]

    def operators(self, outputs: Sequence[int]) -> list[Any]:
        """The operators that the tensors ``outputs`` need, in the order of computation."""
        needed, found = set(outputs), []
        for operator in reversed(self.subgraph.operators):
            if needed.intersection(operator.outputs.tolist()):
                needed.update(operator.inputs.tolist())
                found.append(operator)
        return found[::-1]

    def constant(self, tensor: int) -> np.ndarray | None:
        """The bytes of a constant, uint8; None for a tensor that is computed."""
        return self.model.buffers[self.subgraph.tensors[tensor].buffer].data

    def numbers(self, tensor: int) -> list[int]:
        """The elements of a constant of type int32."""
        return np.frombuffer(bytes(self.model.buffers[self.subgraph.tensors[tensor].buffer].data), np.int32).tolist()


def trace(module: nn.Module, arguments: Sequence[Tensor]) -> Trace:
    """Convert ``module``, whose parameters are overwritten: by what they are filled with they are found again.

    Raises:
        UnsupportedModel: litert-torch cannot convert it.
    """
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    with tempfile.TemporaryDirectory() as folder, no_output():
        path = Path(folder) / "traced.tflite"
        try:
            litert_torch.convert(module.eval(), tuple(arguments)).export(str(path))
        except Exception as error:  # torch.export and MLIR raise whatever their many passes do
            raise UnsupportedModel(
                f"litert-torch cannot convert a {type(module).__name__} ({one_line(error)})"
            ) from error
        model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(path.read_bytes(), 0))
    traced = Trace(model, {})
    names = {values.detach().numpy().tobytes(): name for name, values in module.named_parameters()}
    for index in range(len(traced.subgraph.tensors)):
        data = traced.constant(index)
        if data is not None and bytes(data) in names:
            traced.parameters[index] = names[bytes(data)]
    if lost := set(names.values()) - set(traced.parameters.values()):
        raise UnsupportedModel(f"litert-torch has changed {', '.join(sorted(lost))}: use the version in pyproject.toml")
    return traced


def random(*shape: int) -> Tensor:
    """An argument to trace with."""
    return torch.randn(shape)
