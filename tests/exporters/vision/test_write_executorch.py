"""ExecuTorch programs: against LiteRT's reference kernels, split against whole, and what XNNPACK takes of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from edgepipe.errors import MissingExtra, UnsupportedModel
from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.lower_pads import lower_pads
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
)
from edgepipe.exporters.vision.patch_split import split
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.write_tflite import write_tflite

pytest.importorskip("executorch")
from edgepipe.exporters.vision import write_executorch as writer

Model = Callable[[np.ndarray], np.ndarray]

IMAGE = (1, 9, 11, 6)
INPUT, OUTPUT = Quantization((0.05,), (-7,)), Quantization((0.08,), (11,))
PROBABILITY = Quantization((1 / 256,), (-128,))


def one_node(
    operator: Operator,
    *constants: Tensor,
    shape: tuple[int, ...] = IMAGE,
    source: Quantization | None = INPUT,
    result: Quantization | None = OUTPUT,
    dtypes: tuple[str, str] = ("int8", "int8"),
) -> Graph:
    """A graph of one node, whose first input is the graph's."""
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", shape, dtypes[0], source))
    inputs = [image, *map(builder.tensor, constants)]
    return builder.build([image], [builder.node(operator, inputs, "output", dtypes[1], result)])


def joined(operator: Operator, result: Quantization, times: int = 2) -> Graph:
    """The operator on an image, its maxima, and the image again."""
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", IMAGE, "int8", INPUT))
    maxima = builder.node(MaxPool2D((3, 3), pads=Pads(1, 1, 1, 1)), [image], "maxima", "int8", INPUT)
    inputs = [maxima, *[image] * (times - 1)]
    return builder.build([image], [builder.node(operator, inputs, "output", "int8", result)])


def weights(shape: tuple[int, ...], axis: int, *, channels: int | None = None) -> tuple[Tensor, Tensor]:
    """Weights and bias with ``channels`` scales, by default one for each."""
    generator = np.random.default_rng(sum(shape))
    scales = tuple(map(float, generator.uniform(0.002, 0.02, channels or shape[axis]).astype(np.float32)))
    bias_scales = tuple(float(np.float32(INPUT.scale) * np.float32(scale)) for scale in scales)
    zeros = (0,) * len(scales)
    bias = generator.integers(-2000, 2000, shape[axis], np.int32)
    return (
        Tensor("w", shape, "int8", Quantization(scales, zeros, axis), generator.integers(-127, 128, shape, np.int8)),
        Tensor("b", bias.shape, "int32", Quantization(bias_scales, zeros), bias),
    )


def constant(shape: tuple[int, ...]) -> Tensor:
    values = np.random.default_rng(5).integers(-128, 128, shape, np.int8)
    return Tensor("constant", shape, "int8", Quantization((0.03,), (4,)), values)


CONV, POINTWISE = weights((8, 3, 3, 6), 0), weights((5, 1, 1, 6), 0, channels=1)
GRAY, GRAY_DEPTHWISE = weights((8, 3, 3, 1), 0), weights((1, 3, 3, 4), 3)
DEPTHWISE, DOUBLE = weights((1, 3, 3, 6), 3), weights((1, 5, 3, 12), 3)

