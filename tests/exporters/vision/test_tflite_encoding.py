"""Every operator, written and run by TFLite Micro and LiteRT, against its definition in real numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.operators import (
    Activation,
    Add,
    AveragePool2D,
    Concatenation,
    Conv2D,
    DepthwiseConv2D,
    Dequantize,
    FullyConnected,
    HardSwish,
    Logistic,
    MaxPool2D,
    Mean,
    Mul,
    Operator,
    Pad,
    Pads,
    Quantize,
    Relu,
    Relu6,
    Reshape,
    ResizeNearestNeighbor,
    Softmax,
    StridedSlice,
    Window,
)
from edgepipe.exporters.vision.write_tflite import write_tflite

INPUT = Quantization((0.0625,), (5,))
OUTPUT = Quantization((0.09,), (-11,))
UNIT = Quantization((1 / 256,), (-128,))
RELU, RELU6 = Activation.RELU, Activation.RELU6


@dataclass(frozen=True, eq=False)
class Case:
    """An operator on ``image`` and constants: what it means on real values, and how far a code may be from it."""

    operator: Operator
    meaning: Callable[..., np.ndarray]
    image: tuple[int, ...] = (1, 7, 6, 3)
    constants: tuple[Tensor, ...] = ()
    output: Quantization | None = OUTPUT
    version: int = 2
    steps: int = 1
    input_type: str = "int8"
    output_type: str = "int8"
    input: Quantization | None = INPUT
    repeat: int = 1  # how many inputs the image is


def per_channel(shape: tuple[int, ...], axis: int) -> Tensor:
    """Weights whose scale differs from channel to channel."""
    generator = np.random.default_rng(math.prod(shape))
    scales = generator.uniform(0.002, 0.01, shape[axis]).astype(np.float32)
    quantization = Quantization(tuple(map(float, scales)), (0,) * shape[axis], axis)
    return Tensor("weights", shape, "int8", quantization, generator.integers(-127, 128, shape, np.int8))


def per_tensor(shape: tuple[int, ...], quantization: Quantization) -> Tensor:
    """A constant with one scale."""
    data = np.random.default_rng(math.prod(shape)).integers(-127, 128, shape, np.int8)
    return Tensor("constant", shape, "int8", quantization, data)


def bias_of(weights: Tensor) -> Tensor:
    """An int32 bias in the scales of the products."""
    assert weights.quantization is not None
    scales = tuple(float(np.float32(INPUT.scale) * np.float32(scale)) for scale in weights.quantization.scales)
    axis = weights.quantization.axis
    count = weights.shape[axis]
    data = np.random.default_rng(count).integers(-3000, 3000, count, np.int32)
    return Tensor("bias", (count,), "int32", Quantization(scales, (0,) * len(scales)), data)


def dequantized(tensor: Tensor, codes: np.ndarray) -> np.ndarray:
    """Real values of a tensor's codes."""
    if tensor.quantization is None:
        return codes.astype(np.float64)
    shape = [1] * codes.ndim
    if len(tensor.quantization.scales) > 1:
        shape[tensor.quantization.axis] = -1
    scales = np.reshape(tensor.quantization.scales, shape)
    return scales * (codes.astype(np.float64) - np.reshape(tensor.quantization.zero_points, shape))


def clamped(values: np.ndarray, activation: Activation) -> np.ndarray:
    """A fused activation."""
    low, high = {Activation.NONE: (-np.inf, np.inf), RELU: (0, np.inf), RELU6: (0, 6)}[activation]
    return np.clip(values, low, high)


def windows(operator: Window, image: np.ndarray, fill: float) -> np.ndarray:
    """Taps of every output: ``[rows, columns, channels, kernel rows, kernel columns]``."""
    pads, (step_y, step_x), (gap_y, gap_x) = operator.pads, operator.stride, operator.dilation
    padded = np.pad(image[0], ((pads.top, pads.bottom), (pads.left, pads.right), (0, 0)), constant_values=fill)
    reach = [(size - 1) * gap + 1 for size, gap in zip(operator.kernel, operator.dilation, strict=True)]
    taps: np.ndarray = sliding_window_view(padded, reach, (0, 1))
    return taps[::step_y, ::step_x, :, ::gap_y, ::gap_x]


