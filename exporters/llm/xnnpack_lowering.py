"""Lowers parts of a decoder to XNNPACK, one graph for all that differ in their weights only.

ExecuTorch's own partitioner looks at the whole decoder again for each of its many partitions, and takes minutes. Here a
part is one partition by construction, and the passes over its graph, nearly all of the time, run once a kind of part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from executorch.backends.xnnpack._passes import XNNPACKPassManager
from executorch.backends.xnnpack.utils.quant_utils import is_dynamic_qdq, tag_as_implicit_q_dq
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor, nn
from torch.export import ExportedProgram

from edgepipe.exporters.llm.xnnpack_modules import Part

# With it, preprocessing runs one pass only, which finds nothing to do: all have been run.
_PASSES_DONE = [CompileSpec("dqlinear_partitioner", b"")]


class Lowering:
    """Lowers parts, and keeps their graphs for the next part of the same kind and precisions."""

    def __init__(self) -> None:
        self._programs: dict[tuple[Any, ...], tuple[ExportedProgram, ExportedProgram]] = {}

    def lower(
        self, part: Part, arguments: Sequence[Tensor], shapes: Sequence[Any], at_first: Sequence[Any]
    ) -> LoweredBackendModule:
        """``part``, with its weights, as a delegate.

        Args:
            part: a module whose weights are all buffers.
            arguments: examples for its forward. No two may be the same tensor: they would become one.
            shapes: of each argument, the sizes that may be others than the example's, in torch.export's terms.
            at_first: likewise, with the largest sizes that each delegate of the loaded program has memory for. It takes
                more when it meets larger ones.
        """
        kind = type(part), part.precisions()
        if kind not in self._programs:
            exported = torch.export.export(part, tuple(arguments), dynamic_shapes=tuple(at_first))
            edge = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False))
            program = XNNPACKPassManager(edge.exported_program()).transform()
            for node in program.graph.nodes:
                # The partitioner's mark on factors that stay quantised; a bias needs to see it.
                if is_dynamic_qdq(node):
                    tag_as_implicit_q_dq(node)
            outline = torch.export.export(_Outline(part), tuple(arguments), dynamic_shapes=(tuple(shapes),))
            self._programs[kind] = program, outline
        program, outline = self._programs[kind]
        program.state_dict.update(part.state_dict())
        result = XnnpackBackend.preprocess(program, _PASSES_DONE)
        data = result.data_store_output
        delegate = LoweredBackendModule(outline, XnnpackBackend.__name__, result.processed_bytes, [], data)
        delegate.meta = {"debug_handle_map": result.debug_handle_map}
        return delegate


class _Outline(nn.Module):
    """Stands for a part while the decoder is traced, for which only shapes matter."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self._outline = part.outline

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self._outline(*inputs)