WITHIN_ONE_STEP = {
    "conv": one_node(Conv2D((3, 3)), *CONV),
    "conv_same": one_node(Conv2D((3, 3), (2, 2), Pads(1, 1, 1, 1), Activation.RELU), *CONV),
    "conv_asymmetric": one_node(Conv2D((3, 3), (2, 1), Pads(0, 2, 1, 0), Activation.RELU6), *CONV),
    "conv_dilated": one_node(Conv2D((3, 3), (1, 1), Pads(2, 2, 2, 2), dilation=(2, 2)), *CONV),
    "conv_clamped": one_node(Conv2D((3, 3), activation=Activation.RELU_N1_TO_1), *CONV),
    "conv_of_one_scale": one_node(Conv2D((1, 1)), *POINTWISE),
    "conv_of_gray": one_node(Conv2D((3, 3), pads=Pads(1, 1, 1, 1)), *GRAY, shape=(1, 9, 11, 1)),
    "depthwise": one_node(DepthwiseConv2D((3, 3), (1, 1), Pads(1, 1, 1, 1), Activation.RELU6), *DEPTHWISE),
    "depthwise_strided": one_node(DepthwiseConv2D((3, 3), (2, 2), Pads(0, 0, 1, 1)), *DEPTHWISE),
    "depthwise_of_two": one_node(DepthwiseConv2D((5, 3), (1, 1), Pads(2, 1, 2, 1)), *DOUBLE),
    "depthwise_of_gray": one_node(DepthwiseConv2D((3, 3)), *GRAY_DEPTHWISE, shape=(1, 9, 11, 1)),
    "fully_connected": one_node(FullyConnected(Activation.RELU), *weights((5, 6), 0, channels=1), shape=(1, 6)),
    "fully_connected_image": one_node(FullyConnected(), weights((4, 594), 0)[0]),
    "fully_connected_keeping": one_node(FullyConnected(keep_dims=True), *weights((5, 6), 0), shape=(1, 3, 2, 6)),
    "add": joined(Add(), OUTPUT),
    "add_relu6": joined(Add(Activation.RELU6), OUTPUT),
    "add_image": one_node(Add(), constant(IMAGE)),
    "add_channels": one_node(Add(), constant((6,))),
    "mul": joined(Mul(), OUTPUT),
    "mul_channels": one_node(Mul(Activation.RELU6), constant((1, 1, 1, 6))),
    "mean": one_node(Mean((1, 2))),
    "mean_keeping": one_node(Mean((1, 2), keep_dims=True)),
    "mean_of_channels": one_node(Mean((3,), keep_dims=True)),
    "relu_scaled": one_node(Relu(), result=Quantization((0.03,), (-128,))),
    "logistic": one_node(Logistic(), result=PROBABILITY),
    "hard_swish": one_node(HardSwish(), result=Quantization((0.04,), (-20,))),
    "softmax": one_node(Softmax(), shape=(1, 10), source=Quantization((0.17,), (20,)), result=PROBABILITY),
    "softmax_image": one_node(Softmax(2.5), result=PROBABILITY),
    "quantize": one_node(Quantize()),
}
EXACT = {
    "average_pool": one_node(AveragePool2D((2, 2), (2, 2)), result=INPUT),
    "average_pool_padded": one_node(AveragePool2D((3, 3), (2, 1), Pads(0, 1, 1, 0), Activation.RELU6), result=INPUT),
    "average_of_all": one_node(AveragePool2D((9, 11)), result=INPUT),
    "max_pool": one_node(MaxPool2D((2, 3), (2, 2)), result=INPUT),
    "max_pool_padded": one_node(MaxPool2D((3, 3), (2, 1), Pads(0, 1, 1, 0), Activation.RELU), result=INPUT),
    "max_pool_sparse": one_node(MaxPool2D((2, 2), (3, 3)), result=INPUT),
    "max_pool_of_one": one_node(MaxPool2D((1, 1), (2, 2)), result=INPUT),
    "concatenate_rows": joined(Concatenation(1), INPUT),
    "concatenate_channels": joined(Concatenation(3), INPUT, times=7),
    "pad": one_node(Pad(((0, 0), (1, 2), (3, 0), (0, 0))), result=INPUT),
    "pad_with_a_value": one_node(Pad(((0, 0), (0, 1), (2, 0), (1, 0)), value=-128), result=INPUT),
    "reshape": one_node(Reshape((1, 594)), result=INPUT),
    "reshape_to_an_image": one_node(Reshape((1, 11, 6, 9)), result=INPUT),
    "slice": one_node(StridedSlice((0, 2, 0, 1), (1, 9, 7, 6)), result=INPUT),
    "resize": one_node(ResizeNearestNeighbor((18, 22)), result=INPUT),
    "resize_centers": one_node(ResizeNearestNeighbor((13, 5), half_pixel_centers=True), result=INPUT),
    "relu6": one_node(Relu6(), result=INPUT),
    "quantize_unsigned": one_node(
        Quantize(), source=Quantization((0.05,), (121,)), result=INPUT, dtypes=("uint8", "int8")
    ),
    "quantize_to_unsigned": one_node(Quantize(), result=Quantization((0.05,), (121,)), dtypes=("int8", "uint8")),
    "dequantize": one_node(Dequantize(), result=None, dtypes=("int8", "float32")),
}
# What XNNPACK has no operator for, so that ExecuTorch's portable ones run.
PORTABLE = {"max_pool_sparse", "max_pool_of_one", "mean_of_channels", "resize", "resize_centers"}
PORTABLE |= {"quantize_unsigned", "quantize_to_unsigned"}


