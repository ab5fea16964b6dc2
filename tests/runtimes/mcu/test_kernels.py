"""Every kernel against TFLite Micro's: random shapes, paddings, scales, zero points and values; no byte may differ."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepipe.exporters.vision.graph import GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.in_place import may_overwrite
from edgepipe.exporters.vision.operators import ShapeError, Softmax

RELAXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


def check(operator: str, rng: random.Random, operators: Any, tflm: Any, run_node: Any) -> None:
    """Into memory of its own, and over every input that the planner lets it write over."""
    try:
        graph = operators.GRAPHS[operator](rng)
    except ShapeError:
        return
    tensors = [graph.tensors[index] for index in graph.inputs]
    inputs = [operators.codes(rng, tensor.shape, tensor.dtype) for tensor in tensors]
    if math.prod(tensors[0].shape) == 256:
        inputs[0] = np.arange(256, dtype=np.uint8).view(tensors[0].dtype).reshape(tensors[0].shape)
    expected = tflm(graph, *inputs)
    np.testing.assert_array_equal(run_node(graph, *inputs), expected)
    (node,) = graph.nodes
    for position, index in enumerate(node.inputs):
        if graph.tensors[index].data is None and may_overwrite(graph, node, index):
            np.testing.assert_array_equal(run_node(graph, *inputs, in_place=position), expected)


def test_kernel_is_tflite_micros(operator: str, operators: Any, tflm: Any, run_node: Any) -> None:
    @settings(max_examples=60, suppress_health_check=RELAXED, database=None)
    @given(st.randoms(use_true_random=False))
    def agree(rng: random.Random) -> None:
        check(operator, rng, operators, tflm, run_node)

    agree()


@pytest.mark.slow
def test_kernel_is_tflite_micros_a_thousand_times(operator: str, operators: Any, tflm: Any, run_node: Any) -> None:
    for seed in range(1000):
        check(operator, random.Random(seed), operators, tflm, run_node)


@pytest.mark.parametrize("classes", [511, 512, 1001, 4095])
def test_softmax_over_many_equal_classes(classes: int, run_node: Any) -> None:
    """Each has less than a step of 1/256. TFLite Micro on a PC shifts by more than 31 bits here, and answers 127."""
    builder = GraphBuilder()
    source = builder.tensor(Tensor("data", (1, classes), "int8", Quantization((0.125,), (0,))))
    output = builder.node(Softmax(), (source,), "output", "int8", Quantization((1 / 256,), (-128,)))
    graph = builder.build((source,), (output,))
    shares = run_node(graph, np.zeros((1, classes), np.int8)) + 128.0
    assert np.abs(shares - 256 / classes).max() <= 1
