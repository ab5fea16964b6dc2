"""Bounds against plans that are laid out."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepipe.exporters.vision.axis_profile import MOST_PARTS, axis_profile, looks_the_same, part_counts
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.plan_bounds import plan_bounds
from edgepipe.exporters.vision.search import lay_out


@pytest.mark.parametrize("mode", ["streamed", "resident"])
@pytest.mark.parametrize("seed", range(30))
def test_bounds_hold_and_macs_are_those_of_the_tile_graphs(random_graph, seed, mode):
    graph = random_graph(seed)
    choices = random.Random(seed)
    for bounds in plan_bounds(graph, mode):
        at = tuple(choices.randrange(size) for size in bounds.arena.shape)
        plan = lay_out(graph, PatchPlan(bounds.split, int(bounds.rows[at[0]]), int(bounds.columns[at[1]])), mode)
        assert bounds.arena[at] <= plan.arena_bytes
        assert bounds.macs[at] == plan.macs
        assert bounds.graphs[at] >= plan.tile_graphs


def test_the_bound_of_mobilenet_v2_is_what_the_arena_takes(mobilenet_v2):
    graph = mobilenet_v2()
    for bounds in plan_bounds(graph, "streamed"):
        if bounds.split in (5, 10, 13, 17):
            plan = lay_out(graph, PatchPlan(bounds.split, 4, 4))
            # A line buffer, a pixel and alignment come on top.
            assert plan.arena_bytes == pytest.approx(bounds.arena[3, 3], rel=0.002)


def test_one_profile_serves_for_rows_and_columns_that_are_alike(mobilenet_v2, random_graph):
    graph = mobilenet_v2(96)
    assert looks_the_same(graph, 13)
    np.testing.assert_array_equal(axis_profile(graph, 13, 1).extents, axis_profile(graph, 13, 2).extents)
    assert not all(looks_the_same(random_graph(seed), 1) for seed in range(10))


@given(st.integers(1, 2**16))
def test_no_number_of_parts_is_left_out_that_makes_smaller_parts(size):
    counts = part_counts(size)
    assert counts == sorted(set(counts))
    assert set(range(1, min(size, 64) + 1)) <= set(counts)
    for parts in range(1, min(size, MOST_PARTS) + 1):
        largest = -(-size // parts)
        assert any(count <= parts and -(-size // count) <= largest for count in counts)


@pytest.mark.parametrize("size", [1024, 2047])
def test_large_images_have_no_more_grids_than_small_ones(layer_stack, size):
    graph = layer_stack(size, [("conv", 8, 3, 1, None), ("conv", 8, 3, 2, None), ("mean",)])
    for bounds in plan_bounds(graph, "streamed"):
        assert bounds.arena.shape == bounds.macs.shape == (len(bounds.rows), len(bounds.columns))
        assert bounds.rows[-1] <= MOST_PARTS
        plan = lay_out(graph, PatchPlan(bounds.split, int(bounds.rows[-1]), 3))
        assert bounds.arena[-1, 2] <= plan.arena_bytes
        assert bounds.macs[-1, 2] == plan.macs
