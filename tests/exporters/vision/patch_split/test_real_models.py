"""Every split of real models, on grids in rotation, gives the whole model's bytes.

`benchmarks/split_exactness.py` tries every split on every one of these grids, with more images and resolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.source import VisionSource

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["vww_96_int8", "resnet8_cifar10_int8"])
def test_mlperf_tiny_models_split_exactly(
    assert_exact: Callable[..., None],
    random_images: Callable[..., list[np.ndarray]],
    plans_in_rotation: Callable[[Graph], list[PatchPlan]],
    data_folder: Path,
    name: str,
) -> None:
    graph = read_tflite(data_folder / f"{name}.tflite")
    assert_exact(graph, plans_in_rotation(graph), random_images(graph, count=1)[::3])


# The smallest images that these networks take end in 1x1, odd ones pad on other sides.
@pytest.mark.parametrize(
    "reference",
    [
        "mobilenet_v1:0.25:16",
        "mobilenet_v1:0.25:67",
        "mobilenet_v2:0.35:16",
        "mobilenet_v2:0.35:66",
        "mcunet:0.5:16",
        "mcunet:0.5:65",
        "resnet8",
        "resnet8:37",
    ],
)
def test_built_in_models_split_exactly(
    assert_exact: Callable[..., None],
    random_images: Callable[..., list[np.ndarray]],
    plans_in_rotation: Callable[[Graph], list[PatchPlan]],
    built_in: Callable[[str], VisionSource],
    reference: str,
) -> None:
    graph = built_in(reference).graph
    assert_exact(graph, plans_in_rotation(graph), random_images(graph, count=1)[::3])