def steps(found: np.ndarray, expected: np.ndarray) -> int:
    """The largest distance between codes."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    return int(np.abs(found.astype(np.int64) - expected).max())


def portable(lowered: Any, name: str) -> list[str]:
    """The operators of a method that are not XNNPACK's."""
    called = [str(node.target) for node in lowered.exported_program(name).graph.nodes if node.op == "call_function"]
    return [target for target in called if "call_delegate" not in target and "getitem" not in target]


def methods(path: Path) -> Callable[[str], Callable[..., np.ndarray]]:
    """The methods of a program, as functions of arrays."""
    from executorch.extension.pybindings import _portable_lib

    program = _portable_lib._load_program(str(path))

    def load(name: str) -> Callable[..., np.ndarray]:
        method = program.load_method(name)
        return lambda *images: method([torch.tensor(image) for image in images])[0].numpy()

    return load


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Callable[[str], Callable[..., np.ndarray]]]:
    """All operators as methods of one program: before it is written, and loaded."""
    lowered = writer.lower({**WITHIN_ONE_STEP, **EXACT})
    path = tmp_path_factory.mktemp("executorch") / "operators.pte"
    path.write_bytes(lowered.to_executorch().buffer)
    return lowered, methods(path)


@pytest.fixture
def xnnpack_operators(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Fills while graphs are lowered: XNNPACK's operators with the types of their outputs."""
    from executorch.backends.xnnpack import xnnpack_preprocess

    found: Counter[str] = Counter()
    serialize = xnnpack_preprocess.serialize_xnnpack_binary

    def record(graph: Any, constants: bytes) -> bytes:
        tensors = [getattr(value.xvalue_union, "tensor_value", value.xvalue_union) for value in graph.xvalues]
        types = {tensor.id_out: tensor.datatype.name.removeprefix("xnn_datatype_") for tensor in tensors}
        for node in graph.xnodes:
            kind = type(node.xnode_union).__name__.removeprefix("XNN").removeprefix("_")
            found[f"{kind.partition('_')[0]} {types[node.xnode_union.output_id]}"] += 1
        return serialize(graph, constants)

    monkeypatch.setattr(xnnpack_preprocess, "serialize_xnnpack_binary", record)
    return found


def reference(graphs: Mapping[str, Graph], folder: Path, builtin_ref: Callable[..., Model]) -> dict[str, Model]:
    write_tflite({name: lower_pads(graph) for name, graph in graphs.items()}, folder / "model.tflite")
    return {name: builtin_ref(folder / "model.tflite", name) for name in graphs}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WITHIN_ONE_STEP, *EXACT])
