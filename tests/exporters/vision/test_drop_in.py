"""The drop-in against every plan there is, and against what TFLite Micro itself allocates."""

from __future__ import annotations

import pytest

from edgepipe.exporters.vision.drop_in import MIN_SAVING, find_drop_in
from edgepipe.exporters.vision.patch_split import join, split
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.tflm_arena import predict_tflm_arena
from edgepipe.exporters.vision.write_tflite import write_tflite

BLOCK = [("conv", 24, 1, 1, None), ("depthwise", 3, 2, None), ("conv", 6, 1, 1, None)]
NETWORKS = {
    "mean of a wide image": (40, [("conv", 16, 3, 1, None), ("depthwise", 3, 2, None), ("mean",)]),
    "bottlenecks": (40, [("conv", 6, 3, 1, None), *BLOCK, *BLOCK, ("mean",)]),
    "residual": (
        36,
        [
            ("conv", 6, 3, 1, None),
            ("conv", 24, 1, 1, None),
            ("conv", 6, 3, 1, None),
            ("add", 2),
            ("depthwise", 3, 2, None),
            ("mean",),
        ],
    ),
    "odd, large kernel, many channels after": (47, [("conv", 24, 7, 2, 1), ("conv", 40, 3, 2, 0), ("mean",)]),
    "nothing to save": (12, [("conv", 4, 3, 2, None), ("conv", 32, 1, 1, None)]),
}


def every_plan(graph):
    for point in split_points(graph):
        _, height, width, _ = graph.tensors[graph.nodes[point - 1].output].shape
        for rows in range(1, height + 1):
            for columns in range(1, width + 1):
                # More have multipliers and structures that outweigh all that these images take.
                if 1 < rows * columns <= 12:
                    yield PatchPlan(point, rows, columns)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_plan_is_overlooked(layer_stack, name):
    graph = layer_stack(*NETWORKS[name])
    whole = predict_tflm_arena(graph).nbytes
    joined = [join(split(graph, plan)) for plan in every_plan(graph)]
    arenas = [(predict_tflm_arena(other).nbytes, other.macs) for other in joined]
    for factor in (1, 1.1, 1.5, 4):
        smallest = min((arena for arena, macs in arenas if macs <= factor * graph.macs), default=whole)
        found = find_drop_in(graph, factor * graph.macs)
        if smallest > (1 - MIN_SAVING) * whole:
            assert found is None
        else:
            assert found is not None
            assert found.arena == predict_tflm_arena(found.graph)
            assert found.arena.nbytes == smallest
            assert found.macs == found.graph.macs <= factor * graph.macs
    assert (name == "nothing to save") == (find_drop_in(graph, 4 * graph.macs) is None)


@pytest.mark.parametrize("name", ["vww_96_int8", "resnet8_cifar10_int8"])
def test_tflite_micro_takes_less_for_real_models(tmp_path, tflm_allocations, data_folder, name):
    graph = read_tflite(data_folder / f"{name}.tflite")
    drop_in = find_drop_in(graph, 1.1 * graph.macs)
    write_tflite({"split": drop_in.graph}, tmp_path / "split.tflite")
    whole, found = (sum(tflm_allocations(path)) for path in (data_folder / f"{name}.tflite", tmp_path / "split.tflite"))
    assert found <= (1 - MIN_SAVING) * whole
    assert drop_in.arena.nbytes == pytest.approx(found, rel=0.01)
    assert drop_in.macs <= 1.1 * graph.macs


def test_mobilenet_v2_takes_a_quarter_of_the_activations(tmp_path, tflm_allocations, mobilenet_v2):
    graph = mobilenet_v2()
    drop_in = find_drop_in(graph, 1.1 * graph.macs)
    allocated = []
    for name, part in {"whole": graph, "split": drop_in.graph}.items():
        write_tflite({name: part}, tmp_path / f"{name}.tflite")
        allocated.append(tflm_allocations(tmp_path / f"{name}.tflite"))
    (whole_head, whole_tail), (head, tail) = allocated
    assert whole_head / head > 3.9
    assert (whole_head + whole_tail) / (head + tail) > 2.3
