"""Whole files: what the engines make of them, what is stored once, what a microcontroller needs of the layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.operators import Conv2D, FullyConnected, Pads
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.write_tflite import BUFFER_ALIGNMENT, write_tflite

REAL_MODELS = ("vww_96_int8.tflite", "resnet8_cifar10_int8.tflite")


@pytest.fixture
def schema() -> ModuleType:
    """TFLite's schema, as Google generates it."""
    return pytest.importorskip("ai_edge_litert.schema_py_generated")


def up_to_tail(graph: Graph) -> Graph:
    """The graph before its first FULLY_CONNECTED, which LiteRT rounds otherwise."""
    names = [node.operator.name for node in graph.nodes]
    nodes = graph.nodes[: names.index("FULLY_CONNECTED")]
    return Graph(graph.tensors, nodes, graph.inputs, (nodes[-1].output,))


@pytest.mark.parametrize("seed", range(40))
def test_engines_agree_on_random_networks(
    seed: int, random_graph: Any, random_images: Any, tflm: Any, builtin_ref: Any, tmp_path: Path
) -> None:
    """TFLite Micro and LiteRT read the file the same way: to the last bit before the tail.

    A step of the FULLY_CONNECTED in it is up to three after the SOFTMAX.
    """
    graph = random_graph(seed)
    graph.check()
    graphs = {"whole": graph, "local": up_to_tail(graph)}
    write_tflite(graphs, tmp_path / "both.tflite")
    for name, each in graphs.items():
        write_tflite({name: each}, tmp_path / name)
    whole, local = (tflm(tmp_path / name) for name in graphs)
    other, other_local = (builtin_ref(tmp_path / "both.tflite", name) for name in graphs)
    answers = set()
    for image in random_images(graph):
        np.testing.assert_array_equal(local(image), other_local(image))
        assert np.abs(whole(image).astype(int) - other(image)).max() <= 3
        answers.add(local(image).tobytes())
    assert len(answers) > 1, "a network that saturates shows nothing"


@pytest.mark.parametrize("name", REAL_MODELS)
def test_real_models_keep_their_answers(name: str, data_folder: Path, tflm: Any, tmp_path: Path) -> None:
    """Read and written again, a model gives the same bytes as the file it came from."""
    graph = read_tflite(data_folder / name)
    write_tflite({"main": graph}, tmp_path / name)
    original, written = tflm(data_folder / name), tflm(tmp_path / name)
    generator = np.random.default_rng(0)
    shape = graph.tensors[graph.inputs[0]].shape
    for _ in range(5):
        image = generator.integers(-128, 128, shape, np.int8)
        np.testing.assert_array_equal(written(image), original(image))


@pytest.mark.parametrize("name", REAL_MODELS)
def test_real_models_keep_their_versions(name: str, data_folder: Path, schema: ModuleType, tmp_path: Path) -> None:
    """Operators have the versions that TensorFlow's converter gave them."""
    write_tflite({"main": read_tflite(data_folder / name)}, tmp_path / name)

    def versions(path: Path) -> set[tuple[int, int]]:
        codes = schema.ModelT.InitFromPackedBuf(path.read_bytes()).operatorCodes
        return {(max(code.builtinCode, code.deprecatedBuiltinCode), code.version) for code in codes}

    # The converter also lists the operators that it took off at the boundary.
    assert versions(tmp_path / name) <= versions(data_folder / name)


def noisy_graph(rows: int) -> Graph:
    """A padded convolution and a classifier with 40 kB of weights, on an image of so many rows."""
    generator = np.random.default_rng(3)
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", (1, rows, 8, 16), "int8", Quantization((0.1,), (3,))))
    scales = tuple(float(scale) for scale in np.float32(generator.uniform(0.01, 0.02, 16)))
    weights = generator.integers(-128, 128, (16, 3, 3, 16), np.int8)
    filters = builder.tensor(Tensor("filters", weights.shape, "int8", Quantization(scales, (0,) * 16, 0), weights))
    bias = generator.integers(-99, 99, 16, np.int32)
    bias_scales = tuple(float(np.float32(0.1) * np.float32(scale)) for scale in scales)
    biases = builder.tensor(Tensor("bias", (16,), "int32", Quantization(bias_scales, (0,) * 16), bias))
    local = builder.node(
        Conv2D((3, 3), (8, 1), Pads(1, 1, 0, 1)), (image, filters, biases), "local", "int8", Quantization((0.3,), (-1,))
    )
    matrix = generator.integers(-128, 128, (300, 128), np.int8)
    dense = builder.tensor(Tensor("dense", matrix.shape, "int8", Quantization((0.01,), (0,)), matrix))
    output = builder.node(FullyConnected(), (local, dense), "output", "int8", Quantization((0.5,), (0,)))
    return builder.build((image,), (output,))


