"""Bounds against plans that are laid out."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edgepipe.exporters.vision.axis_profile import axis_profile, looks_the_same
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
