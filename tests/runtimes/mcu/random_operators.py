"""Graphs of one operator: random shapes, paddings, scales and zero points; and codes for their inputs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.operators import (
    NO_PADS,
    Activation,
    Add,
    AveragePool2D,
    Concatenation,
    Conv2D,
    DepthwiseConv2D,
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
    ResizeNearestNeighbor,
    Softmax,
    StridedSlice,
    same_pads,
)

UNIT = Quantization((1 / 256,), (-128,))
ACTIVATIONS = tuple(Activation)

Random = random.Random


def scale(rng: Random, lowest: float = 1e-4, highest: float = 1.0) -> float:
    """As float32, evenly spread over the logarithm."""
    return float(np.float32(math.exp(rng.uniform(math.log(lowest), math.log(highest)))))


def quantization(rng: Random, *range_of_scale: float) -> Quantization:
    zero_point = rng.choice((-128, 127, 0, rng.randint(-128, 127)))
    return Quantization((scale(rng, *range_of_scale),), (zero_point,))


def image(rng: Random, builder: GraphBuilder, channels: int | None = None, least: int = 1, most: int = 9) -> int:
    shape = 1, rng.randint(least, most), rng.randint(least, most), channels or rng.randint(1, 19)
    return builder.tensor(Tensor("image", shape, "int8", quantization(rng)))


def codes(rng: Random, shape: tuple[int, ...], dtype: str = "int8") -> np.ndarray:
    """Noise, or nothing but extremes, or one value."""
    generator, limits = np.random.default_rng(rng.getrandbits(32)), np.iinfo(dtype)
    match rng.choice(("noise", "noise", "extremes", "flat")):
        case "noise":
            return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        case "extremes":
            return generator.choice(np.array([limits.min, limits.max], dtype), shape)
    return np.full(shape, rng.randint(limits.min, limits.max), dtype)


def window(rng: Random, size: tuple[int, ...], dilated: bool) -> dict[str, Any]:
    kernel = rng.choice(((1, 1), (3, 3), (3, 3), (5, 5), (rng.randint(1, 7), rng.randint(1, 7))))
    dilation = rng.choice(((1, 1), (1, 1), (2, 2), (1, 2), (3, 1))) if dilated else (1, 1)
    stride = rng.choice(((1, 1), (1, 1), (2, 2), (rng.randint(1, 4), rng.randint(1, 4))))
    reach = [(length - 1) * gap + 1 for length, gap in zip(kernel, dilation, strict=True)]
    match rng.choice(("valid", "same", "any")):
        case "valid":
            pads = NO_PADS
        case "same":
            (top, bottom), (left, right) = (
                same_pads(length, *each) for length, *each in zip(size, kernel, stride, dilation, strict=True)
            )
            pads = Pads(top, left, bottom, right)
        case _:
            pads = Pads(*(rng.randint(0, reach[side % 2] - 1) for side in range(4)))
    found = {"kernel": kernel, "stride": stride, "pads": pads, "activation": rng.choice(ACTIVATIONS)}
    return found | ({"dilation": dilation} if dilated else {})


def weights(rng: Random, builder: GraphBuilder, source: int, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """A filter, per channel or not, and perhaps a bias."""
    step = builder.tensors[source].quantization
    assert step is not None
    count = rng.choice((1, shape[axis]))
    scales = tuple(scale(rng, 1e-3, 1e-1) for _ in range(count))
    found = [
        builder.tensor(Tensor("weights", shape, "int8", Quantization(scales, (0,) * count, axis), codes(rng, shape)))
    ]
    if rng.random() < 0.8:
        products = tuple(float(np.float32(step.scale * each)) for each in scales)
        limit = rng.choice((100, 10**4, 10**6, 2**31 - 1))
        data = np.array([rng.randint(-limit, limit) for _ in range(shape[axis])], np.int32)
        bias = Tensor("bias", data.shape, "int32", Quantization(products, (0,) * count), data)
        found.append(builder.tensor(bias))
    return tuple(found)


def output_of_products(rng: Random, builder: GraphBuilder, source: int, filters: int, fan_in: int) -> Quantization:
    """Codes fill their range for noise, more or less; now and then the multiplier exceeds 1, or is tiny."""
    step, by = builder.tensors[source].quantization, builder.tensors[filters].quantization
    assert step is not None
    assert by is not None
    spread = 40 / (73 * 73 * math.sqrt(fan_in)) * math.exp(rng.uniform(-2, 2))
    multiplier = rng.choice((spread, spread, spread, rng.uniform(0.5, 3), 2 ** rng.uniform(-30, -10)))
    to = float(np.float32(step.scale * by.scales[0] / multiplier))
    return Quantization((to,), (rng.randint(-128, 127),))


def conv(rng: Random) -> Graph:
    builder = GraphBuilder()
    source = image(rng, builder)
    shape = builder.tensors[source].shape
    operator = Conv2D(**window(rng, shape[1:3], dilated=True))
    filters = rng.randint(1, 9), *operator.kernel, shape[3]
    constants = weights(rng, builder, source, filters, 0)
    to = output_of_products(rng, builder, source, constants[0], math.prod(filters[1:]))
    return finished(builder, operator, (source, *constants), to)


def pointwise(rng: Random) -> Graph:
    builder = GraphBuilder()
    source = image(rng, builder, rng.choice((4, 8, 16, 24, rng.randint(1, 70), rng.randint(250, 600))), most=5)
    operator = Conv2D((1, 1), activation=rng.choice(ACTIVATIONS))
    filters = rng.randint(1, 20), 1, 1, builder.tensors[source].shape[3]
    constants = weights(rng, builder, source, filters, 0)
    to = output_of_products(rng, builder, source, constants[0], filters[3])
    return finished(builder, operator, (source, *constants), to)


def depthwise(rng: Random) -> Graph:
    builder = GraphBuilder()
    source = image(rng, builder)
    shape = builder.tensors[source].shape
    operator = DepthwiseConv2D(**window(rng, shape[1:3], dilated=True))
    filters = 1, *operator.kernel, shape[3] * rng.choice((1, 1, 1, 2, 3))
    constants = weights(rng, builder, source, filters, 3)
    to = output_of_products(rng, builder, source, constants[0], math.prod(operator.kernel))
    return finished(builder, operator, (source, *constants), to)


def fully_connected(rng: Random) -> Graph:
    builder = GraphBuilder()
    depth = rng.randint(1, 70)
    shape = rng.choice(((1, depth), (rng.randint(1, 4), depth), (1, 2, rng.randint(1, 3), depth)))
    source = builder.tensor(Tensor("data", shape, "int8", quantization(rng)))
    matrix = rng.randint(1, 20), depth
    constants = weights(rng, builder, source, matrix, 0)
    to = output_of_products(rng, builder, source, constants[0], depth)
    operator = FullyConnected(rng.choice(ACTIVATIONS), keep_dims=rng.random() < 0.3)
    return finished(builder, operator, (source, *constants), to)


def pool(kind: Callable[..., Operator]) -> Callable[[Random], Graph]:
    def build(rng: Random) -> Graph:
        builder = GraphBuilder()
        source = image(rng, builder)
        tensor = builder.tensors[source]
        return finished(builder, kind(**window(rng, tensor.shape[1:3], dilated=False)), (source,), tensor.quantization)

    return build


def binary(kind: Callable[..., Operator]) -> Callable[[Random], Graph]:
    """Of one shape, or of shapes that broadcast either way; the second perhaps a constant."""

    def build(rng: Random) -> Graph:
        builder = GraphBuilder()
        whole = tuple(rng.randint(1, 6) for _ in range(4))
        kept = rng.choice(((1, 1, 1, 1), (0, 0, 0, 1), (1, 1, 1, 0), (1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 0, 0)))
        part = tuple(size if keep else 1 for size, keep in zip(whole, kept, strict=True))
        shapes = [whole, part] if rng.random() < 0.7 else [part, whole]
        operands = [
            builder.tensor(Tensor(f"operand_{position}", shape, "int8", quantization(rng, 1e-3, 1e-1)))
            for position, shape in enumerate(shapes)
        ]
        if rng.random() < 0.3:
            other = builder.tensors[operands[1]]
            builder.tensors[operands[1]] = Tensor("constant", part, "int8", other.quantization, codes(rng, part))
            builder.tensors[operands[0]] = Tensor("image", whole, "int8", builder.tensors[operands[0]].quantization)
        of = kind(rng.choice(ACTIVATIONS))
        highest = (1e-5, 1e-1) if isinstance(of, Mul) else (1e-3, 1.0)
        return finished(builder, of, tuple(operands), quantization(rng, *highest))

    return build


def mean(rng: Random) -> Graph:
    builder = GraphBuilder()
    source = image(rng, builder, most=12)
    axes = rng.choice(((1, 2), (1, 2), (1,), (2,), (3,), (1, 3), (2, 3), (1, 2, 3)))
    step = builder.tensors[source].quantization
    assert step is not None
    to = Quantization((float(np.float32(step.scale * rng.uniform(0.05, 3))),), (rng.randint(-128, 127),))
    return finished(builder, Mean(axes, keep_dims=rng.random() < 0.5), (source,), to)


def pad(rng: Random) -> Graph:
    builder = GraphBuilder()
    source = image(rng, builder)
    channels = (rng.randint(0, 2), rng.randint(0, 2)) if rng.random() < 0.3 else (0, 0)
    sides = ((0, 0), *((rng.randint(0, 3), rng.randint(0, 3)) for _ in range(2)), channels)
    value = rng.choice((None, rng.randint(-128, 127)))
    return finished(builder, Pad(sides, value), (source,), builder.tensors[source].quantization)


def strided_slice(rng: Random) -> Graph:
    builder = GraphBuilder()
    source = image(rng, builder)
    sides = [sorted(rng.sample(range(size + 1), 2)) for size in builder.tensors[source].shape]
    if rng.random() < 0.6:
        sides[3] = [0, builder.tensors[source].shape[3]]
    begin, end = zip(*sides, strict=True)
    return finished(builder, StridedSlice(begin, end), (source,), builder.tensors[source].quantization)


def concatenation(rng: Random) -> Graph:
    builder = GraphBuilder()
    axis, shared, to = rng.randint(1, 3), [1, *(rng.randint(1, 5) for _ in range(3))], quantization(rng)
    parts = []
    for position in range(rng.randint(1, 5)):
        shape = [*shared]
        shape[axis] = rng.randint(1, 5)
        parts.append(builder.tensor(Tensor(f"part_{position}", tuple(shape), "int8", to)))
    return finished(builder, Concatenation(axis), tuple(parts), to)


def resize(rng: Random) -> Graph:
    builder = GraphBuilder()
    source = image(rng, builder)
    align, half = rng.choice(((False, False), (True, False), (False, True)))
    operator = ResizeNearestNeighbor((rng.randint(1, 25), rng.randint(1, 25)), align, half)
    return finished(builder, operator, (source,), builder.tensors[source].quantization)


def softmax(rng: Random) -> Graph:
    builder = GraphBuilder()
    shape = (1, rng.randint(1, 200)) if rng.random() < 0.6 else (1, rng.randint(1, 4), rng.randint(1, 20))
    source = builder.tensor(Tensor("data", shape, "int8", quantization(rng, 1e-4, 2.0)))
    return finished(builder, Softmax(rng.choice((1.0, 1.0, 0.3, 4.0))), (source,), UNIT)


def of_every_code(operator: Operator, ratio: tuple[float, float] | None = None, to: Quantization | None = None) -> Any:
    """An elementwise operator; ``ratio``: between which the input's scale over the output's lies."""

    def build(rng: Random) -> Graph:
        builder = GraphBuilder()
        source = builder.tensor(Tensor("codes", (1, 16, 16), "int8", quantization(rng, 1e-3, 1.0)))
        step = builder.tensors[source].quantization
        assert step is not None
        output = to or step
        if ratio is not None:
            output = Quantization((float(np.float32(step.scale / scale(rng, *ratio))),), (rng.randint(-128, 127),))
        return finished(builder, operator, (source,), output)

    return build


def requantize(rng: Random) -> Graph:
    builder = GraphBuilder()
    types = rng.choice((("int8", "int8"), ("uint8", "int8"), ("int8", "uint8")))
    steps = [quantization(rng, 1e-3, 1.0), quantization(rng, 1e-3, 1.0)]
    if rng.random() < 0.4:
        steps[1] = steps[0]
    shifted = [
        Quantization(step.scales, (step.zero_point + 128 * (dtype == "uint8"),))
        for step, dtype in zip(steps, types, strict=True)
    ]
    source = builder.tensor(Tensor("codes", (1, 16, 16), types[0], shifted[0]))
    output = builder.node(Quantize(), (source,), "output", types[1], shifted[1])
    return builder.build((source,), (output,))


def finished(builder: GraphBuilder, operator: Operator, inputs: tuple[int, ...], to: Quantization | None) -> Graph:
    output = builder.node(operator, inputs, "output", "int8", to)
    given = [index for index in inputs if builder.tensors[index].data is None]
    return builder.build(given, (output,))


GRAPHS: dict[str, Callable[[Random], Graph]] = {
    "conv": conv,
    "pointwise": pointwise,
    "depthwise": depthwise,
    "fully_connected": fully_connected,
    "average_pool": pool(AveragePool2D),
    "max_pool": pool(MaxPool2D),
    "add": binary(Add),
    "mul": binary(Mul),
    "mean": mean,
    "pad": pad,
    "strided_slice": strided_slice,
    "concatenation": concatenation,
    "resize": resize,
    "softmax": softmax,
    "relu": of_every_code(Relu(), (0.1, 10)),
    "relu6": of_every_code(Relu6()),
    "logistic": of_every_code(Logistic(), to=UNIT),
    "hard_swish": of_every_code(HardSwish(), (0.1, 50)),
    "quantize": requantize,
}
