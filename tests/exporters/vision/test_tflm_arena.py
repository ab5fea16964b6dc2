"""The predicted arena against what TFLite Micro's own allocator prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.patch_split import join, split
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.tflm_arena import predict_tflm_arena
from edgepipe.exporters.vision.write_tflite import write_tflite


@pytest.fixture
def check(tmp_path: Path, tflm_allocations: Callable[[Path], tuple[int, int]]) -> Callable[[Graph], None]:
    """Write a graph, have TFLite Micro allocate it, and compare: the head exactly, all of it within 1 %."""

    def compare(graph: Graph) -> None:
        path = tmp_path / "model.tflite"
        write_tflite({"main": graph}, path)
        head, tail = tflm_allocations(path)
        predicted = predict_tflm_arena(graph)
        assert predicted.head == head
        assert predicted.nbytes == pytest.approx(head + tail, rel=0.01)

    return compare


@pytest.mark.parametrize("name", ["vww_96_int8", "resnet8_cifar10_int8"])
def test_real_models_whole_and_split(check, data_folder, name):
    graph = read_tflite(data_folder / f"{name}.tflite")
    check(graph)
    for point in split_points(graph)[1::4]:
        check(join(split(graph, PatchPlan(point, 2, 3))))


def test_mobilenet_v2_whole_split_tile_and_tail(check, mobilenet_v2):
    graph = mobilenet_v2()
    check(graph)
    model = split(graph, PatchPlan(13, 4, 4))
    check(join(model))
    check(model.tile_graphs["tile_0"])
    check(model.tail)


@pytest.mark.parametrize("seed", range(25))
def test_random_networks(check, random_graph, seed):
    check(random_graph(seed))
