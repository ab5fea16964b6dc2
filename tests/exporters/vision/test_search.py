"""The plan that is found: the paper's, that of a search by brute force, and one no worse than others publish."""

from __future__ import annotations

import pytest

from edgepipe.errors import DoesNotFit
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.search import find_plans, lay_out, model_flash_bytes, whole_plan

KIB = 1024


def test_the_plan_of_mcunet_v2_for_mobilenet_v2(mobilenet_v2):
    """Table 1 of arXiv 2110.15352: 4x4 patches of 75x75 pixels, 1372 kB to 172 kB, 10 % more arithmetic overall."""
    graph = mobilenet_v2()
    best = find_plans(graph, 192 * KIB)[0]
    assert best.patches == PatchPlan(split=13, rows=4, columns=4)
    assert graph.tensors[graph.nodes[12].output].shape == (1, 28, 28, 32)
    assert best.window == (75, 75)
    assert whole_plan(graph).arena_bytes == 1372 * KIB
    assert best.arena_bytes <= 172 * KIB
    assert 1 < best.macs / graph.macs <= 1.10


def grids(graph):
    for point in split_points(graph):
        _, rows, columns, _ = graph.tensors[graph.nodes[point - 1].output].shape
        for tiles in range(2, rows * columns + 1):
            for down in range(1, rows + 1):
                if tiles % down == 0 and tiles // down <= columns:
                    yield PatchPlan(point, down, tiles // down)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["streamed", "resident"])
def test_no_plan_is_overlooked(layer_stack, mode):
    block = [("conv", 8, 1, 1, None), ("depthwise", 3, 2, None), ("conv", 6, 1, 1, None)]
    graph = layer_stack(12, [("conv", 6, 3, 1, None), *block, ("mean",)])
    plans = [whole_plan(graph, mode), *(lay_out(graph, patches, mode) for patches in grids(graph))]
    smallest = min(plan.arena_bytes for plan in plans)
    for budget in (smallest, 1000, 1200, 1400, 1600, 2000):
        fitting = [plan for plan in plans if plan.arena_bytes <= budget]
        if not fitting:
            continue
        (best,) = find_plans(graph, budget, mode=mode, reserve_bytes=0, count=1)
        assert best.arena_bytes <= budget
        percent = min((plan.macs - graph.macs) * 100 // graph.macs for plan in fitting)
        assert (best.macs - graph.macs) * 100 // graph.macs == percent
        if best.patches is not None:
            equals = [plan for plan in fitting if (plan.macs - graph.macs) * 100 // graph.macs == percent]
            assert best.tile_graphs == min(plan.tile_graphs for plan in equals)
    with pytest.raises(DoesNotFit, match=f"the smallest that does is {-(-smallest // KIB)}K"):
        find_plans(graph, smallest - 1, mode=mode, reserve_bytes=0)


def test_the_sram_that_the_error_names_is_enough_and_less_is_not(mobilenet_v2):
    graph = mobilenet_v2(96)
    with pytest.raises(DoesNotFit, match="16.0 KiB of SRAM, 8.0 KiB of it kept.*try --sram (\\d+)K") as failure:
        find_plans(graph, 16 * KIB)
    needed = int(str(failure.value).rpartition(" ")[2].removesuffix("K"))
    assert find_plans(graph, needed * KIB)[0].arena_bytes <= (needed - 8) * KIB
    with pytest.raises(DoesNotFit):
        find_plans(graph, (needed - 1) * KIB)


def test_an_error_tells_little_memory_from_none(mobilenet_v2):
    with pytest.raises(DoesNotFit, match="no plan fits into 1 byte of SRAM, 8.0 KiB of it"):
        find_plans(mobilenet_v2(96), 1)
    with pytest.raises(DoesNotFit, match="of flash and there are 100 bytes"):
        find_plans(mobilenet_v2(96), 192 * KIB, flash_bytes=100)


def test_weights_that_do_not_fit_into_flash_are_refused(mobilenet_v2):
    graph = mobilenet_v2()
    # 3,469,760 weights without the biases of the classifier, 4 bytes for each of the 17,056 other biases, 8 for each of
    # the multipliers and shifts of 18,056 channels.
    assert model_flash_bytes(graph) == 3_469_760 + 4 * 17_056 + 8 * 18_056
    with pytest.raises(DoesNotFit, match="flash"):
        find_plans(graph, 192 * KIB, flash_bytes=1024 * KIB)


def test_plans_differ_and_come_by_cost(mobilenet_v2):
    graph = mobilenet_v2()
    plans = find_plans(graph, 256 * KIB, mode="resident")
    assert len({plan.patches for plan in plans}) == len(plans) == 5
    overheads = [(plan.macs - graph.macs) * 100 // graph.macs for plan in plans]
    assert overheads == sorted(overheads)
    assert all(plan.arena_bytes <= 248 * KIB for plan in plans)


def test_a_model_that_fits_is_left_whole(mobilenet_v2):
    best = find_plans(mobilenet_v2(96), 1024 * KIB)[0]
    assert best.patches is None
    assert best.macs == mobilenet_v2(96).macs


def bottleneck(width, channels, expansion, stride, kernel=3):
    return [
        ("conv", width * expansion, 1, 1, 0),
        ("depthwise", kernel, stride, kernel // 2),
        ("conv", channels, 1, 1, 0),
    ]


def widths(first, *rest):
    """Bottlenecks from (channels, expansion, stride[, kernel]); each begins where the last one ends."""
    layers = []
    for channels, *shape in rest:
        layers += bottleneck(first, channels, *shape)
        first = channels
    return layers


# Networks and results of msf-CNN (arXiv 2505.11483; TinyPART/msf-CNN, analysis_optimization.py and results.json):
# size of the image, layers, multiply-accumulates; then RAM in bytes, and by how much its plan for that multiplies them.
MSF_CNN = {
    "MBV2-w0.35-r144": (
        144,
        [
            ("conv", 11, 3, 2, 1),
            *widths(11, (5, 1, 1), (8, 6, 2), (8, 6, 1), (11, 6, 2), (11, 6, 1), (11, 6, 1), (22, 6, 2), (22, 6, 1)),
            *widths(22, (22, 6, 1), (22, 6, 1), (33, 6, 1), (33, 6, 1), (33, 6, 1), (56, 6, 2), (56, 6, 1), (56, 6, 1)),
            *widths(56, (112, 6, 1)),
            ("conv", 448, 1, 1, 0),
        ],
        18_909_490,
        [(67_996, 1.097), (25_803, 1.253)],
    ),
    "vww-5fps-r80": (
        80,
        [
            ("conv", 16, 3, 2, 1),
            ("depthwise", 3, 1, 1),
            ("conv", 8, 1, 1, 0),
            *widths(8, (16, 6, 2), (16, 3, 1), (16, 3, 1), (24, 3, 2, 7), (24, 6, 1), (24, 5, 1, 5), (40, 6, 2, 7)),
            *widths(40, (40, 6, 1, 7), (48, 6, 1), (48, 4, 1), (96, 5, 2, 5), (96, 5, 1), (96, 4, 1), (160, 3, 1, 7)),
        ],
        None,
        [(45_283, 1.04), (26_240, 1.11)],
    ),
}


@pytest.mark.parametrize("name", MSF_CNN)
def test_plans_are_no_worse_than_those_of_msf_cnn(layer_stack, name):
    size, layers, macs, results = MSF_CNN[name]
    graph = layer_stack(size, layers)
    if macs is not None:
        assert graph.macs == macs
    for ram, factor in results:
        (best,) = find_plans(graph, ram, reserve_bytes=0, count=1)
        assert best.macs / graph.macs <= factor


@pytest.mark.parametrize(("size", "sram"), [(128, 52), (96, 20)])
def test_an_error_about_a_resident_image_offers_only_what_fits(mobilenet_v2, size, sram):
    graph = mobilenet_v2(size)
    with pytest.raises(DoesNotFit) as failure:
        find_plans(graph, sram * KIB, mode="resident")
    advice = str(failure.value).rpartition("try ")[2]
    resident, _, streamed = advice.partition(" or --mode streamed")
    assert find_plans(graph, int(resident.removeprefix("--sram ").removesuffix("K")) * KIB, mode="resident")
    needed = streamed.removeprefix(" --sram ").removesuffix("K")
    assert find_plans(graph, int(needed or sram) * KIB, mode="streamed")
    if needed:
        with pytest.raises(DoesNotFit):
            find_plans(graph, sram * KIB, mode="streamed")


def test_a_streamed_image_is_not_offered_where_it_needs_as_much(layer_stack):
    graph = layer_stack(4, [("conv", 4, 3, 1, None), ("mean",), ("dense", 30_000)])
    with pytest.raises(DoesNotFit) as failure:
        find_plans(graph, 16 * KIB, mode="resident")
    assert "--mode" not in str(failure.value)