def conv(operator: Conv2D) -> Callable[..., np.ndarray]:
    def meaning(image: np.ndarray, weights: np.ndarray, bias: np.ndarray | float = 0.0) -> np.ndarray:
        sums = np.einsum("yxcij,oijc->yxo", windows(operator, image, 0), weights)
        return clamped(sums + bias, operator.activation)[None]

    return meaning


def depthwise(operator: DepthwiseConv2D) -> Callable[..., np.ndarray]:
    def meaning(image: np.ndarray, weights: np.ndarray, bias: np.ndarray | float = 0.0) -> np.ndarray:
        multiplier = weights.shape[3] // image.shape[3]
        taps = np.repeat(windows(operator, image, 0), multiplier, axis=2)
        return clamped(np.einsum("yxcij,ijc->yxc", taps, weights[0]) + bias, operator.activation)[None]

    return meaning


def pool(operator: Window) -> Callable[..., np.ndarray]:
    def meaning(image: np.ndarray) -> np.ndarray:
        reduce = np.nanmax if isinstance(operator, MaxPool2D) else np.nanmean
        return clamped(reduce(windows(operator, image, np.nan), axis=(3, 4)), operator.activation)[None]

    return meaning


def fully_connected(operator: FullyConnected) -> Callable[..., np.ndarray]:
    def meaning(data: np.ndarray, weights: np.ndarray, bias: np.ndarray | float = 0.0) -> np.ndarray:
        rows = data.reshape(-1, weights.shape[1])
        values = clamped(rows @ weights.T + bias, operator.activation)
        return values.reshape(*data.shape[:-1], -1) if operator.keep_dims else values

    return meaning


def nearest(operator: ResizeNearestNeighbor) -> Callable[..., np.ndarray]:
    def source(size: int, target: int) -> np.ndarray:
        corners = operator.align_corners and target > 1
        scale = (size - 1) / (target - 1) if corners else size / target
        places = (np.arange(target) + (0.5 if operator.half_pixel_centers else 0.0)) * scale
        found = np.floor(places + 0.5) if operator.align_corners else np.floor(places)
        return np.clip(found.astype(int), 0, size - 1)

    def meaning(image: np.ndarray) -> np.ndarray:
        return image[:, source(image.shape[1], operator.size[0])][:, :, source(image.shape[2], operator.size[1])]

    return meaning


def softmax(beta: float) -> Callable[..., np.ndarray]:
    def meaning(values: np.ndarray) -> np.ndarray:
        powers = np.exp(beta * (values - values.max(-1, keepdims=True)))
        return powers / powers.sum(-1, keepdims=True)

    return meaning


def mean(operator: Mean) -> Callable[..., np.ndarray]:
    return lambda values: values.mean(operator.axes, keepdims=operator.keep_dims)


