"""200 random networks, split at random, give the whole network's bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.receptive_field import split_points


def random_plans(graph: Graph, seed: int) -> set[PatchPlan]:
    """Up to three splits; on each an uneven grid, and one of tiles of one row or one column."""
    choices = random.Random(seed)
    points = split_points(graph)
    plans = set()
    for point in choices.sample(points, min(3, len(points))):
        _, height, width, _ = graph.tensors[graph.nodes[point - 1].output].shape
        plans.add(PatchPlan(point, choices.randint(1, min(4, height)), choices.randint(1, min(4, width))))
        plans.add(PatchPlan(point, *choices.choice(((height, 1), (1, width), (min(2, height), min(3, width))))))
    return plans


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 200))])
def test_random_graphs_split_exactly(
    random_graph: Callable[[int], Graph],
    assert_exact: Callable[..., None],
    extreme_images: Callable[..., list[np.ndarray]],
    seed: int,
) -> None:
    graph = random_graph(seed)
    assert_exact(graph, random_plans(graph, seed), extreme_images(graph))