def test_weights_are_stored_once(tmp_path: Path) -> None:
    """Twelve graphs with the same weights, each in arrays of its own: every byte string is in the file once."""
    graphs = {f"rows_{rows}": noisy_graph(rows) for rows in range(3, 9)}
    graphs |= {f"again_{name}": noisy_graph(graph.tensors[0].shape[1]) for name, graph in graphs.items()}
    write_tflite(graphs, tmp_path / "many.tflite")
    content = (tmp_path / "many.tflite").read_bytes()
    first = next(iter(graphs.values()))
    for tensor in first.tensors:
        if tensor.data is not None:
            assert content.count(tensor.data.tobytes()) == 1
        if tensor.quantization is not None and len(tensor.quantization.scales) > 1:
            assert content.count(np.array(tensor.quantization.scales, np.float32).tobytes()) == 1
    assert len(content) < first.constant_bytes + 12 * 2048


def test_constants_are_aligned(tmp_path: Path) -> None:
    """A Cortex-M0 faults on an int32 that is not at a multiple of 4; SIMD kernels like 16."""
    graph = noisy_graph(5)
    write_tflite({"main": graph}, tmp_path / "model.tflite")
    content = (tmp_path / "model.tflite").read_bytes()
    assert len(content) % BUFFER_ALIGNMENT == 0
    for tensor in graph.tensors:
        if tensor.data is not None:
            assert content.index(tensor.data.tobytes()) % BUFFER_ALIGNMENT == 0, tensor.name


def test_signatures_run_their_own_graphs(builtin_ref: Any, tflm: Any, tmp_path: Path) -> None:
    """Every entry answers as it does in a file of its own; TFLite Micro runs the first."""
    graphs = {f"rows_{rows}": noisy_graph(rows) for rows in (4, 7, 8)}
    write_tflite(graphs, tmp_path / "many.tflite")
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    signatures = litert.Interpreter(str(tmp_path / "many.tflite")).get_signature_list()
    assert signatures == {name: {"inputs": ["args_0"], "outputs": ["output_0"]} for name in graphs}
    generator = np.random.default_rng(1)
    for position, (name, graph) in enumerate(graphs.items()):
        write_tflite({"main": graph}, tmp_path / "alone.tflite")
        image = generator.integers(-128, 128, graph.tensors[0].shape, np.int8)
        expected = builtin_ref(tmp_path / "alone.tflite")(image)
        np.testing.assert_array_equal(builtin_ref(tmp_path / "many.tflite", name)(image), expected)
        if position == 0:
            alone = tflm(tmp_path / "alone.tflite")
            np.testing.assert_array_equal(tflm(tmp_path / "many.tflite")(image), alone(image))


def test_litert_sees_the_tensors(tmp_path: Path) -> None:
    """Names, shapes, types, scales and zero points, as LiteRT reports them."""
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    graph = noisy_graph(5)
    write_tflite({"main": graph}, tmp_path / "model.tflite")
    interpreter = litert.Interpreter(str(tmp_path / "model.tflite"))
    seen = {details["name"]: details for details in interpreter.get_tensor_details()}
    for tensor in graph.tensors:
        details = seen[tensor.name]
        assert tuple(details["shape"]) == tensor.shape
        assert np.dtype(details["dtype"]) == tensor.dtype
        assert tensor.quantization is not None
        parameters = details["quantization_parameters"]
        np.testing.assert_array_equal(parameters["scales"], np.float32(tensor.quantization.scales))
        np.testing.assert_array_equal(parameters["zero_points"], tensor.quantization.zero_points)
        assert parameters["quantized_dimension"] == tensor.quantization.axis


def test_same_graph_same_bytes(random_graph: Callable[[int], Graph], tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_tflite({"main": random_graph(5)}, tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_written_graphs_read_back(random_graph: Callable[[int], Graph], tmp_path: Path) -> None:
    """Where no padding had to be lowered, reading gives the graph that was written."""
    graph = noisy_graph(8)
    nodes = [(node.operator, node.inputs) for node in graph.nodes]
    write_tflite({"main": graph}, tmp_path / "model.tflite")
    found = read_tflite(tmp_path / "model.tflite")
    assert found.macs == graph.macs
    assert found.constant_bytes - graph.constant_bytes <= 64
    assert [type(operator) for operator, _ in nodes] == [
        type(node.operator) for node in found.nodes if node.operator.name != "PAD"
    ]
