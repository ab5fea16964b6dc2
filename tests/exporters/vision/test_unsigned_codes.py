"""int8 activations as uint8."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.operators import Add, Conv2D, Pad, Quantize
from edgepipe.exporters.vision.unsigned_codes import with_unsigned_codes

INPUT, WEIGHTS = Quantization((0.05,), (-7,)), Quantization((0.01,), (0,))


def network(dtype: str = "int8") -> Graph:
    builder = GraphBuilder()
    zero_point = INPUT.zero_point if dtype == "int8" else INPUT.zero_point + 128
    image = builder.tensor(Tensor("image", (1, 4, 4, 2), dtype, Quantization((0.05,), (zero_point,))))
    x = builder.node(Quantize(), [image], "quantized", "int8", INPUT)
    x = builder.node(Pad(((0, 0), (1, 1), (1, 1), (0, 0)), value=-128), [x], "padded", "int8", INPUT)
    codes = np.arange(4, dtype=np.int8).reshape(2, 1, 1, 2)
    weights = builder.tensor(Tensor("weights", codes.shape, "int8", WEIGHTS, codes))
    x = builder.node(Conv2D((1, 1)), [x, weights], "conv", "int8", INPUT)
    constant = builder.tensor(Tensor("constant", (2,), "int8", INPUT, np.array([-128, 127], np.int8)))
    return builder.build([image], [builder.node(Add(), [x, constant], "sum", "int8", INPUT)])


def test_codes_move_and_weights_stay() -> None:
    graph = network()
    moved = with_unsigned_codes(graph)
    moved.check()
    by_name = {tensor.name: tensor for tensor in moved.tensors[: len(graph.tensors)]}
    assert {name for name, tensor in by_name.items() if tensor.dtype == "int8"} == {"weights"}
    assert by_name["conv"].quantization == Quantization((0.05,), (121,))
    np.testing.assert_array_equal(by_name["constant"].data, np.array([0, 255], np.uint8))
    (pad,) = (node.operator for node in moved.nodes if isinstance(node.operator, Pad))
    assert pad.value == 0


def test_the_boundary_stays() -> None:
    graph = network()
    moved = with_unsigned_codes(graph)
    for outside, before in ((moved.inputs, graph.inputs), (moved.outputs, graph.outputs)):
        assert [moved.tensors[index] for index in outside] == [graph.tensors[index] for index in before]
    assert isinstance(moved.nodes[0].operator, Quantize)
    assert isinstance(moved.nodes[-1].operator, Quantize)
    assert len(moved.nodes) == len(graph.nodes) + 2


def test_unsigned_images_are_what_they_are() -> None:
    graph = network("uint8")
    moved = with_unsigned_codes(graph)
    assert moved.inputs == graph.inputs
    assert len(moved.nodes) == len(graph.nodes) + 1


def test_what_is_unsigned_already_stays_as_it_is(random_graph: Callable[[int], Graph]) -> None:
    once = with_unsigned_codes(random_graph(0))
    first, *nodes, last = once.nodes
    inside = Graph(once.tensors, tuple(nodes), (first.output,), last.inputs)
    again = with_unsigned_codes(inside)
    assert (again.nodes, again.inputs, again.outputs) == (inside.nodes, inside.inputs, inside.outputs)