SAME = Pads(1, 1, 1, 1)
CONVS = {
    "valid": (Conv2D((3, 3), (2, 1)), (4, 3, 3, 3)),
    "same": (Conv2D((3, 5), pads=Pads(1, 2, 1, 2), activation=RELU6), (4, 3, 5, 3)),
    "same_stride": (Conv2D((3, 3), (2, 2), Pads(1, 0, 1, 1), RELU), (4, 3, 3, 3)),
    "dilated": (Conv2D((3, 3), pads=Pads(2, 2, 2, 2), dilation=(2, 2)), (4, 3, 3, 3)),
    "one_filter": (Conv2D((1, 1)), (1, 1, 1, 3)),
}
DEPTHWISES = {
    "same": (DepthwiseConv2D((3, 3), pads=SAME, activation=RELU6), (1, 3, 3, 3)),
    "multiplier": (DepthwiseConv2D((3, 3), (2, 2)), (1, 3, 3, 6)),
    "dilated": (DepthwiseConv2D((3, 3), pads=Pads(2, 2, 2, 2), dilation=(2, 2)), (1, 3, 3, 3)),
}
POOLS = {
    f"{kind.__name__}_{name}": kind(kernel, stride, pads, activation)
    for kind in (AveragePool2D, MaxPool2D)
    for name, kernel, stride, pads, activation in (
        ("valid", (2, 3), (2, 1), Pads(), Activation.NONE),
        ("same", (3, 3), (1, 1), SAME, RELU),
        ("whole", (7, 6), (1, 1), Pads(), RELU6),
    )
}
CONNECTED = {
    "plain": (FullyConnected(), 4, True),
    "relu": (FullyConnected(RELU), 4, True),
    "no_bias": (FullyConnected(), 6, False),
    "keep_dims": (FullyConnected(keep_dims=True), 5, True),
}
NEARESTS = [
    ResizeNearestNeighbor((9, 12)),
    ResizeNearestNeighbor((4, 3)),
    ResizeNearestNeighbor((13, 11), align_corners=True),
    ResizeNearestNeighbor((14, 12), half_pixel_centers=True),
]


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for name, (operator, shape) in CONVS.items():
        weights = per_channel(shape, 0)
        found[f"conv_{name}"] = Case(operator, conv(operator), constants=(weights, bias_of(weights)), version=3)
    operator, shape = CONVS["valid"]
    found["conv_no_bias"] = Case(operator, conv(operator), constants=(per_channel(shape, 0),), version=3)
    each, shape = DEPTHWISES["multiplier"]
    found["depthwise_no_bias"] = Case(each, depthwise(each), constants=(per_channel(shape, 3),), version=3)
    for name, (each, shape) in DEPTHWISES.items():
        weights = per_channel(shape, 3)
        found[f"depthwise_{name}"] = Case(each, depthwise(each), constants=(weights, bias_of(weights)), version=3)
    for name, window in POOLS.items():
        found[name] = Case(window, pool(window), output=INPUT)
    for name, (connected, version, biased) in CONNECTED.items():
        weights = per_tensor((4, 3), Quantization((0.005,), (0,)))
        constants = (weights, bias_of(weights)) if biased else (weights,)
        found[f"connected_{name}"] = Case(
            connected, fully_connected(connected), (1, 2, 2, 3), constants, version=version
        )
    other, coarse = Quantization((0.03,), (40,)), Quantization((1.5,), (0,))
    for name, shape in {"same": (1, 7, 6, 3), "channels": (3,), "pixels": (1, 7, 6, 1)}.items():
        for activation in (Activation.NONE, RELU, RELU6):
            add, mul = Add(activation), Mul(activation)
            constants = (per_tensor(shape, other),)
            label = f"{name}_{activation.value.lower()}"
            found[f"add_{label}"] = Case(add, lambda a, b, f=activation: clamped(a + b, f), constants=constants)
            found[f"mul_{label}"] = Case(mul, lambda a, b, f=activation: clamped(a * b, f), constants=constants)
    found["mul_rescaled"] = Case(
        Mul(), np.multiply, constants=(per_tensor((3,), coarse),), version=3, output=Quantization((0.08,), (3,))
    )
    for axis, count in itertools.product((1, 2, 3), (2, 10, 11, 25, 101)):
        found[f"concatenation_{axis}_of_{count}"] = Case(
            Concatenation(axis),
            lambda *parts, axis=axis: np.concatenate(parts, axis),
            (1, 2, 3, 2),
            repeat=count,
            output=INPUT,
            steps=0,
        )
    for number, averaged in enumerate((Mean((1, 2)), Mean((1, 2), True), Mean((3,)), Mean((1,), True))):
        found[f"mean_{number}"] = Case(averaged, mean(averaged))
    pads = ((0, 0), (1, 2), (0, 3), (0, 0))
    found["pad"] = Case(Pad(pads), lambda x: np.pad(x, pads), output=INPUT, steps=0)
    channel_pads = ((0, 0), (0, 0), (0, 0), (2, 1))
    found["pad_channels"] = Case(Pad(channel_pads), lambda x: np.pad(x, channel_pads), output=INPUT, steps=0)
    lowest = INPUT.scale * (-128 - INPUT.zero_point)
    found["padv2"] = Case(Pad(pads, -128), lambda x: np.pad(x, pads, constant_values=lowest), output=INPUT, steps=0)
    found["reshape"] = Case(Reshape((1, 126)), lambda x: x.reshape(1, 126), output=INPUT, version=1, steps=0)
    found["strided_slice"] = Case(
        StridedSlice((0, 2, 1, 0), (1, 7, 4, 3)), lambda x: x[:, 2:7, 1:4], output=INPUT, steps=0
    )
    found["strided_slice_vector"] = Case(
        StridedSlice((0, 3), (1, 9)), lambda x: x[:, 3:9], (1, 12), output=INPUT, steps=0
    )
    for resize in NEARESTS:
        newer = resize.align_corners or resize.half_pixel_centers
        label = "x".join(map(str, resize.size))
        found[f"nearest_{label}"] = Case(resize, nearest(resize), output=INPUT, version=3 if newer else 2, steps=0)
    found["relu"] = Case(Relu(), lambda x: np.maximum(x, 0))
    found["relu6"] = Case(Relu6(), lambda x: np.clip(x, 0, 6), output=INPUT)
    found["logistic"] = Case(Logistic(), lambda x: 1 / (1 + np.exp(-x)), output=UNIT)
    found["hard_swish"] = Case(HardSwish(), lambda x: x * np.clip(x + 3, 0, 6) / 6, version=1)
    for beta in (1.0, 0.5):
        found[f"softmax_{beta}"] = Case(Softmax(beta), softmax(beta), (1, 9), output=UNIT)
    found["quantize"] = Case(Quantize(), np.positive, version=1)
    found["quantize_uint8"] = Case(
        Quantize(), np.positive, input_type="uint8", input=Quantization((0.0625,), (133,)), output=INPUT, version=1
    )
    found["quantize_float"] = Case(Quantize(), np.positive, input_type="float32", input=None, version=1)
    found["dequantize"] = Case(Dequantize(), np.positive, output=None, output_type="float32", steps=0)
    return found


