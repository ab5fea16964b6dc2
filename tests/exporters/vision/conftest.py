"""What tests of vision share: the real models, the oracles, random int8 graphs."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
    MaxPool2D,
    Mean,
    Pads,
    Relu6,
    Reshape,
    Softmax,
    Window,
    same_pads,
)
from edgepipe.exporters.vision.source import VisionSource, open_vision

# Run a model: an image in, the output out, as arrays of the model's own shapes and types.
Model = Callable[[np.ndarray], np.ndarray]

# Untouched pages of it cost nothing.
TFLM_ARENA_BYTES = 64 * 2**20


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real int8 models and images, beside the repository; skips where they are absent."""
    folder = (Path(__file__).parents[3] / "../shared/data/vision").resolve()
    if not folder.is_dir():
        pytest.skip(f"no real models: {folder} is absent")
    return folder


@pytest.fixture(scope="session")
def tflm() -> Callable[[Path], Model]:
    """``tflm(path)`` → the model's main subgraph in TFLite Micro with its reference kernels: the exact oracle."""
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")

    def load(path: Path) -> Model:
        interpreter = runtime.Interpreter.from_file(str(path), arena_size=TFLM_ARENA_BYTES)

        def run(image: np.ndarray) -> np.ndarray:
            interpreter.set_input(image, 0)
            interpreter.invoke()
            return np.array(interpreter.get_output(0))

        return run

    return load


@pytest.fixture(scope="session")
def builtin_ref() -> Callable[..., Model]:
    """``builtin_ref(path, signature=None)`` → the model in LiteRT's reference kernels, one thread.

    Its FULLY_CONNECTED rounds once where TFLite Micro rounds twice: a rare step of 1, more after a softmax.
    """
    litert = pytest.importorskip("ai_edge_litert.interpreter")

    def load(path: Path, signature: str | None = None) -> Model:
        interpreter = litert.Interpreter(
            str(path), num_threads=1, experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF
        )
        interpreter.allocate_tensors()
        if signature is not None:
            runner = interpreter.get_signature_runner(signature)
            (name,) = runner.get_input_details()

            def run_signature(image: np.ndarray) -> np.ndarray:
                (output,) = runner(**{name: image}).values()
                return output

            return run_signature
        (image_details,) = interpreter.get_input_details()
        (output_details,) = interpreter.get_output_details()

        def run(image: np.ndarray) -> np.ndarray:
            interpreter.set_tensor(image_details["index"], image)
            interpreter.invoke()
            return interpreter.get_tensor(output_details["index"])

        return run

    return load


@pytest.fixture(scope="session")
def built_in() -> Callable[[str], VisionSource]:
    """``built_in(reference)`` → a built-in model, quantised once in a session: 5 to 15 s of one core each."""
    pytest.importorskip("litert_torch")
    return functools.cache(open_vision)


@pytest.fixture(scope="session")
def random_graph() -> Callable[[int], Graph]:
    """``random_graph(seed)`` → an int8 network of local layers and a tail that classifies; checked.

    Kernels 1, 3, 5, 7; strides 1 and 2; VALID, SAME and asymmetric padding; residuals and concatenations of channels;
    depthwise layers, pools; odd and non-square images; scales per channel. Activations stay clear of saturation.
    """
    return build_random_graph


# One layer: convolution ("conv", channels, kernel, stride, pads) or ("depthwise", kernel, stride, pads), with pads of
# None for SAME; ("add", n) adds the output of n layers before.
Layer = tuple[Any, ...]


@pytest.fixture(scope="session")
def layer_stack() -> Callable[[int, list[Layer]], Graph]:
    """``layer_stack(size, layers)`` → a network of these on a square image of three channels; its weights are zero."""
    return build_layer_stack