def test_an_operator_is_within_a_step_of_the_reference(
    name: str,
    written: tuple[Any, Callable[[str], Callable[..., np.ndarray]]],
    builtin_ref: Callable[..., Model],
    random_images: Callable[..., list[np.ndarray]],
    tmp_path: Path,
) -> None:
    graph = WITHIN_ONE_STEP.get(name) or EXACT[name]
    ours, theirs = written[1](name), reference({"main": graph}, tmp_path, builtin_ref)["main"]
    expected = [theirs(image) for image in random_images(graph, count=8)]
    found = [ours(image) for image in random_images(graph, count=8)]
    assert len(np.unique(expected)) > 4
    if name in EXACT:
        np.testing.assert_array_equal(found, expected)
    else:
        assert steps(np.stack(found), np.stack(expected)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WITHIN_ONE_STEP, *EXACT])
def test_xnnpack_takes_what_it_has_an_operator_for(name: str, written: tuple[Any, Any]) -> None:
    assert bool(portable(written[0], name)) == (name in PORTABLE)


def test_a_network_becomes_one_int8_delegate(xnnpack_operators: Counter[str]) -> None:
    """Asymmetric padding, a fused clamp and hard swish too, which ExecuTorch's own rules would leave in float32."""
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", (1, 8, 8, 6), "int8", INPUT))
    conv = Conv2D((3, 3), (1, 1), Pads(0, 1, 2, 1), Activation.RELU6)
    x = builder.node(conv, [image, *map(builder.tensor, weights((6, 3, 3, 6), 0))], "conv", "int8", INPUT)
    x = builder.node(Add(Activation.RELU6), [x, image], "add", "int8", OUTPUT)
    x = builder.node(HardSwish(), [x], "hard_swish", "int8", INPUT)
    x = builder.node(Mean((1, 2)), [x], "mean", "int8", INPUT)
    x = builder.node(FullyConnected(), [x, *map(builder.tensor, weights((5, 6), 0))], "logits", "int8", OUTPUT)
    lowered = writer.lower({"main": builder.build([image], [x])})
    assert portable(lowered, "main") == []
    transposes, reshapes = "StaticTranspose qint8", "StaticReshape qint8"
    assert {key: count for key, count in xnnpack_operators.items() if key not in (transposes, reshapes)} == {
        "StaticConstantPad qint8": 1,
        "Conv2d qint8": 1,
        "Add qint8": 1,
        "Hardswish qint8": 1,
        "GlobalAvgPooling2d qint8": 1,
        "FullyConnected qint8": 1,
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_network_computes_layer_by_layer_what_the_reference_does(
    seed: int,
    random_graph: Callable[[int], Graph],
    random_images: Callable[..., list[np.ndarray]],
    builtin_ref: Callable[..., Model],
    tmp_path: Path,
) -> None:
    """Each layer on the reference's own input: steps do not add up."""
    graph = random_graph(seed)
    beginnings, layers = {}, {}
    for position, node in enumerate(graph.nodes):
        inputs = tuple(dict.fromkeys(graph.activations(node)))
        beginnings[str(position)] = replace(graph, nodes=graph.nodes[: position + 1], outputs=(node.output,))
        layers[str(position)] = replace(graph, nodes=(node,), inputs=inputs, outputs=(node.output,))
    writer.write_executorch(layers, tmp_path / "layers.pte")
    ours, theirs = methods(tmp_path / "layers.pte"), reference(beginnings, tmp_path, builtin_ref)
    values = {graph.inputs[0]: random_images(graph, seed, count=1)[0]}
    for position, node in enumerate(graph.nodes):
        values[node.output] = theirs[str(position)](values[graph.inputs[0]])
        found = ours(str(position))(*(values[index] for index in layers[str(position)].inputs))
        assert steps(found, values[node.output]) <= 1, f"node {position} ({node.operator.name})"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_split_network_is_the_whole_one(
    seed: int,
    random_graph: Callable[[int], Graph],
    random_images: Callable[..., list[np.ndarray]],
    tmp_path: Path,
) -> None:
    graph = random_graph(seed)
    outputs = {point: graph.tensors[graph.nodes[point - 1].output].shape for point in split_points(graph)}
    point = max(point for point, shape in outputs.items() if min(shape[1:3]) >= 3)
    model = split(graph, PatchPlan(point, 2, 1 + seed % 3))
    writer.write_executorch({"whole": graph, **model.tile_graphs, "tail": model.tail}, tmp_path / "parts.pte")
    run = methods(tmp_path / "parts.pte")
    for image in random_images(graph, seed):
        stage = np.empty(model.tail.tensors[model.tail.inputs[0]].shape, np.int8)
        for tile in model.tiles:
            (top, bottom), (left, right) = tile.window.rows, tile.window.columns
            target = stage[:, slice(*tile.output.rows), slice(*tile.output.columns)]
            target[:] = run(tile.graph)(image[:, top:bottom, left:right])
        np.testing.assert_array_equal(run("tail")(stage), run("whole")(image))


@pytest.mark.slow
def test_resnet8_sees_what_the_reference_sees(
    data_folder: Path, builtin_ref: Callable[..., Model], xnnpack_operators: Counter[str], tmp_path: Path
) -> None:
    file = data_folder / "resnet8_cifar10_int8.tflite"
    graph = read_tflite(file)
    writer.write_executorch({"whole": graph}, tmp_path / "one.pte")
    assert xnnpack_operators["Conv2d qint8"] == 9
    assert xnnpack_operators["Add qint8"] == 3
    assert xnnpack_operators["Convert fp32"] == 2, "average pool and softmax"
    ours, theirs = methods(tmp_path / "one.pte")("whole"), builtin_ref(file)
    pictures = sorted((data_folder / "cifar10").glob("*.jpg"))
    assert len(pictures) == 6
    for picture in pictures:
        image = (np.asarray(Image.open(picture), np.int16) - 128).astype(np.int8)[None]
        assert ours(image).argmax() == theirs(image).argmax()

    writer.write_executorch({"whole": graph, "again": graph}, tmp_path / "two.pte")
    added = (tmp_path / "two.pte").stat().st_size - (tmp_path / "one.pte").stat().st_size
    assert added < graph.constant_bytes / 2, "the second method has weights of its own"


@pytest.mark.slow
def test_visual_wake_words_agree_with_the_reference(
    data_folder: Path,
    builtin_ref: Callable[..., Model],
    random_images: Callable[..., list[np.ndarray]],
    tmp_path: Path,
) -> None:
    file = data_folder / "vww_96_int8.tflite"
    graph = read_tflite(file)
    writer.write_executorch({"whole": graph}, tmp_path / "model.pte")
    ours, theirs = methods(tmp_path / "model.pte")("whole"), builtin_ref(file)
    for image in random_images(graph, count=10):
        assert ours(image).argmax() == theirs(image).argmax()


def test_float32_inside_is_refused() -> None:
    graph = one_node(Relu(), source=None, result=None, dtypes=("float32", "float32"))
    with pytest.raises(UnsupportedModel, match=r"RELU gives 'output' as float32: expected int8"):
        writer.lower({"main": graph})


@pytest.mark.parametrize(("source", "result"), [(0.05, 1e-6), (1e-37, 0.1)], ids=["huge multiplier", "tiny steps"])
def test_scales_that_xnnpack_refuses_are_refused(source: float, result: float) -> None:
    graph = one_node(Conv2D((3, 3)), *CONV, source=Quantization((source,), (0,)), result=Quantization((result,), (0,)))
    with pytest.raises(UnsupportedModel, match=r"^node 0 \(CONV_2D\), tensor 3 \(output\): its multipliers reach .*"):
        writer.lower({"main": graph})


def test_executorch_missing_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "executorch.exir", None)
    with pytest.raises(MissingExtra) as error:
        writer.write_executorch({"main": EXACT["relu6"]}, tmp_path / "model.pte")
    assert str(error.value) == "executorch is not installed: pip install 'edgepipe[export]'"
    assert not (tmp_path / "model.pte").exists()
