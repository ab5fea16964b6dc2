"""QDQ models against LiteRT's reference kernels, and against themselves when split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

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
)
from edgepipe.exporters.vision.patch_split import join, split
from edgepipe.exporters.vision.patches import PatchPlan
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.write_onnx import write_onnx
from edgepipe.exporters.vision.write_tflite import write_tflite

Model = Callable[[np.ndarray], np.ndarray]

IMAGE = (1, 9, 11, 6)
INPUT, OUTPUT = Quantization((0.05,), (-7,)), Quantization((0.08,), (11,))
PROBABILITY = Quantization((1 / 256,), (-128,))


@pytest.fixture(params=["0", "1"], ids=["uint8", "int8"])
def onnx_model(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Graph], Model]:
    """``onnx_model(graph)`` → the checked model in onnxruntime, with x86's fusions and with ARM's, which stay int8."""

    def load(graph: Graph) -> Model:
        path = tmp_path / "model.onnx"
        write_onnx(graph, path)
        return session(path, qdqisint8allowed=request.param)

    return load


def session(path: Path, **entries: str) -> Model:
    """A model that passes the checker, in onnxruntime."""
    onnx.checker.check_model(str(path), full_check=True)
    options = ort.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(f"session.{key}", value)
    opened = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda image: opened.run(None, {opened.get_inputs()[0].name: image})[0]


def steps(found: np.ndarray, expected: np.ndarray) -> int:
    """The largest distance between codes."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    return int(np.abs(found.astype(np.int64) - expected).max())


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


def joined(operator: Operator, *, axis_images: int = 2) -> Graph:
    """The operator on an image and its maxima, of one quantisation."""
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", IMAGE, "int8", INPUT))
    maxima = builder.node(MaxPool2D((3, 3), pads=Pads(1, 1, 1, 1)), [image], "maxima", "int8", INPUT)
    inputs = [image, maxima, image][:axis_images]
    result = INPUT if isinstance(operator, Concatenation) else OUTPUT
    return builder.build([image], [builder.node(operator, inputs, "output", "int8", result)])


def weights(shape: tuple[int, ...], axis: int, *, channels: int | None = None) -> tuple[Tensor, Tensor]:
    """Weights and bias with ``channels`` scales, by default one for each."""
    generator = np.random.default_rng(sum(shape))
    scales = tuple(map(float, generator.uniform(0.002, 0.02, channels or shape[axis]).astype(np.float32)))
    bias_scales = tuple(float(np.float32(INPUT.scale) * np.float32(scale)) for scale in scales)
    zeros = (0,) * len(scales)
    return (
        Tensor("w", shape, "int8", Quantization(scales, zeros, axis), generator.integers(-127, 128, shape, np.int8)),
        Tensor(
            "b",
            shape[axis : axis + 1],
            "int32",
            Quantization(bias_scales, zeros),
            generator.integers(-2000, 2000, shape[axis], np.int32),
        ),
    )


def constant(shape: tuple[int, ...]) -> Tensor:
    values = np.random.default_rng(5).integers(-128, 128, shape, np.int8)
    return Tensor("constant", shape, "int8", Quantization((0.03,), (4,)), values)


CONV = weights((8, 3, 3, 6), 0)
POINTWISE = weights((5, 1, 1, 6), 0, channels=1)
DEPTHWISE, DOUBLE = weights((1, 3, 3, 6), 3), weights((1, 5, 3, 12), 3)

