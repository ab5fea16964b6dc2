"""int8 graphs as one ExecuTorch program: a method per graph, XNNPACK's int8 operators, weights stored once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from edgepipe.errors import MissingExtra
from edgepipe.exporters.sources.quiet import no_output
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.torch_graph import TorchGraph

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager


def write_executorch(graphs: Mapping[str, Graph], path: Path) -> None:
    """Write ``graphs`` to ``path``, each as the method of its name.

    Inputs and outputs have the graphs' own shapes and types.

    Raises:
        MissingExtra: executorch is not installed.
        UnsupportedModel: a graph has something that there is no int8 operator for.
    """
    program = lower(graphs).to_executorch()
    with path.open("wb") as file:
        program.write_to_file(file)


def lower(graphs: Mapping[str, Graph]) -> EdgeProgramManager:
    """The methods, with all that XNNPACK takes handed over to it."""
    with no_output():  # ExecuTorch and torch warn of each other's next versions
        try:
            from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

            from edgepipe.exporters.vision.xnnpack_partitioner import int8_partitioner
        except ImportError as error:
            raise MissingExtra("executorch", "export") from error
        programs = {
            name: torch.export.export(TorchGraph(graph).eval(), _examples(graph)) for name, graph in graphs.items()
        }
        return to_edge_transform_and_lower(
            programs,
            partitioner=[int8_partitioner()],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )


def _examples(graph: Graph) -> tuple[torch.Tensor, ...]:
    tensors = (graph.tensors[index] for index in graph.inputs)
    return tuple(torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype)) for tensor in tensors)
