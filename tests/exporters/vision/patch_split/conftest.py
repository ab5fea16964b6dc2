"""What the tests of splitting share: engines, images, and the comparison of a split model with the whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.patch_split import join, split
from edgepipe.exporters.vision.patches import PatchPlan, SplitModel
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.write_tflite import write_tflite

Model = Callable[[np.ndarray], np.ndarray]
# Graphs, the first of them the main one → each of them, ready to run.
Engine = Callable[[Mapping[str, Graph]], dict[str, Model]]

# Rows and columns: square and not, even and not, one row of tiles, tiles of one row.
GRIDS = ((2, 2), (3, 3), (4, 4), (5, 3), (1, 4), (7, 1), (100, 1))


@pytest.fixture(params=["tflm", "builtin_ref"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """TFLite Micro runs one file a graph; LiteRT, one file with a signature for each."""
    load = request.getfixturevalue(request.param)

    def prepare(graphs: Mapping[str, Graph]) -> dict[str, Model]:
        path = tmp_path / "model.tflite"
        models = {}
        if request.param == "builtin_ref":
            write_tflite(graphs, path)
            return {name: load(path, name) for name in graphs}
        for name, graph in graphs.items():
            write_tflite({name: graph}, path)
            models[name] = load(path)
        return models

    return prepare


@pytest.fixture(scope="session")
def extreme_images() -> Callable[..., list[np.ndarray]]:
    """``extreme_images(graph, noise=2)`` → so many of noise, all lowest, all highest, a checkerboard of both."""

    def draw(graph: Graph, noise: int = 2) -> list[np.ndarray]:
        tensor = graph.tensors[graph.inputs[0]]
        lowest, highest = np.iinfo(tensor.dtype).min, np.iinfo(tensor.dtype).max
        generator = np.random.default_rng(noise)
        board = np.indices(tensor.shape).sum(axis=0) % 2 == 1
        return [
            *(generator.integers(lowest, highest, tensor.shape, tensor.dtype, endpoint=True) for _ in range(noise)),
            np.full(tensor.shape, lowest, tensor.dtype),
            np.full(tensor.shape, highest, tensor.dtype),
            np.where(board, lowest, highest).astype(tensor.dtype),
        ]

    return draw


@pytest.fixture(scope="session")
def plans_on_grids() -> Callable[..., list[PatchPlan]]:
    """``plans_on_grids(graph, grids)`` → every split on each grid of rows and columns, cut down to the output's."""

    def draw(graph: Graph, grids: Iterable[tuple[int, int]]) -> list[PatchPlan]:
        plans = {}
        for point in split_points(graph):
            _, height, width, _ = graph.tensors[graph.nodes[point - 1].output].shape
            plans |= {PatchPlan(point, min(rows, height), min(columns, width)): None for rows, columns in grids}
        return list(plans)

    return draw


@pytest.fixture(scope="session")
def plans_in_rotation() -> Callable[[Graph], list[PatchPlan]]:
    """``plans_in_rotation(graph)`` → one for each split, on grids in rotation, cut down to the output's size."""

    def draw(graph: Graph) -> list[PatchPlan]:
        plans = []
        for point, (rows, columns) in zip(split_points(graph), itertools.cycle(GRIDS), strict=False):
            _, height, width, _ = graph.tensors[graph.nodes[point - 1].output].shape
            plans.append(PatchPlan(point, min(rows, height), min(columns, width)))
        return plans

    return draw


@pytest.fixture
def assert_exact(engine: Engine) -> Callable[[Graph, Iterable[PatchPlan], list[np.ndarray]], None]:
    """``assert_exact(graph, plans, images)``: resident and streamed, at the split and at the end, no byte differs."""

    def compare(graph: Graph, plans: Iterable[PatchPlan], images: list[np.ndarray]) -> None:
        plans = list(plans)
        splits = sorted({plan.split for plan in plans})
        whole = engine({"whole": graph} | {f"stage_{point}": stage_of(graph, point) for point in splits})
        outputs = [whole["whole"](image) for image in images]
        stages = {point: [whole[f"stage_{point}"](image) for image in images] for point in splits}
        for plan in plans:
            model = split(graph, plan)
            joined = join(model)
            for part in (joined, model.tail, *model.tile_graphs.values()):
                part.check()
            models = engine({"joined": joined, "tail": model.tail, **model.tile_graphs})
            for image, stage, output in zip(images, stages[plan.split], outputs, strict=True):
                assert np.array_equal(models["joined"](image), output), plan
                stitched = stream(model, models, image)
                assert np.array_equal(stitched, stage), plan
                assert np.array_equal(models["tail"](stitched), output), plan

    return compare


def stage_of(graph: Graph, split: int) -> Graph:
    """The whole model up to the split, as one graph: its output shows more than a classifier's few numbers."""
    return Graph(graph.tensors, graph.nodes[:split], graph.inputs, (graph.nodes[split - 1].output,))


def stream(model: SplitModel, models: dict[str, Model], image: np.ndarray) -> np.ndarray:
    """The stage's output, from one window after another; every pixel of it is written once."""
    stage = model.tail.tensors[model.tail.inputs[0]]
    stitched = np.zeros(stage.shape, stage.dtype)
    written = np.zeros(stage.shape, int)
    for tile in model.tiles:
        window = image[:, slice(*tile.window.rows), slice(*tile.window.columns)]
        place = slice(None), slice(*tile.output.rows), slice(*tile.output.columns)
        stitched[place] = models[tile.graph](np.ascontiguousarray(window))
        written[place] += 1
    assert (written == 1).all()
    return stitched
