"""The layers of a model, numbered and named for a profile: a layer is the same one in every tile that computes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgepipe.exporters.vision.arena import Arena
from edgepipe.exporters.vision.call_list import Call, call_list
from edgepipe.exporters.vision.graph import Graph, Node, Tensor
from edgepipe.exporters.vision.operators import Window

# What tiles need besides the layers of the whole model.
CROP, CUT, STITCH = "crop tensors of tiles", "cut windows out of the image", "stitch tiles together"

# As EP_NAME_BYTES in runtimes/mcu/firmware/frame.h.
_LONGEST_NAME = 96


class LayerNames:
    """Numbers of the layers that ``parts`` of a model compute, in the order of the whole model, and their names."""

    def __init__(self, whole: Graph, parts: Iterable[tuple[Graph, Arena, int]], extras: Sequence[str] = ()) -> None:
        """Number them.

        Args:
            whole: the model.
            parts: a graph that computes some of its nodes, with its arena, and from which node of ``whole`` on.
            extras: other work that gets a number.
        """
        found: dict[int, tuple[Node, ...]] = {}
        self._positions: dict[int, dict[int, int]] = {}
        crops = False
        for graph, arena, begin in parts:
            positions = self._positions[id(graph)] = _positions(whole, graph, begin)
            for call in call_list(graph, arena):
                position = positions.get(call.nodes[-1].output)
                if position is None:
                    crops = True
                    continue
                outputs = [node.output for node in call.nodes if node.output in positions]
                found[position] = tuple(whole.nodes[positions[output]] for output in outputs)
        names = {position: layer_name(whole, found[position])[:_LONGEST_NAME] for position in sorted(found)}
        self.names = [*names.values(), *([CROP] if crops else []), *extras]
        self._numbers = {position: number for number, position in enumerate(names)}

    def of(self, graph: Graph, call: Call) -> int:
        """The number of a call in one of the parts."""
        position = self._positions[id(graph)].get(call.nodes[-1].output)
        return self.names.index(CROP) if position is None else self._numbers[position]

    def extra(self, name: str) -> int:
        """The number of other work."""
        return self.names.index(name)


def layer_name(graph: Graph, nodes: Sequence[Node]) -> str:
    """As in ``CONV_2D 3x3/2 96x96x3 -> 48x48x8``: the stride is left out where it is 1."""
    first = nodes[0]
    source, output = graph.tensors[first.inputs[0]], graph.tensors[nodes[-1].output]
    window = ""
    if isinstance(first.operator, Window):
        window = f" {by(first.operator.kernel)}"
        if first.operator.stride != (1, 1):
            window += f"/{first.operator.stride[0]}"
    names = " + ".join(node.operator.name for node in nodes)
    return f"{names}{window} {shape(source)} -> {shape(output)}"


def shape(tensor: Tensor) -> str:
    """Without the batch."""
    return by(tensor.shape[1:] if len(tensor.shape) > 1 else tensor.shape)


def by(sizes: Iterable[int]) -> str:
    """As in ``96x96x3``."""
    return "x".join(map(str, sizes))


def _positions(whole: Graph, graph: Graph, begin: int) -> dict[int, int]:
    """Which of the whole model's nodes computes a part's tensor; crops, which the whole has not, are not in it.

    A part's nodes stand in the order of the whole model's, and their outputs have its names.
    """
    positions = {}
    for node in graph.nodes:
        name = graph.tensors[node.output].name
        for position in range(begin, len(whole.nodes)):
            other = whole.nodes[position]
            if whole.tensors[other.output].name == name and type(other.operator) is type(node.operator):
                positions[node.output] = position
                begin = position + 1
                break
    return positions
