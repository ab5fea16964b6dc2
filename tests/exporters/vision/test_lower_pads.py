"""Padding on some sides only, against the int8 arithmetic of TFLite written out in NumPy, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.lower_pads import lower_pads
from edgepipe.exporters.vision.operators import (
    NO_PADS,
    Activation,
    AveragePool2D,
    Conv2D,
    DepthwiseConv2D,
    MaxPool2D,
    Pads,
    Window,
)
from edgepipe.exporters.vision.write_tflite import write_tflite

IMAGE = Quantization((0.05,), (7,))
OUTPUT = Quantization((0.11,), (-13,))

property_test = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)


def multiply_by_multiplier(x: int, real: float) -> int:
    """``x * real`` with two roundings: the high half of a doubled product, then a shift (gemmlowp's fixed point)."""
    fraction, shift = math.frexp(real)
    multiplier = round(fraction * 2**31)
    if multiplier == 2**31:
        multiplier, shift = multiplier // 2, shift + 1
    product = x * 2 ** max(shift, 0) * multiplier
    high = _toward_zero(product + (2**30 if product >= 0 else 1 - 2**30), 2**31)
    divisor = 2 ** max(-shift, 0)
    return _toward_zero(high + (divisor // 2 if high >= 0 else -(divisor // 2)), divisor)  # ties away from zero


def _toward_zero(numerator: int, denominator: int) -> int:
    quotient = abs(numerator) // denominator
    return quotient if numerator >= 0 else -quotient


def test_reference_rounds_twice() -> None:
    """A published vector (TensorFlow issue 25087): one rounding would give 11, as the product is 11.4991."""
    assert multiply_by_multiplier(7984, 1583594044 / 2**31 * 2**-9) == 12


def clamp_limits(activation: Activation, quantization: Quantization) -> tuple[int, int]:
    """Lowest and highest code that a fused activation lets through."""
    low, high = {
        Activation.NONE: (-math.inf, math.inf),
        Activation.RELU: (0, math.inf),
        Activation.RELU_N1_TO_1: (-1, 1),
        Activation.RELU6: (0, 6),
    }[activation]
    codes = [
        quantization.zero_point + round(limit / quantization.scale) if math.isfinite(limit) else limit
        for limit in (low, high)
    ]
    return int(max(codes[0], -128)), int(min(codes[1], 127))


def reference(graph: Graph, image: np.ndarray) -> np.ndarray:
    """The one window operator of a graph, tap by tap; padding is where there is no tap."""
    (node,) = graph.nodes
    operator: Any = node.operator
    constants = [graph.tensors[index] for index in node.inputs[1:]]
    output = graph.tensors[node.output]
    result = np.empty(output.shape, np.int8)
    assert output.quantization is not None
    low, high = clamp_limits(operator.activation, output.quantization)
    for _, row, column, channel in np.ndindex(output.shape):
        taps = []
        for y in range(operator.kernel[0]):
            for x in range(operator.kernel[1]):
                source_y = row * operator.stride[0] - operator.pads.top + y * operator.dilation[0]
                source_x = column * operator.stride[1] - operator.pads.left + x * operator.dilation[1]
                if 0 <= source_y < image.shape[1] and 0 <= source_x < image.shape[2]:
                    taps.append((y, x, image[0, source_y, source_x].astype(int)))
        code = _combine(operator, taps, constants, channel, output.quantization)
        result[0, row, column, channel] = min(max(code, low), high)
    return result


def _combine(operator: Window, taps: list, constants: list[Tensor], channel: int, output: Quantization) -> int:
    if isinstance(operator, MaxPool2D):
        return max(values[channel] for _, _, values in taps)
    if isinstance(operator, AveragePool2D):
        total, count = sum(int(values[channel]) for _, _, values in taps), len(taps)
        return _toward_zero(total + (count // 2 if total > 0 else -(count // 2)), count)
    weights, bias = constants
    assert weights.data is not None
    assert bias.data is not None
    assert weights.quantization is not None
    total = int(bias.data[channel])
    for y, x, values in taps:
        if isinstance(operator, Conv2D):
            total += int(np.dot(values - IMAGE.zero_point, weights.data[channel, y, x].astype(int)))
        else:
            source = channel // (weights.shape[3] // len(values))
            total += int(values[source] - IMAGE.zero_point) * int(weights.data[0, y, x, channel])
    scales = np.float32(IMAGE.scale), np.float32(weights.quantization.scales[channel]), np.float32(output.scale)
    real = float(scales[0]) * float(scales[1]) / float(scales[2])
    return multiply_by_multiplier(total, real) + output.zero_point


def window_graph(operator: Window, image: tuple[int, int, int], seed: int = 0) -> Graph:
    """One operator on an image of rows, columns, channels; random weights, with a scale for every channel."""
    generator = np.random.default_rng(seed)
    builder = GraphBuilder()
    inputs = [builder.tensor(Tensor("image", (1, *image), "int8", IMAGE))]
    if isinstance(operator, Conv2D | DepthwiseConv2D):
        conv = isinstance(operator, Conv2D)
        shape = (3, *operator.kernel, image[2]) if conv else (1, *operator.kernel, 2 * image[2])
        channels = shape[0] if conv else shape[3]
        scales = generator.uniform(0.002, 0.02, channels).astype(np.float32)
        zeros = (0,) * channels
        weights = generator.integers(-127, 128, shape, np.int8)
        bias = generator.integers(-2000, 2000, channels, np.int32)
        per_channel = Quantization(tuple(map(float, scales)), zeros, 0 if conv else 3)
        bias_scales = Quantization(tuple(map(float, np.float32(IMAGE.scale) * scales)), zeros)
        inputs.append(builder.tensor(Tensor("weights", shape, "int8", per_channel, weights)))
        inputs.append(builder.tensor(Tensor("bias", (channels,), "int32", bias_scales, bias)))
    quantization = OUTPUT if len(inputs) > 1 else IMAGE
    output = builder.node(operator, inputs, "output", "int8", quantization)
    return builder.build(inputs[:1], (output,))


@st.composite
def window_graphs(draw: st.DrawFn) -> Graph:
    """A convolution, depthwise convolution or pool with any padding narrower than its kernel."""
    kind = draw(st.sampled_from((Conv2D, DepthwiseConv2D, AveragePool2D, MaxPool2D)))
    kernel = draw(st.tuples(st.sampled_from((1, 2, 3, 5, 7)), st.sampled_from((1, 2, 3, 5, 7))))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilations = st.tuples(st.integers(1, 2), st.integers(1, 2))
    dilation = draw(dilations) if kind in (Conv2D, DepthwiseConv2D) else (1, 1)
    rows, columns, channels = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    vertical = [draw(st.integers(0, kernel[0] - 1)) for _ in range(2)]
    horizontal = [draw(st.integers(0, kernel[1] - 1)) for _ in range(2)]
    assume(rows + sum(vertical) >= (kernel[0] - 1) * dilation[0] + 1)
    assume(columns + sum(horizontal) >= (kernel[1] - 1) * dilation[1] + 1)
    pads = Pads(vertical[0], horizontal[0], vertical[1], horizontal[1])
    activation = draw(st.sampled_from(tuple(Activation)))
    return window_graph(
        kind(kernel, stride, pads, activation, dilation), (rows, columns, channels), draw(st.integers(0, 9))
    )


@property_test
@given(graph=window_graphs())
def test_lowered_windows_compute_the_same(
    graph: Graph, tflm: Callable[..., Any], random_images: Callable[..., list[np.ndarray]], tmp_path: Path
) -> None:
    """Zero differing bytes under TFLite Micro, on noise and on extremes."""
    lowered = lower_pads(graph)
    lowered.check()
    path = tmp_path / "window.tflite"
    write_tflite({"main": graph}, path)
    model = tflm(path)
    for image in random_images(graph, count=1):
        np.testing.assert_array_equal(model(image), reference(graph, image))


@property_test
@given(graph=window_graphs())
def test_lowered_windows_are_valid_or_same(graph: Graph) -> None:
    """What remains is padding that TFLite has a word for; lowering once more changes nothing."""
    lowered = lower_pads(graph)
    for node in lowered.nodes:
        if isinstance(node.operator, Window):
            image = lowered.tensors[node.inputs[0]].shape
            assert node.operator.pads in (NO_PADS, node.operator.same_pads(image))
    assert lower_pads(lowered).nodes == lowered.nodes
    assert lowered.tensors[: len(graph.tensors)] == graph.tensors
    assert lowered.outputs == graph.outputs


@pytest.mark.parametrize("pads", [NO_PADS, Pads(1, 1, 1, 1), Pads(1, 1, 0, 0)], ids=["valid", "same", "corner"])
def test_only_uneven_pads_add_nodes(pads: Pads) -> None:
    graph = window_graph(Conv2D((3, 3), pads=pads), (6, 6, 2))
    names = [node.operator.name for node in lower_pads(graph).nodes]
    assert names == (["PAD", "CONV_2D"] if pads == Pads(1, 1, 0, 0) else ["CONV_2D"])


def test_max_pool_is_padded_with_the_lowest_code() -> None:
    """The zero point would win over every negative value."""
    graph = window_graph(MaxPool2D((3, 3), pads=Pads(2, 0, 0, 0)), (4, 4, 1))
    pad = lower_pads(graph).nodes[0].operator
    assert (pad.name, pad.value) == ("PADV2", -128)  # type: ignore[attr-defined]


def test_average_outside_the_image_is_refused() -> None:
    """Three rows of padding above a kernel of two: the first window holds nothing to average."""
    graph = window_graph(AveragePool2D((2, 2), pads=Pads(3, 0, 0, 0)), (4, 4, 1))
    with pytest.raises(UnsupportedModel, match=r"AVERAGE_POOL_2D, tensor 1 \(output\).*outside the image"):
        lower_pads(graph)