@pytest.fixture(scope="session")
def mobilenet_v2() -> Callable[..., Graph]:
    """``mobilenet_v2(size=224)`` → MobileNetV2 1.0 (arXiv 1801.04381, table 2) with weights of zero."""

    def build(size: int = 224) -> Graph:
        layers: list[Layer] = [("conv", 32, 3, 2, None)]
        width = 32
        stages = (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        )
        for expansion, channels, repeats, stride in stages:
            for repeat in range(repeats):
                if expansion > 1:
                    layers.append(("conv", width * expansion, 1, 1, None))
                layers.append(("depthwise", 3, 1 if repeat else stride, None))
                layers.append(("conv", channels, 1, 1, None))
                if repeat:
                    layers.append(("add", 3))
                width = channels
        return build_layer_stack(size, [*layers, ("conv", 1280, 1, 1, None), ("mean",), ("dense", 1000)])

    return build


def build_layer_stack(size: int, layers: list[Layer]) -> Graph:
    """See the fixture; ("mean",) and ("dense", channels) make a head."""
    builder = GraphBuilder()
    quantization = Quantization((1 / 64,), (-1,))
    outputs = [builder.tensor(Tensor("image", (1, size, size, 3), "int8", quantization))]

    def constant(shape: tuple[int, ...], axis: int, dtype: str = "int8") -> int:
        scales = Quantization((1 / 64,) * shape[axis], (0,) * shape[axis], axis)
        return builder.tensor(Tensor(f"constant_{len(builder.tensors)}", shape, dtype, scales, np.zeros(shape, dtype)))

    def window(kernel: int, stride: int, pads: int | None) -> dict[str, Any]:
        sides = same_pads(builder.tensors[outputs[-1]].shape[1], kernel, stride) if pads is None else (pads, pads)
        before, after = sides
        return {"kernel": (kernel, kernel), "stride": (stride, stride), "pads": Pads(before, before, after, after)}

    for layer in layers:
        x = outputs[-1]
        width = builder.tensors[x].shape[-1]
        match layer:
            case ("conv", channels, kernel, stride, pads):
                weights, bias = constant((channels, kernel, kernel, width), 0), constant((channels,), 0, "int32")
                operator, inputs = Conv2D(**window(kernel, stride, pads)), (x, weights, bias)
            case ("depthwise", kernel, stride, pads):
                weights, bias = constant((1, kernel, kernel, width), 3), constant((width,), 0, "int32")
                operator, inputs = DepthwiseConv2D(**window(kernel, stride, pads)), (x, weights, bias)
            case ("add", back):
                operator, inputs = Add(), (outputs[-1 - back], x)
            case ("mean",):
                operator, inputs = Mean((1, 2)), (x,)
            case ("dense", channels):
                one = Quantization((1 / 64,), (0,))
                weights = builder.tensor(
                    Tensor("dense_weights", (channels, width), "int8", one, np.zeros((channels, width), np.int8))
                )
                operator, inputs = FullyConnected(), (x, weights)
        outputs.append(builder.node(operator, inputs, f"layer_{len(outputs)}", "int8", quantization))
    return builder.build(outputs[:1], outputs[-1:])


@pytest.fixture(scope="session")
def random_images() -> Callable[..., list[np.ndarray]]:
    """``random_images(graph, seed=0, count=2)`` → ``count`` of noise, then all lowest, all highest, both mixed."""

    def draw(graph: Graph, seed: int = 0, count: int = 2) -> list[np.ndarray]:
        (index,) = graph.inputs
        tensor, generator = graph.tensors[index], np.random.default_rng(seed)
        limits = np.iinfo(tensor.dtype)
        noise = [
            generator.integers(limits.min, limits.max, tensor.shape, tensor.dtype, endpoint=True) for _ in range(count)
        ]
        flat = [np.full(tensor.shape, value, tensor.dtype) for value in (limits.min, limits.max)]
        return [*noise, *flat, generator.choice(np.array([limits.min, limits.max], tensor.dtype), tensor.shape)]

    return draw


def build_random_graph(seed: int) -> Graph:
    """See the fixture."""
    return _RandomNetwork(random.Random(seed), np.random.default_rng(seed)).build()


