"""Split a model by a plan: every tile computes, bit for bit, what the whole model would.

Only what lies outside the image is padding; inside it a tile's halo is real data at every layer. A node that needs
less of a tensor than another node does crops it with a StridedSlice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Node, Tensor
from edgepipe.exporters.vision.operators import Concatenation, Operator, Pad, Pads, Quantize, StridedSlice, Window
from edgepipe.exporters.vision.patches import PatchPlan, Region, Span, SplitModel, Tile, tile_bounds
from edgepipe.exporters.vision.receptive_field import CHANNELS, COLUMNS, ROWS, read_span, regions, split_points


def split(graph: Graph, plan: PatchPlan) -> SplitModel:
    """The tiles of a plan, a graph for each kind of tile, and the tail.

    Raises:
        UnsupportedModel: the graph cannot be split there, or the grid has more tiles than the output has pixels.
    """
    _check(graph, plan)
    _, height, width, _ = graph.tensors[graph.nodes[plan.split - 1].output].shape
    names: dict[tuple[object, ...], str] = {}
    tile_graphs: dict[str, Graph] = {}
    tiles = []
    for row, rows in enumerate(tile_bounds(height, plan.rows)):
        for column, columns in enumerate(tile_bounds(width, plan.columns)):
            output = Region(rows, columns)
            computed = regions(graph, plan.split, output)
            tile_graph = _tile_graph(graph, plan.split, output, computed)
            kind = tile_graph.nodes, tuple(tensor.shape for tensor in tile_graph.tensors)
            name = names.setdefault(kind, f"tile_{len(names)}")
            tile_graphs.setdefault(name, tile_graph)
            tiles.append(Tile(row, column, computed[graph.inputs[0]], output, name))
    return SplitModel(graph, plan, tuple(tiles), tile_graphs, _tail(graph, plan.split))


def join(model: SplitModel) -> Graph:
    """One graph with the whole model's inputs and outputs that computes the stage tile by tile.

    Tiles run row by row, and each row is joined as soon as it is done. A constant is there once, for all tiles. An
    image of uint8 becomes int8 before windows are cut out of it: TFLite Micro slices no uint8.
    """
    builder = _Assembly()
    whole, tail = model.whole, model.tail
    ahead = 1 if _quantizes_bytes(whole) else 0
    start = builder.tensor(whole.tensors[whole.inputs[0]])
    placed = {whole.inputs[0]: start}
    builder.extend(whole, whole.nodes[:ahead], placed)
    image = placed[_entry(whole, ahead)]
    stage = tail.tensors[tail.inputs[0]]
    rows = []
    for row in range(model.plan.rows):
        parts = []
        for tile in model.tiles[row * model.plan.columns : (row + 1) * model.plan.columns]:
            graph = model.tile_graphs[tile.graph]
            placed = {_entry(graph, ahead): builder.crop(image, tile.window)}
            builder.extend(graph, graph.nodes[ahead:], placed, f"tile_{tile.row}_{tile.column}/")
            parts.append(placed[graph.outputs[0]])
        rows.append(builder.stitch(parts, COLUMNS, stage, f"{stage.name}/row_{row}"))
    placed = {tail.inputs[0]: builder.stitch(rows, ROWS, stage, stage.name)}
    builder.extend(tail, tail.nodes, placed)
    return builder.build([start], [placed[index] for index in tail.outputs])


@dataclass
class _Assembly(GraphBuilder):
    """Builds a graph out of parts of others; constants and crops are there once."""

    _constants: dict[Tensor, int] = field(default_factory=dict)
    _crops: dict[tuple[int, Region], int] = field(default_factory=dict)

    def constant(self, tensor: Tensor) -> int:
        """A constant, added unless it is there."""
        if tensor not in self._constants:
            self._constants[tensor] = self.tensor(tensor)
        return self._constants[tensor]

    def crop(self, index: int, region: Region) -> int:
        """A region of an image: the image itself if that is all of it."""
        image = self.tensors[index]
        _, height, width, channels = image.shape
        if region == Region(Span(0, height), Span(0, width)):
            return index
        if (index, region) not in self._crops:
            (top, bottom), (left, right) = region.rows, region.columns
            self._crops[index, region] = self.node(
                StridedSlice((0, top, left, 0), (1, bottom, right, channels)),
                [index],
                f"{image.name}/{top}:{bottom},{left}:{right}",
                image.dtype,
                image.quantization,
            )
        return self._crops[index, region]

    def stitch(self, parts: list[int], axis: int, stage: Tensor, name: str) -> int:
        """Parts of the stage's output side by side."""
        if len(parts) == 1:
            return parts[0]
        return self.node(Concatenation(axis), parts, name, stage.dtype, stage.quantization)

    def extend(self, graph: Graph, nodes: Iterable[Node], placed: dict[int, int], prefix: str = "") -> None:
        """Add nodes of a graph. ``placed``: where its activations are, to which their outputs are added."""
        for node in nodes:
            inputs = [
                self.constant(graph.tensors[index]) if graph.is_constant(index) else placed[index]
                for index in node.inputs
            ]
            output = graph.tensors[node.output]
            placed[node.output] = self.node(
                node.operator, inputs, prefix + output.name, output.dtype, output.quantization
            )


