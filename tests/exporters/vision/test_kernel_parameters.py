"""Fixed-point functions against real ones, shapes against NumPy, and what no kernel computes.

The parameters themselves are held to TFLite Micro by the tests of the kernels, in tests/runtimes/mcu.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.fixed_point import (
    Multiplier,
    divide_by_power,
    exponential,
    high_product,
    logistic,
    quantize_multiplier,
    reciprocal_of_one_plus,
    rescale,
)
from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.kernel_parameters import kernel_calls
from edgepipe.exporters.vision.kernel_shapes import broadcast_strides, copy_box, merge_axes
from edgepipe.exporters.vision.operators import (
    Activation,
    Add,
    AveragePool2D,
    Concatenation,
    Dequantize,
    Mean,
    Operator,
    Pads,
    Softmax,
    StridedSlice,
)


def test_rounding_twice_differs_from_rounding_once() -> None:
    """The vector of TensorFlow's issue 25087: 11.4991 becomes 12."""
    assert rescale(7984, Multiplier(1583594044, -9)) == 12


@pytest.mark.parametrize(
    ("real", "multiplier", "shift"),
    [(1.0, 2**30, 1), (0.5, 2**30, 0), (0.75, 3 * 2**29, 0), (3.0, 3 * 2**29, 2), (0.0, 0, 0), (2.0**-40, 0, 0)],
)
def test_multipliers(real: float, multiplier: int, shift: int) -> None:
    assert quantize_multiplier(real) == (multiplier, shift)


@given(st.floats(2.0**-30, 2.0**30))
def test_multiplier_is_the_nearest(real: float) -> None:
    multiplier, shift = quantize_multiplier(real)
    assert 2**30 <= multiplier < 2**31
    assert abs(multiplier / 2**31 * 2.0**shift - real) <= real * 2.0**-31


@given(st.integers(-(2**31) + 1, 2**31 - 1), st.integers(0, 31))
def test_division_rounds_ties_away_from_zero(value: int, exponent: int) -> None:
    quotient = abs(value) / 2**exponent
    assert divide_by_power(value, exponent) == int(math.copysign(math.floor(quotient + 0.5), value))


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**31 - 1))
def test_high_product_rounds_ties_upwards(a: int, b: int) -> None:
    assert high_product(a, b) == (2 * a * b + 2**31) // 2**32


@pytest.mark.parametrize("integer_bits", [4, 5])
def test_exponential(integer_bits: int) -> None:
    unit = 2 ** (31 - integer_bits)
    for real in np.linspace(-(2.0**integer_bits) + 0.01, 0, 300):
        assert exponential(round(real * unit), integer_bits) / 2**31 == pytest.approx(math.exp(real), abs=2e-7)


def test_logistic_and_reciprocal() -> None:
    for real in np.linspace(-15.9, 15.9, 300):
        assert logistic(round(real * 2**27), 4) / 2**31 == pytest.approx(1 / (1 + math.exp(-real)), abs=2e-7)
    for real in np.linspace(0, 1, 100):
        found = reciprocal_of_one_plus(round(real * (2**31 - 1))) / 2**31
        assert found == pytest.approx(1 / (1 + real), abs=2e-8)


shapes = st.lists(st.integers(1, 4), min_size=4, max_size=4).map(tuple)


@given(shapes, st.lists(st.booleans(), min_size=4, max_size=4), st.data())
def test_broadcast_strides_reach_numpys_elements(whole: tuple[int, ...], kept: list[bool], data: Any) -> None:
    part = tuple(size if keep else 1 for size, keep in zip(whole, kept, strict=True))
    part = part[data.draw(st.integers(0, next((axis for axis, size in enumerate(part) if size > 1), 3))) :]
    size, first, second = broadcast_strides(whole, whole, part)
    assert len(size) == 4
    places = np.array([np.dot(index, second) for index in np.ndindex(size)])
    elements = np.broadcast_to(np.arange(math.prod(part)).reshape(part), whole)
    np.testing.assert_array_equal(places, elements.reshape(-1))
    np.testing.assert_array_equal([np.dot(index, first) for index in np.ndindex(size)], np.arange(math.prod(whole)))


@given(shapes, st.sets(st.integers(0, 3), min_size=1))
def test_merged_axes_keep_sizes_and_order(shape: tuple[int, ...], axes: set[int]) -> None:
    kept, averaged = merge_axes(shape, sorted(axes))
    elements = np.arange(math.prod(shape)).reshape(shape)
    rows = np.moveaxis(elements, sorted(axes), range(4 - len(axes), 4)).reshape(-1, math.prod(shape[a] for a in axes))
    found = [
        [
            sum(i * stride for i, (_, stride) in zip((*outer, *inner), (*kept, *averaged), strict=True))
            for inner in np.ndindex(*(size for size, _ in averaged))
        ]
        for outer in np.ndindex(*(size for size, _ in kept))
    ]
    np.testing.assert_array_equal(found, rows)


@given(shapes, st.data())
def test_copied_box_is_numpys_slice(shape: tuple[int, ...], data: Any) -> None:
    begin = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    box = tuple(data.draw(st.integers(1, size - start)) for size, start in zip(shape, begin, strict=True))
    copy = copy_box(shape, begin, box, (0, 0, 0, 0), box)
    found = [copy.source_offset + np.dot(index[:3], copy.source_stride) + index[3] for index in np.ndindex(copy.size)]
    cut = tuple(slice(start, start + size) for start, size in zip(begin, box, strict=True))
    np.testing.assert_array_equal(found, np.arange(math.prod(shape)).reshape(shape)[cut].reshape(-1))


STEP = Quantization((0.5,), (0,))
UNIT = Quantization((1 / 256,), (-128,))


def one_node(
    operator: Operator, *shapes: tuple[int, ...], to: Quantization | None = STEP, dtype: str = "int8"
) -> Graph:
    builder = GraphBuilder()
    inputs = [builder.tensor(Tensor(f"input_{number}", shape, "int8", STEP)) for number, shape in enumerate(shapes)]
    output = builder.node(operator, inputs, "output", dtype, to)
    return builder.build(inputs, (output,))


REFUSED = {
    "DEQUANTIZE.*'output' is float32": one_node(Dequantize(), (1, 4), to=None, dtype="float32"),
    "AVERAGE_POOL_2D.*a window outside the image": one_node(
        AveragePool2D((2, 2), (2, 2), Pads(0, 0, 3, 3)), (1, 4, 4, 1)
    ),
    "CONCATENATION.*a fused RELU": one_node(Concatenation(1, Activation.RELU), (1, 4), (1, 4)),
    "SOFTMAX.*normalises 5000 elements: expected at most 4095": one_node(Softmax(), (1, 5000), to=UNIT),
    "ADD.*more than four axes": one_node(Add(), (2, 3, 2, 3, 2), (1, 3, 1, 3, 1)),
    "ADD.*expected less than 1": one_node(Add(), (1, 4), (1, 4), to=Quantization((2.0**-21,), (0,))),
    "MEAN.*averages over axes": one_node(Mean((0, 2, 4)), (2, 2, 2, 2, 2)),
    "STRIDED_SLICE.*at most four": one_node(StridedSlice((0,) * 6, (2,) * 6), (3,) * 6),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_no_kernel_computes_is_refused(message: str) -> None:
    graph = REFUSED[message]
    with pytest.raises(UnsupportedModel, match=message):
        kernel_calls(graph, graph.nodes[0])
