"""Every split of real models, on many grids, gives the whole model's bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.source import open_vision

# Rows and columns: square and not, even and not, one row of tiles, tiles of one row.
GRIDS = ((2, 2), (3, 3), (4, 4), (5, 3), (1, 4), (7, 1), (100, 1))

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["vww_96_int8", "resnet8_cifar10_int8"])
def test_mlperf_tiny_models_split_exactly(
    assert_exact: Callable[..., None],
    extreme_images: Callable[..., list[np.ndarray]],
    plans_on_grids: Callable[..., list[PatchPlan]],
    data_folder: Path,
    name: str,
) -> None:
    graph = read_tflite(data_folder / f"{name}.tflite")
    assert_exact(graph, plans_on_grids(graph, GRIDS), extreme_images(graph, noise=1))


@pytest.fixture(scope="module")
def built_in(request: pytest.FixtureRequest) -> Graph:
    """A built-in model with random weights."""
    return open_vision(request.param).graph


@pytest.mark.parametrize(
    "built_in",
    [
        f"{name}:{size}"
        for name, sizes in {
            "mobilenet_v1:0.25": (64, 90),
            "mobilenet_v2:0.35": (64, 75),
            "mcunet:0.5": (64, 80),
            "resnet8": (32, 45),
        }.items()
        for size in sizes
    ],
    indirect=True,
)
def test_built_in_models_split_exactly(
    assert_exact: Callable[..., None],
    extreme_images: Callable[..., list[np.ndarray]],
    plans_on_grids: Callable[..., list[PatchPlan]],
    built_in: Graph,
) -> None:
    assert_exact(built_in, plans_on_grids(built_in, GRIDS), extreme_images(built_in, noise=1))