WITHIN_ONE_STEP = {
    "conv": one_node(Conv2D((3, 3)), *CONV),
    "conv same": one_node(Conv2D((3, 3), (2, 2), Pads(1, 1, 1, 1), Activation.RELU), *CONV),
    "conv asymmetric": one_node(Conv2D((3, 3), (2, 1), Pads(0, 2, 1, 0), Activation.RELU6), *CONV),
    "conv dilated": one_node(Conv2D((3, 3), (1, 1), Pads(2, 2, 2, 2), dilation=(2, 2)), *CONV),
    "conv clamped": one_node(Conv2D((3, 3), activation=Activation.RELU_N1_TO_1), *CONV),
    "conv without bias": one_node(Conv2D((3, 3)), CONV[0]),
    "conv of one scale": one_node(Conv2D((1, 1)), *POINTWISE),
    "depthwise": one_node(DepthwiseConv2D((3, 3), (1, 1), Pads(1, 1, 1, 1), Activation.RELU6), *DEPTHWISE),
    "depthwise strided": one_node(DepthwiseConv2D((3, 3), (2, 2), Pads(0, 0, 1, 1)), *DEPTHWISE),
    "depthwise of two": one_node(DepthwiseConv2D((5, 3), (1, 1), Pads(2, 1, 2, 1)), *DOUBLE),
    "fully connected": one_node(FullyConnected(), *weights((5, 6), 0, channels=1), shape=(1, 6)),
    "fully connected per channel": one_node(FullyConnected(Activation.RELU), *weights((5, 6), 0), shape=(1, 6)),
    "fully connected image": one_node(FullyConnected(), weights((4, 594), 0, channels=1)[0]),
    "fully connected keeping": one_node(
        FullyConnected(keep_dims=True), *weights((5, 6), 0, channels=1), shape=(1, 3, 2, 6)
    ),
    "add": joined(Add(Activation.RELU)),
    "add image": one_node(Add(), constant(IMAGE)),
    "add channels": one_node(Add(), constant((6,))),
    "add column": one_node(Add(), constant((9, 1, 1))),
    "mul": joined(Mul()),
    "mul channels": one_node(Mul(Activation.RELU6), constant((1, 1, 1, 6))),
    "mul scalar": one_node(Mul(Activation.RELU6), constant(())),
    "mul vector": one_node(Mul(), constant((6,)), shape=(1, 6)),
    "logistic": one_node(Logistic(), result=PROBABILITY),
    "hard swish": one_node(HardSwish(), result=Quantization((0.04,), (-20,))),
    "softmax": one_node(Softmax(), shape=(1, 10), source=Quantization((0.17,), (20,)), result=PROBABILITY),
    "softmax image": one_node(Softmax(), result=PROBABILITY),
    "softmax sharp": one_node(Softmax(2.5), shape=(1, 10), result=PROBABILITY),
    "quantize": one_node(Quantize()),
}
EXACT = {
    "relu": one_node(Relu()),
    "relu6": one_node(Relu6(), result=INPUT),
    "average pool": one_node(AveragePool2D((2, 2), (2, 2)), result=INPUT),
    "average pool same": one_node(AveragePool2D((3, 3), (2, 1), Pads(1, 1, 1, 1), Activation.RELU6), result=INPUT),
    "average of all": one_node(AveragePool2D((9, 11)), result=INPUT),
    "mean": one_node(Mean((1, 2))),
    "mean keeping": one_node(Mean((1, 2), keep_dims=True)),
    "mean of rows": one_node(Mean((1,))),
    "mean of channels": one_node(Mean((3,), keep_dims=True)),
    "max pool": one_node(MaxPool2D((2, 3), (2, 2)), result=INPUT),
    "max pool same": one_node(MaxPool2D((3, 3), (2, 1), Pads(1, 1, 1, 1), Activation.RELU), result=INPUT),
    "concatenate channels": joined(Concatenation(3), axis_images=3),
    "concatenate rows": joined(Concatenation(1)),
    "pad": one_node(Pad(((0, 0), (1, 2), (3, 0), (0, 0))), result=INPUT),
    "pad with a value": one_node(Pad(((0, 0), (0, 1), (2, 0), (1, 0)), value=-128), result=INPUT),
    "reshape": one_node(Reshape((1, 594)), result=INPUT),
    "reshape to an image": one_node(Reshape((1, 11, 6, 9)), result=INPUT),
    "slice": one_node(StridedSlice((0, 2, 0, 1), (1, 9, 7, 6)), result=INPUT),
    "resize": one_node(ResizeNearestNeighbor((18, 22)), result=INPUT),
    "resize by odd factors": one_node(ResizeNearestNeighbor((14, 31)), result=INPUT),
    "resize corners": one_node(ResizeNearestNeighbor((13, 16), align_corners=True), result=INPUT),
    "resize centers": one_node(ResizeNearestNeighbor((13, 5), half_pixel_centers=True), result=INPUT),
    "quantize unsigned": one_node(
        Quantize(), source=Quantization((0.05,), (121,)), result=INPUT, dtypes=("uint8", "int8")
    ),
    "dequantize": one_node(Dequantize(), result=None, dtypes=("int8", "float32")),
}


