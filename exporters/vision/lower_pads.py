"""Say every padding with what TFLite has: VALID, SAME, and nodes that pad.

Patches at an image's border need padding on some sides only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Node
from edgepipe.exporters.vision.operators import (
    NO_PADS,
    AveragePool2D,
    Concatenation,
    MaxPool2D,
    Operator,
    Pad,
    StridedSlice,
    Window,
)


def lower_pads(graph: Graph) -> Graph:
    """The same graph with windows padded as VALID or SAME only; tensors keep their indices.

    A convolution gets a PAD of zero points before it, a max pool a PADV2 of the lowest code. An average counts only
    the elements inside the image, so an average pool falls apart into pools of the windows cut at the border.

    Raises:
        UnsupportedModel: an average pool has a window wholly outside the image.
    """
    builder = GraphBuilder(list(graph.tensors))
    for node in graph.nodes:
        operator = node.operator
        if not isinstance(operator, Window) or _is_valid_or_same(graph, node, operator):
            builder.nodes.append(node)
        elif isinstance(operator, AveragePool2D):
            _lower_average(builder, node, operator)
        else:
            _lower_window(builder, node, operator)
    return builder.build(graph.inputs, graph.outputs)


def _is_valid_or_same(graph: Graph, node: Node, operator: Window) -> bool:
    return operator.pads in (NO_PADS, operator.same_pads(graph.tensors[node.inputs[0]].shape))


def _lower_window(builder: GraphBuilder, node: Node, operator: Window) -> None:
    image = builder.tensors[node.inputs[0]]
    pads = operator.pads
    value = int(np.iinfo(image.dtype).min) if isinstance(operator, MaxPool2D) else None
    pad = Pad(((0, 0), (pads.top, pads.bottom), (pads.left, pads.right), (0, 0)), value)
    padded = builder.node(pad, node.inputs[:1], f"{image.name}/padded", image.dtype, image.quantization)
    builder.nodes.append(Node(operator.with_pads(NO_PADS), (padded, *node.inputs[1:]), node.output))


class _Run(NamedTuple):
    """Neighbouring windows of one length along an axis, from element ``begin`` to ``end`` of the image."""

    begin: int
    end: int
    kernel: int


def _runs(size: int, kernel: int, stride: int, before: int, after: int) -> Iterator[_Run]:
    starts = range(-before, size + after - kernel + 1, stride)
    inside = [start for start in starts if start >= 0 and start + kernel <= size]
    for start in starts:
        if start in inside:
            if start == inside[0]:
                yield _Run(start, inside[-1] + kernel, kernel)
        else:
            begin, end = max(start, 0), min(start + kernel, size)
            yield _Run(begin, end, end - begin)


def _lower_average(builder: GraphBuilder, node: Node, operator: AveragePool2D) -> None:
    image = builder.tensors[node.inputs[0]]
    output = builder.tensors[node.output]
    pads, (kernel_rows, kernel_columns), (stride_rows, stride_columns) = operator.pads, operator.kernel, operator.stride
    rows = list(_runs(image.shape[1], kernel_rows, stride_rows, pads.top, pads.bottom))
    columns = list(_runs(image.shape[2], kernel_columns, stride_columns, pads.left, pads.right))
    if min(run.kernel for run in (*rows, *columns)) < 1:
        raise UnsupportedModel(
            f"{operator.name}, tensor {node.output} ({output.name}), averages over a window outside the image: "
            f"pads {tuple(pads)} of a kernel {operator.kernel}"
        )

    def add(operator: Operator, inputs: tuple[int, ...], name: str) -> int:
        return builder.node(operator, inputs, f"{output.name}/{name}", output.dtype, output.quantization)

    def pool(row: _Run, column: _Run) -> int:
        begin = (0, row.begin, column.begin, 0)
        end = (image.shape[0], row.end, column.end, image.shape[3])
        window = add(StridedSlice(begin, end), node.inputs, f"window_{row.begin}_{column.begin}")
        cut = replace(operator, kernel=(row.kernel, column.kernel), pads=NO_PADS)
        return add(cut, (window,), f"pool_{row.begin}_{column.begin}")

    def join(parts: tuple[int, ...], axis: int, name: str) -> int:
        return parts[0] if len(parts) == 1 else add(Concatenation(axis), parts, name)

    join(
        tuple(join(tuple(pool(row, column) for column in columns), 2, f"band_{row.begin}") for row in rows), 1, "joined"
    )
    # The last of these nodes gives the pool's own output.
    builder.tensors.pop()
    builder.nodes[-1] = replace(builder.nodes[-1], output=node.output)
