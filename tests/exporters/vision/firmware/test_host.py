"""The firmware's C on this computer: the bytes of TFLite Micro, and calls in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgepipe.exporters.vision.arena import plan_arena
from edgepipe.exporters.vision.fold_pads import fold_pads
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.patch_split import split
from edgepipe.exporters.vision.patches import PatchPlan, SplitModel
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.split_arena import plan_split_arena


def noise(graph: Graph, count: int) -> list[np.ndarray]:
    generator, image = np.random.default_rng(0), graph.tensors[graph.inputs[0]]
    limits = np.iinfo(image.dtype)
    return [generator.integers(limits.min, limits.max + 1, image.shape, image.dtype) for _ in range(count)]


def cut(graph: Graph, rows: int = 3, columns: int = 2) -> SplitModel:
    """Split as late as there are pixels for the grid."""
    stages = {point: graph.tensors[graph.nodes[point - 1].output].shape for point in split_points(graph)}
    return split(graph, PatchPlan(max(point for point, shape in stages.items() if min(shape[1:3]) > 2), rows, columns))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_random_network(seed: int, random_graph: Any, host_model: Any, reference: Any) -> None:
    """Whole, streamed and with the image in the arena."""
    graph = random_graph(seed)
    model, expected = cut(graph), reference(graph)
    built = [host_model(graph, plan_arena(graph))]
    built += [host_model(model, plan_split_arena(model, mode)) for mode in ("streamed", "resident")]
    for image in noise(graph, 2):
        for each in built:
            np.testing.assert_array_equal(each(image), expected(image))


@pytest.mark.parametrize("name", ["vww_96_int8", "resnet8_cifar10_int8"])
def test_real_network(name: str, data_folder: Any, host_model: Any, reference: Any) -> None:
    agree(fold_pads(read_tflite(data_folder / f"{name}.tflite")), host_model, reference)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "mobilenet_v2:0.35:144"])
def test_built_in_network(name: str, built_in: Any, host_model: Any, reference: Any) -> None:
    agree(built_in(name).graph, host_model, reference)


def agree(graph: Graph, host_model: Any, reference: Any) -> None:
    """Whole and streamed."""
    model, expected = cut(graph), reference(graph)
    built = [host_model(graph, plan_arena(graph)), host_model(model, plan_split_arena(model))]
    for image in noise(graph, 2):
        for each in built:
            np.testing.assert_array_equal(each(image), expected(image))


def test_calls_in_any_order(random_graph: Any, host_model: Any, reference: Any) -> None:
    """What comes out of turn is refused and changes nothing; an inference begun anew forgets the one before."""
    graph = random_graph(3)
    model = cut(graph)
    arena = plan_split_arena(model)
    host = host_model(model, arena)
    (first, second), count = noise(graph, 2), len(model.tiles)
    calls = host.calls
    assert calls.edgepipe_tiles() == count
    assert calls.edgepipe_patch_bytes(count) == 0
    calls.edgepipe_init()
    pieces = [np.ascontiguousarray(first[:, slice(*t.window.rows), slice(*t.window.columns)]) for t in model.tiles]
    for number, window in enumerate(pieces):
        assert host.output() is None
        for wrong in {number - 1, number + 1, count, 2**32 - 1} - {number}:
            assert calls.edgepipe_push_patch(wrong % 2**32) < 0
        host.push(number, window)
    assert calls.edgepipe_patch() is None
    assert calls.edgepipe_push_patch(count - 1) < 0
    expected = reference(graph)
    for _ in range(2):
        np.testing.assert_array_equal(host.output(), expected(first))
    calls.edgepipe_init()
    host.push(0, pieces[0])
    np.testing.assert_array_equal(host(second), expected(second))


def test_arena_is_painted(random_graph: Any, host_model: Any) -> None:
    graph = random_graph(5)
    host = host_model(graph, plan_arena(graph))
    host.calls.edgepipe_paint_arena()
    assert host.calls.edgepipe_arena_peak_bytes() == 0
    host(noise(graph, 1)[0])
    assert 0 < host.calls.edgepipe_arena_peak_bytes() <= plan_arena(graph).nbytes