def reference(graph: Graph, folder: Path, builtin_ref: Callable[..., Model]) -> Model:
    write_tflite({"main": graph}, folder / "model.tflite")
    return builtin_ref(folder / "model.tflite")


@pytest.mark.parametrize("name", [*WITHIN_ONE_STEP, *EXACT])
def test_an_operator_is_within_a_step_of_the_reference(
    name: str,
    onnx_model: Callable[[Graph], Model],
    builtin_ref: Callable[..., Model],
    random_images: Callable[..., list[np.ndarray]],
    tmp_path: Path,
) -> None:
    graph = WITHIN_ONE_STEP.get(name) or EXACT[name]
    ours, theirs = onnx_model(graph), reference(graph, tmp_path, builtin_ref)
    expected = [theirs(image) for image in random_images(graph, count=8)]
    found = [ours(image) for image in random_images(graph, count=8)]
    assert len(np.unique(expected)) > 4
    if name in EXACT:
        np.testing.assert_array_equal(found, expected)
    else:
        assert steps(np.stack(found), np.stack(expected)) <= 1


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(
    sizes=st.tuples(*[st.integers(1, 40)] * 2),
    wanted=st.tuples(*[st.integers(1, 70)] * 2),
    mode=st.sampled_from([{}, {"align_corners": True}, {"half_pixel_centers": True}]),
)
def test_resizing_picks_the_pixels_of_the_reference(
    sizes: tuple[int, int],
    wanted: tuple[int, int],
    mode: dict[str, bool],
    builtin_ref: Callable[..., Model],
    tmp_path: Path,
) -> None:
    """One pixel more or less is not a step, it is another value: sizes whose quotient is not exact are the trap."""
    graph = one_node(ResizeNearestNeighbor(wanted, **mode), shape=(1, *sizes, 2), result=INPUT)
    rows, columns = np.meshgrid(*map(np.arange, sizes), indexing="ij")
    image = np.stack([rows, columns], axis=-1)[None].astype(np.int8)
    write_onnx(graph, tmp_path / "model.onnx")
    expected = reference(graph, tmp_path, builtin_ref)(image)
    np.testing.assert_array_equal(session(tmp_path / "model.onnx")(image), expected)


def test_real_numbers_come_in(onnx_model: Callable[[Graph], Model]) -> None:
    graph = one_node(Quantize(), source=None, dtypes=("float32", "int8"))
    image = np.random.default_rng(0).uniform(-12, 12, IMAGE).astype(np.float32)
    expected = np.clip(np.round(image / 0.08) + 11, -128, 127)
    assert steps(onnx_model(graph)(image), expected.astype(np.int8)) <= 1


