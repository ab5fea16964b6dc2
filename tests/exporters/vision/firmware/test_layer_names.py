"""Layers by number: the same in every tile, and named as the whole model has them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from edgepipe.exporters.vision.arena import plan_arena
from edgepipe.exporters.vision.call_list import call_list
from edgepipe.exporters.vision.layer_names import CROP, STITCH, LayerNames, layer_name
from edgepipe.exporters.vision.patch_split import split
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.split_arena import plan_split_arena


@pytest.mark.parametrize("seed", range(8))
def test_a_layer_is_the_same_in_every_tile(seed: int, random_graph: Any) -> None:
    graph = random_graph(seed)
    arena = plan_arena(graph)
    whole = LayerNames(graph, [(graph, arena, 0)])
    names = [whole.names[whole.of(graph, call)] for call in call_list(graph, arena)]
    assert names == [layer_name(graph, call.nodes) for call in call_list(graph, arena)]
    stages = {point: graph.tensors[graph.nodes[point - 1].output].shape for point in split_points(graph)}
    for point in [point for point, shape in stages.items() if min(shape[1:3]) > 2]:
        model = split(graph, PatchPlan(point, 3, 2))
        places = plan_split_arena(model)
        parts = [(part, places.tiles[key], 0) for key, part in model.tile_graphs.items()]
        parts.append((model.tail, places.tail, point))
        layers = LayerNames(graph, parts, [STITCH])
        assert set(layers.names) - {CROP, STITCH} == set(names)
        for part, its_arena, _ in parts:
            for call in call_list(part, its_arena):
                name = layers.names[layers.of(part, call)]
                operators = layer_name(part, call.nodes).partition(" ->")[0].rpartition(" ")[0]
                assert name == CROP or name.startswith(operators)
            numbers = [layers.of(part, call) for call in call_list(part, its_arena)]
            counted = [number for number in numbers if layers.names[number] != CROP]
            assert counted == sorted(counted)
        assert all(re.fullmatch(r"[ -~]{1,96}", name) and '"' not in name for name in layers.names)