def _check(graph: Graph, plan: PatchPlan) -> None:
    points = split_points(graph)
    if not points:
        raise UnsupportedModel("this model has no first stage that can run patch by patch")
    if plan.split not in points:
        raise UnsupportedModel(
            f"the plan splits after {plan.split} nodes: this model can be split after {', '.join(map(str, points))}"
        )
    _, height, width, _ = graph.tensors[graph.nodes[plan.split - 1].output].shape
    if not (1 <= plan.rows <= height and 1 <= plan.columns <= width):
        raise UnsupportedModel(
            f"the plan has {plan.rows}x{plan.columns} patches for {height}x{width} pixels: "
            "expected at least one patch each way, and a pixel for every patch"
        )


def _quantizes_bytes(whole: Graph) -> bool:
    (image,) = whole.inputs
    readers = [node.operator for node in whole.nodes if image in node.inputs]
    return whole.tensors[image].dtype == "uint8" and len(readers) == 1 and isinstance(readers[0], Quantize)


def _entry(graph: Graph, ahead: int) -> int:
    """The tensor that the nodes after the first ``ahead`` work on: that of the image, or of the last of them."""
    return graph.nodes[ahead - 1].output if ahead else graph.inputs[0]


def _tile_graph(graph: Graph, split: int, output: Region, computed: dict[int, Region]) -> Graph:
    """From a window of the image to ``output``; ``computed``: the regions of the tensors between."""
    builder = _Assembly()
    (image,) = graph.inputs
    window = graph.tensors[image]
    start = builder.tensor(replace(window, shape=computed[image].shape(window.shape[CHANNELS])))
    placed, held = {image: start}, dict(computed)
    nodes = [node for node in graph.nodes[:split] if node.output in computed]
    for position, node in enumerate(nodes):
        inputs = []
        for index in node.inputs:
            if graph.is_constant(index):
                inputs.append(builder.constant(graph.tensors[index]))
            else:
                region = _read(graph, node, index, computed[node.output])
                inputs.append(builder.crop(placed[index], region.within(held[index])))
        tensor = graph.tensors[node.output]
        operator = _tile_operator(graph, node, computed[node.output])
        unpadded = isinstance(operator, Pad) and not any(map(any, operator.before_after))
        if unpadded and tensor.quantization == builder.tensors[inputs[0]].quantization:
            placed[node.output] = inputs[0]
        else:
            placed[node.output] = builder.node(operator, inputs, tensor.name, tensor.dtype, tensor.quantization)
        # A tensor is cropped as soon as later nodes need only a part of it: that costs no more and holds less.
        for index in graph.activations(node):
            later = [
                _read(graph, reader, index, computed[reader.output])
                for reader in nodes[position + 1 :]
                if index in reader.inputs
            ]
            if later:
                region = reduce(Region.hull, later)
                placed[index] = builder.crop(placed[index], region.within(held[index]))
                held[index] = region
    last = nodes[-1].output
    return builder.build([start], [builder.crop(placed[last], output.within(held[last]))])


def _tail(graph: Graph, split: int) -> Graph:
    builder = _Assembly()
    stitched = graph.nodes[split - 1].output
    start = builder.tensor(graph.tensors[stitched])
    placed = {stitched: start}
    builder.extend(graph, graph.nodes[split:], placed)
    return builder.build([start], [placed[index] for index in graph.outputs])


def _read(graph: Graph, node: Node, index: int, output: Region) -> Region:
    """What a node reads of its input ``index`` for this region of its output."""
    _, height, width, _ = graph.tensors[index].shape
    rows = read_span(graph, node, index, ROWS, output.rows).clip(height)
    columns = read_span(graph, node, index, COLUMNS, output.columns).clip(width)
    return Region(rows, columns)


def _tile_operator(graph: Graph, node: Node, output: Region) -> Operator:
    """A node's operator, padding only what lies outside its input."""
    match node.operator:
        case Window() as window:
            return window.with_pads(_padding(graph, node, output))
        case Pad(before_after=(batch, _, _, channels)) as pad:
            pads = _padding(graph, node, output)
            return replace(pad, before_after=(batch, (pads.top, pads.bottom), (pads.left, pads.right), channels))
    return node.operator


def _padding(graph: Graph, node: Node, output: Region) -> Pads:
    _, height, width, _ = graph.tensors[node.inputs[0]].shape
    rows = read_span(graph, node, node.inputs[0], ROWS, output.rows)
    columns = read_span(graph, node, node.inputs[0], COLUMNS, output.columns)
    return Pads(max(-rows.begin, 0), max(-columns.begin, 0), max(rows.end - height, 0), max(columns.end - width, 0))