@pytest.mark.parametrize("qdqisint8allowed", ["0", "1"], ids=["x86", "arm"])
def test_codes_are_never_computed_in_float(
    qdqisint8allowed: str, random_graph: Callable[[int], Graph], tmp_path: Path
) -> None:
    """Images, residuals and branches too: a float32 sum depends on the size of the image, which a tile changes."""
    unfused = {"Conv", "Gemm", "MatMul", "Add"}
    for seed in range(6):
        write_onnx(random_graph(seed), tmp_path / "model.onnx")
        options = ort.SessionOptions()
        options.add_session_config_entry("session.qdqisint8allowed", qdqisint8allowed)
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        ort.InferenceSession(str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"])
        operators = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
        assert operators["QLinearConv"] > 0
        assert not unfused & set(operators), operators


@pytest.mark.parametrize("seed", range(10))
def test_a_network_computes_layer_by_layer_what_the_reference_does(
    seed: int,
    random_graph: Callable[[int], Graph],
    random_images: Callable[..., list[np.ndarray]],
    builtin_ref: Callable[..., Model],
    tmp_path: Path,
) -> None:
    """Each layer on the reference's own input: steps do not add up."""
    graph = random_graph(seed)
    values = {graph.inputs[0]: random_images(graph, seed, count=1)[0]}
    for position, node in enumerate(graph.nodes):
        upto = replace(graph, nodes=graph.nodes[: position + 1], outputs=(node.output,))
        values[node.output] = reference(upto, tmp_path, builtin_ref)(values[graph.inputs[0]])
        activations = tuple(dict.fromkeys(graph.activations(node)))
        write_onnx(replace(graph, nodes=(node,), inputs=activations, outputs=(node.output,)), tmp_path / "node.onnx")
        onnx.checker.check_model(str(tmp_path / "node.onnx"), full_check=True)
        opened = ort.InferenceSession(str(tmp_path / "node.onnx"), providers=["CPUExecutionProvider"])
        names = [entry.name for entry in opened.get_inputs()]
        found = opened.run(None, {name: values[index] for name, index in zip(names, activations, strict=True)})[0]
        assert steps(found, values[node.output]) <= 1, f"node {position} ({node.operator.name})"


@pytest.mark.parametrize("seed", range(10))
def test_a_split_network_is_the_whole_one(
    seed: int,
    random_graph: Callable[[int], Graph],
    random_images: Callable[..., list[np.ndarray]],
    onnx_model: Callable[[Graph], Model],
    tmp_path: Path,
) -> None:
    graph = random_graph(seed)
    whole = onnx_model(graph)
    outputs = {point: graph.tensors[graph.nodes[point - 1].output].shape for point in split_points(graph)}
    point = max(point for point, shape in outputs.items() if min(shape[1:3]) >= 3)
    model = split(graph, PatchPlan(point, 2, 1 + seed % 3))
    write_onnx(join(model), tmp_path / "split.onnx")
    # Weights stand in several tiles, which onnxruntime's precise mode for x86 takes only if they are not shared.
    resident = session(tmp_path / "split.onnx", x64quantprecision="1")
    parts = {}
    for name, part in {**model.tile_graphs, "tail": model.tail}.items():
        write_onnx(part, tmp_path / f"{name}.onnx")
        parts[name] = session(tmp_path / f"{name}.onnx")
    for image in random_images(graph, seed):
        stage = np.empty(model.tail.tensors[model.tail.inputs[0]].shape, np.int8)
        for tile in model.tiles:
            (top, bottom), (left, right) = tile.window.rows, tile.window.columns
            target = stage[:, slice(*tile.output.rows), slice(*tile.output.columns)]
            target[:] = parts[tile.graph](image[:, top:bottom, left:right])
        assert steps(parts["tail"](stage), whole(image)) == 0
        assert steps(resident(image), whole(image)) == 0


@pytest.mark.parametrize("change", [Relu(), Quantize()], ids=["relu", "quantize"])
@pytest.mark.parametrize("before", [0, 1, 2], ids=["of the image", "of a layer", "twice"])
def test_a_file_that_ends_beside_a_change_of_scales_computes_the_same(
    change: Operator,
    before: int,
    random_images: Callable[..., list[np.ndarray]],
    onnx_model: Callable[[Graph], Model],
    builtin_ref: Callable[..., Model],
    tmp_path: Path,
) -> None:
    """onnxruntime merges neighbouring pairs of QuantizeLinear and DequantizeLinear, which a split would part."""
    builder = GraphBuilder()
    pads, wide = Pads(1, 1, 1, 1), Quantization((0.11,), (-100,))
    convolution = weights((6, 3, 3, 6), 0)
    image = builder.tensor(Tensor("image", IMAGE, "int8", INPUT))
    x = image
    for _ in range(min(before, 1)):
        own = map(builder.tensor, convolution)
        x = builder.node(Conv2D((3, 3), pads=pads), [x, *own], "before", "int8", OUTPUT)
    x = builder.node(change, [x], "changed", "int8", wide)
    if before == 2:
        x = builder.node(Quantize(), [x], "again", "int8", INPUT)
    scales = builder.tensors[x].quantization
    assert scales is not None
    filters, bias = convolution
    assert filters.quantization is not None
    products = tuple(float(np.float32(scales.scale) * np.float32(scale)) for scale in filters.quantization.scales)
    own = map(builder.tensor, (filters, replace(bias, quantization=Quantization(products, (0,) * 6))))
    x = builder.node(Conv2D((3, 3), pads=pads), [x, *own], "after", "int8", Quantization((0.3,), (0,)))
    graph = builder.build([image], [x])
    whole, stages = onnx_model(graph), range(1, len(graph.nodes))
    for point in stages:
        model = split(graph, PatchPlan(point, 1, 1))
        stage, tail = onnx_model(model.stage), onnx_model(model.tail)
        for codes in random_images(graph):
            assert steps(tail(stage(codes)), whole(codes)) == 0
    exact = reference(graph, tmp_path, builtin_ref)
    assert all(steps(whole(codes), exact(codes)) <= 1 + before for codes in random_images(graph))


def test_resnet8_sees_what_the_reference_sees(
    data_folder: Path, onnx_model: Callable[[Graph], Model], builtin_ref: Callable[..., Model]
) -> None:
    file = data_folder / "resnet8_cifar10_int8.tflite"
    ours, theirs = onnx_model(read_tflite(file)), builtin_ref(file)
    pictures = sorted((data_folder / "cifar10").glob("*.jpg"))
    assert len(pictures) == 6
    for picture in pictures:
        image = (np.asarray(Image.open(picture), np.int16) - 128).astype(np.int8)[None]
        assert ours(image).argmax() == theirs(image).argmax()


def test_visual_wake_words_agree_with_the_reference(
    data_folder: Path,
    onnx_model: Callable[[Graph], Model],
    builtin_ref: Callable[..., Model],
    random_images: Callable[..., list[np.ndarray]],
) -> None:
    file = data_folder / "vww_96_int8.tflite"
    graph = read_tflite(file)
    ours, theirs = onnx_model(graph), builtin_ref(file)
    for image in random_images(graph, count=6):
        assert ours(image).argmax() == theirs(image).argmax()


def test_the_file_holds_int8_weights_and_standard_operators(
    tmp_path: Path, random_graph: Callable[[int], Graph]
) -> None:
    graph = random_graph(0)
    write_onnx(graph, tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    real = [entry for entry in model.graph.initializer if entry.data_type == onnx.TensorProto.FLOAT]
    assert all(len(entry.dims) <= 1 for entry in real), "only scales are real numbers"
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    assert len(inferred.graph.value_info) >= len(graph.nodes)


def test_the_boundary_keeps_names_shapes_and_types(tmp_path: Path) -> None:
    write_onnx(one_node(Conv2D((3, 3)), *CONV), tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    for found, name, shape in ((graph.input[0], "image", IMAGE), (graph.output[0], "output", (1, 7, 9, 8))):
        assert found.name == name
        assert tuple(dim.dim_value for dim in found.type.tensor_type.shape.dim) == shape
        assert found.type.tensor_type.elem_type == onnx.TensorProto.INT8


def test_names_may_be_missing_or_repeat(onnx_model: Callable[[Graph], Model]) -> None:
    builder = GraphBuilder()
    image = builder.tensor(Tensor("", IMAGE, "int8", INPUT))
    pads = Pads(1, 1, 1, 1)
    first = builder.node(MaxPool2D((3, 3), pads=pads), [image], "same", "int8", INPUT)
    second = builder.node(MaxPool2D((3, 3), pads=pads), [first], "same", "int8", INPUT)
    image_in = np.random.default_rng(0).integers(-128, 128, IMAGE, np.int8)
    once = onnx_model(one_node(MaxPool2D((5, 5), pads=Pads(2, 2, 2, 2)), result=INPUT))(image_in)
    np.testing.assert_array_equal(onnx_model(builder.build([image], [second]))(image_in), once)


def test_a_graph_of_no_nodes_hands_its_input_on(onnx_model: Callable[[Graph], Model]) -> None:
    image = np.random.default_rng(0).integers(-128, 128, IMAGE, np.int8)
    graph = Graph((Tensor("image", IMAGE, "int8", INPUT),), (), (0,), (0,))
    np.testing.assert_array_equal(onnx_model(graph)(image), image)


def computed_weights() -> Graph:
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", (1, 6), "int8", INPUT))
    return builder.build([image], [builder.node(FullyConnected(), [image, image], "output", "int8", OUTPUT)])


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (one_node(Relu(), result=None), r"tensor output \(int8\) has no scale and zero point"),
        (one_node(Relu(), source=None, result=None, dtypes=("float32", "float32")), "is float32 with a fused RELU"),
        (computed_weights(), "the weights image are computed in the model"),
    ],
)
def test_what_cannot_be_written_is_named(graph: Graph, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        write_onnx(graph, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_an_unknown_operator_is_named(tmp_path: Path) -> None:
    graph: Any = one_node(Relu())
    graph = replace(graph, nodes=(replace(graph.nodes[0], operator=type("Sine", (Operator,), {"name": "SIN"})()),))
    with pytest.raises(UnsupportedModel, match="SIN cannot be written to ONNX"):
        write_onnx(graph, tmp_path / "model.onnx")