CASES = cases()


def case_graph(case: Case) -> Graph:
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", case.image, case.input_type, case.input))
    constants = [builder.tensor(tensor) for tensor in case.constants]
    output = builder.node(case.operator, [image] * case.repeat + constants, "output", case.output_type, case.output)
    return builder.build((image,), (output,))


def case_images(case: Case) -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    if case.input_type == "float32":
        return [generator.normal(0, 4, case.image).astype(np.float32)]
    limits = np.iinfo(case.input_type)
    noise = generator.integers(limits.min, limits.max, case.image, case.input_type, endpoint=True)
    return [noise, *(np.full(case.image, value, case.input_type) for value in (limits.min, limits.max))]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("oracle", ["tflm", "builtin_ref"])
def test_operator_means_what_the_graph_says(
    name: str, oracle: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Codes within a step of the exact values; operators that only move codes, at none."""
    case = CASES[name]
    graph = case_graph(case)
    graph.check()
    path = tmp_path / "operator.tflite"
    write_tflite({"main": graph}, path)
    model = request.getfixturevalue(oracle)(path)
    image_tensor, output_tensor = graph.tensors[graph.inputs[0]], graph.tensors[graph.outputs[0]]
    for image in case_images(case):
        real = [dequantized(image_tensor, image)] * case.repeat
        for constant in case.constants:
            assert constant.data is not None
            real.append(dequantized(constant, constant.data))
        expected = case.meaning(*real)
        found = model(image)
        assert found.dtype == np.dtype(output_tensor.dtype)
        assert found.shape == expected.shape == output_tensor.shape
        if case.output is None:
            np.testing.assert_allclose(found, expected, rtol=1e-6)
        else:
            codes = np.clip(np.round(expected / case.output.scale) + case.output.zero_point, -128, 127)
            assert np.abs(found - codes).max() <= case.steps


@pytest.mark.parametrize("name", [name for name in CASES if "concatenation" not in name])
def test_versions(name: str, tmp_path: Path) -> None:
    """Those of TFLite's converter (``op_version.cc``): a runtime too old for a feature refuses the file."""
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    path = tmp_path / "operator.tflite"
    write_tflite({"main": case_graph(CASES[name])}, path)
    (code,) = schema.ModelT.InitFromPackedBuf(path.read_bytes()).operatorCodes
    assert code.version == CASES[name].version
    assert code.builtinCode == getattr(schema.BuiltinOperator, CASES[name].operator.name)


def test_concatenation_with_an_activation_is_refused(tmp_path: Path) -> None:
    """No kernel takes it."""
    case = Case(Concatenation(1, RELU), np.concatenate, repeat=2, output=INPUT)
    with pytest.raises(UnsupportedModel, match="CONCATENATION with a fused RELU"):
        write_tflite({"main": case_graph(case)}, tmp_path / "model.tflite")