class _RandomNetwork:
    """Real values of every layer have a standard deviation near 1; scales are chosen for that."""

    def __init__(self, choices: random.Random, generator: np.random.Generator) -> None:
        self.choices = choices
        self.generator = generator
        self.builder = GraphBuilder()

    def build(self) -> Graph:
        rows, columns = self.choices.randint(11, 29), self.choices.randint(11, 29)
        shape = (1, rows, columns, self.choices.choice((1, 3, 4)))
        # Uniform codes have a standard deviation of 74.
        image = self.builder.tensor(Tensor("image", shape, "int8", Quantization((1 / 74,), (-1,))))
        x = self.conv(image)
        for _ in range(self.choices.randint(2, 5)):
            layers = (self.conv, self.conv, self.depthwise, self.depthwise, self.residual, self.residual)
            layer = self.choices.choice((*layers, self.pool, self.fork, self.point))
            x = layer(x)
        return self.builder.build((image,), (self.tail(x),))

    def node(self, operator: Any, inputs: tuple[int, ...], quantization: Quantization) -> int:
        name = f"{operator.name.lower()}_{len(self.builder.nodes)}"
        return self.builder.node(operator, inputs, name, "int8", quantization)

    def shape(self, x: int) -> tuple[int, ...]:
        return self.builder.tensors[x].shape

    def quantization(self, x: int) -> Quantization:
        found = self.builder.tensors[x].quantization
        assert found is not None
        return found

    def output_quantization(self, spread: float = 1.0) -> Quantization:
        scale = float(np.float32(spread * self.choices.uniform(3, 5) / 128))
        return Quantization((scale,), (self.choices.randint(-60, 20),))

    def activation(self) -> Activation:
        return self.choices.choice((Activation.NONE, Activation.RELU, Activation.RELU6))

    def pads(self, x: int, kernel: tuple[int, int], stride: tuple[int, int]) -> Pads:
        kind = self.choices.choice(("valid", "same", "asymmetric"))
        sides = []
        for size, reach, step in zip(self.shape(x)[1:3], kernel, stride, strict=True):
            if kind == "same" or (kind == "valid" and size < reach + 4):
                sides.append(same_pads(size, reach, step))
            elif kind == "valid":
                sides.append((0, 0))
            else:
                sides.append((self.choices.randint(0, reach - 1), self.choices.randint(reach // 2, reach - 1)))
        (top, bottom), (left, right) = sides
        return Pads(top, left, bottom, right)

    def window(self, x: int, kernels: tuple[int, ...]) -> dict[str, Any]:
        small = min(self.shape(x)[1:3]) < 8
        kernel = self.choices.choice(kernels), self.choices.choice(kernels)
        stride = (1, 1) if small else self.choices.choice(((1, 1), (1, 1), (2, 2), (2, 1)))
        return {"kernel": kernel, "stride": stride, "pads": self.pads(x, kernel, stride)}

    def constants(self, x: int, shape: tuple[int, ...], axis: int, fan_in: int) -> tuple[int, int]:
        """Weights and bias; the scales differ between channels by up to 4."""
        channels, step = shape[axis], self.quantization(x).scale
        spread = self.generator.uniform(0.5, 2, channels)
        scales = np.float32(spread / (74 * np.sqrt(fan_in)))
        weights = self.generator.integers(-127, 127, shape, np.int8, endpoint=True)
        bias_scales = np.float32(step) * scales
        bias = np.round(self.generator.normal(0, 0.5, channels) / bias_scales).astype(np.int32)
        zeros = (0,) * channels
        named = f"constant_{len(self.builder.tensors)}"
        return (
            self.builder.tensor(
                Tensor(f"{named}_weights", shape, "int8", Quantization(tuple(map(float, scales)), zeros, axis), weights)
            ),
            self.builder.tensor(
                Tensor(f"{named}_bias", (channels,), "int32", Quantization(tuple(map(float, bias_scales)), zeros), bias)
            ),
        )

    def conv(self, x: int, **window: Any) -> int:
        channels = self.shape(x)[3]
        window = window or self.window(x, (1, 3, 3, 5, 7))
        width = window.pop("width", self.choices.randint(2, 6))
        kernel = window["kernel"]
        constants = self.constants(x, (width, *kernel, channels), 0, kernel[0] * kernel[1] * channels)
        return self.node(Conv2D(**window, activation=self.activation()), (x, *constants), self.output_quantization(1.3))

    def depthwise(self, x: int, **window: Any) -> int:
        window = window or self.window(x, (3, 3, 5, 7))
        kernel, multiplier = window["kernel"], window.pop("multiplier", self.choices.choice((1, 1, 2)))
        shape = (1, *kernel, self.shape(x)[3] * multiplier)
        constants = self.constants(x, shape, 3, kernel[0] * kernel[1])
        return self.node(
            DepthwiseConv2D(**window, activation=self.activation()), (x, *constants), self.output_quantization(1.3)
        )

    def residual(self, x: int) -> int:
        """A branch that keeps the size, of one or two layers, added to its input."""
        branch = x
        for layer in self.choices.choice(((self.conv,), (self.depthwise,), (self.conv, self.depthwise))):
            kernel = self.choices.choice(((1, 1), (3, 3), (5, 3)))
            before = [self.choices.choice(((size - 1) // 2, size - 1)) for size in kernel]
            pads = Pads(before[0], before[1], kernel[0] - 1 - before[0], kernel[1] - 1 - before[1])
            extra = {"width": self.shape(x)[3]} if layer == self.conv else {"multiplier": 1}
            branch = layer(branch, kernel=kernel, pads=pads, **extra)
        inputs = (x, branch) if self.choices.random() < 0.5 else (branch, x)
        return self.node(Add(self.activation()), inputs, self.output_quantization(1.6))

    def fork(self, x: int) -> int:
        """Two branches of one size and one quantisation, joined along the channels."""
        pads, joined = Pads(1, 1, 1, 1), self.output_quantization(1.3)
        branches = []
        for kernel, padding in (((1, 1), NO_PADS), ((3, 3), pads)):
            constants = self.constants(x, (2, *kernel, self.shape(x)[3]), 0, kernel[0] * kernel[1] * self.shape(x)[3])
            branches.append(self.node(Conv2D(kernel, pads=padding), (x, *constants), joined))
        return self.node(Concatenation(3), tuple(branches), joined)

    def pool(self, x: int) -> int:
        kind: type[Window] = self.choices.choice((MaxPool2D, AveragePool2D))
        return self.node(kind(**self.window(x, (2, 3))), (x,), self.quantization(x))

    def point(self, x: int) -> int:
        if self.choices.random() < 0.5:
            return self.node(Relu6(), (x,), self.quantization(x))
        return self.node(HardSwish(), (x,), self.output_quantization())

    def tail(self, x: int) -> int:
        if self.choices.random() < 0.5:
            x = self.node(Mean((1, 2), keep_dims=self.choices.random() < 0.5), (x,), self.output_quantization(0.5))
        else:
            pool = AveragePool2D(self.shape(x)[1:3])  # type: ignore[arg-type]
            x = self.node(pool, (x,), self.quantization(x))
        if self.choices.random() < 0.5:
            x = self.node(Reshape((1, self.shape(x)[-1])), (x,), self.quantization(x))
        weights, bias = self.constants(x, (5, self.shape(x)[-1]), 0, self.shape(x)[-1])
        weights, bias = self._one_scale(weights), self._one_scale(bias)
        x = self.node(FullyConnected(), (x, weights, bias), self.output_quantization(1.3))
        return self.node(Softmax(), (x,), Quantization((1 / 256,), (-128,)))

    def _one_scale(self, index: int) -> int:
        """Fully connected layers are quantised as a whole."""
        tensor = self.builder.tensors[index]
        assert tensor.quantization is not None
        one = Quantization(tensor.quantization.scales[:1], (0,))
        self.builder.tensors[index] = Tensor(tensor.name, tensor.shape, tensor.dtype, one, tensor.data)
        return index
