"""What a split model is made of: which tiles, which padding, which crops, in which order, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.operators import (
    Add,
    Concatenation,
    Conv2D,
    DepthwiseConv2D,
    Mean,
    Operator,
    Pad,
    Pads,
    StridedSlice,
)
from edgepipe.exporters.vision.patch_split import join, split
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.write_tflite import write_tflite

QUANTIZATION = Quantization((0.5,), (0,))


def small_model() -> Graph:
    """Explicit pad, strided convolution to 12x12, residual of a depthwise and a pointwise layer, mean, convolution."""
    builder = GraphBuilder()

    def constant(*shape: int) -> int:
        codes = np.arange(np.prod(shape), dtype=np.int8).reshape(shape)
        return builder.tensor(Tensor("constant", shape, "int8", QUANTIZATION, codes))

    def node(name: str, operator: Operator, *inputs: int) -> int:
        return builder.node(operator, inputs, name, "int8", QUANTIZATION)

    image = builder.tensor(Tensor("image", (1, 24, 24, 3), "int8", QUANTIZATION))
    padded = node("padded", Pad(((0, 0), (0, 1), (0, 1), (0, 0))), image)
    first = node("first", Conv2D((3, 3), (2, 2)), padded, constant(4, 3, 3, 3))
    depthwise = node("depthwise", DepthwiseConv2D((3, 3), pads=Pads(1, 1, 1, 1)), first, constant(1, 3, 3, 4))
    pointwise = node("pointwise", Conv2D((1, 1)), depthwise, constant(4, 1, 1, 4))
    added = node("added", Add(), first, pointwise)
    mean = node("mean", Mean((1, 2), keep_dims=True), added)
    output = node("output", Conv2D((1, 1)), mean, constant(2, 1, 1, 4))
    graph = builder.build((image,), (output,))
    graph.check()
    return graph


def output_names(graph: Graph) -> list[str]:
    return [graph.tensors[node.output].name for node in graph.nodes]


def test_tiles_of_one_kind_share_a_graph() -> None:
    model = split(small_model(), PatchPlan(5, 4, 4))
    kinds = [[model.tiles[4 * row + column].graph for column in range(4)] for row in range(4)]
    # Tiles of 3x3: corners, edges and the inside differ.
    assert kinds[1][1] == kinds[1][2] == kinds[2][1] == kinds[2][2]
    assert kinds[0][1] == kinds[0][2]
    assert kinds[1][0] == kinds[2][0]
    assert len({name for row in kinds for name in row}) == len(model.tile_graphs) == 9


def test_only_what_lies_outside_the_image_is_padding() -> None:
    model = split(small_model(), PatchPlan(5, 2, 2))
    pads = {}
    for tile in model.tiles:
        nodes = model.tile_graphs[tile.graph].nodes
        (depthwise,) = (node.operator for node in nodes if isinstance(node.operator, DepthwiseConv2D))
        explicit = [node.operator.before_after[1:3] for node in nodes if isinstance(node.operator, Pad)]
        pads[tile.row, tile.column] = depthwise.pads, explicit
    assert pads == {
        (0, 0): (Pads(1, 1, 0, 0), []),
        (0, 1): (Pads(1, 0, 0, 1), [((0, 0), (0, 1))]),
        (1, 0): (Pads(0, 1, 1, 0), [((0, 1), (0, 0))]),
        (1, 1): (Pads(0, 0, 1, 1), [((0, 1), (0, 1))]),
    }


def test_a_branch_that_needs_less_is_cropped_once_nothing_reads_the_rest() -> None:
    tile = split(small_model(), PatchPlan(5, 4, 4)).tile_graphs["tile_4"]
    assert output_names(tile) == ["first", "depthwise", "first/1:4,1:4", "pointwise", "added"]
    crop = next(node for node in tile.nodes if isinstance(node.operator, StridedSlice))
    assert tile.tensors[crop.inputs[0]].shape == (1, 5, 5, 4)
    assert tile.tensors[crop.output].shape == (1, 3, 3, 4)


def test_all_parts_hold_the_same_constants() -> None:
    graph = small_model()
    model = split(graph, PatchPlan(5, 3, 2))
    known = {tensor for tensor in graph.tensors if tensor.data is not None}
    for part in (*model.tile_graphs.values(), model.tail):
        assert {tensor for tensor in part.tensors if tensor.data is not None} <= known
    joined = [tensor for tensor in join(model).tensors if tensor.data is not None]
    assert set(joined) == known
    assert len(joined) == len(known)


def test_a_written_split_model_stores_each_weight_once(random_graph: Callable[[int], Graph], tmp_path: Path) -> None:
    graph = random_graph(3)
    model = split(graph, PatchPlan(split_points(graph)[0], 2, 2))
    path = tmp_path / "model.tflite"
    write_tflite({"joined": join(model), "tail": model.tail, **model.tile_graphs}, path)
    content = path.read_bytes()
    weights = [tensor.data.tobytes() for tensor in graph.tensors if tensor.data is not None and tensor.nbytes >= 32]
    assert weights
    assert [content.count(data) for data in weights] == [1] * len(weights)


def test_each_row_of_tiles_is_joined_as_soon_as_it_is_done() -> None:
    joined = join(split(small_model(), PatchPlan(5, 2, 3)))
    joins = [name for name in output_names(joined) if re.fullmatch(r"tile_\d_\d/added|added.*", name)]
    assert joins == [
        *(f"tile_0_{column}/added" for column in range(3)),
        "added/row_0",
        *(f"tile_1_{column}/added" for column in range(3)),
        "added/row_1",
        "added",
    ]
    assert output_names(joined)[-2:] == ["mean", "output"]


@pytest.mark.parametrize(("rows", "columns", "joins"), [(1, 1, 0), (1, 3, 1), (3, 1, 1), (3, 3, 4)])
def test_one_tile_needs_no_joining(rows: int, columns: int, joins: int) -> None:
    joined = join(split(small_model(), PatchPlan(5, rows, columns)))
    assert sum(isinstance(node.operator, Concatenation) for node in joined.nodes) == joins


def test_names_of_a_joined_graph_are_unique() -> None:
    joined = join(split(small_model(), PatchPlan(5, 3, 3)))
    names = [tensor.name for tensor in joined.tensors if tensor.data is None]
    assert len(names) == len(set(names))


def test_one_patch_costs_the_whole_and_more_patches_more() -> None:
    graph = small_model()
    macs = [join(split(graph, PatchPlan(5, size, size))).macs for size in (1, 2, 3, 4, 6, 12)]
    assert macs[0] == graph.macs
    assert all(fewer < more for fewer, more in pairwise(macs))
    # 4x4: 144 pixels of "first" become (4 + 5 + 5 + 4) squared.
    assert macs[3] - graph.macs == (18**2 - 12**2) * 4 * 27


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (PatchPlan(3, 2, 2), "splits after 3 nodes: this model can be split after 2, 5"),
        (PatchPlan(0, 2, 2), "splits after 0 nodes"),
        (PatchPlan(99, 2, 2), "splits after 99 nodes"),
        (PatchPlan(5, 13, 1), "13x1 patches for 12x12 pixels: expected"),
        (PatchPlan(5, 1, 13), "1x13 patches for 12x12 pixels: expected"),
        (PatchPlan(5, 0, 2), "0x2 patches for 12x12 pixels: expected"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(plan: PatchPlan, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message) as error:
        split(small_model(), plan)
    assert "\n" not in str(error.value)


def test_a_model_that_mixes_the_whole_image_at_once_is_refused() -> None:
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", (1, 4, 4, 3), "int8", QUANTIZATION))
    mean = builder.node(Mean((1, 2)), (image,), "mean", "int8", QUANTIZATION)
    with pytest.raises(UnsupportedModel, match="no first stage"):
        split(builder.build((image,), (mean,)), PatchPlan(1, 2, 2))
