"""The reader against LiteRT's own reading of the same files, and against what the files compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.exporters.vision.graph import Graph, Tensor
from edgepipe.exporters.vision.operators import NO_PADS, Activation, Pads, Reshape, Window
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.write_tflite import write_tflite

MODELS = ("vww_96_int8", "resnet8_cifar10_int8")


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, data_folder: Path) -> Path:
    return data_folder / f"{request.param}.tflite"


def litert(path: Path) -> Any:
    """LiteRT with the file's own operators: no delegate that replaces them."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    return interpreter.Interpreter(
        str(path), experimental_op_resolver_type=interpreter.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    )


def assert_same_tensor(tensor: Tensor, details: dict[str, Any], interpreter: Any) -> None:
    assert tensor.name == details["name"]
    assert tensor.shape == tuple(details["shape"])
    assert np.dtype(tensor.dtype) == details["dtype"]
    found, expected = tensor.quantization, details["quantization_parameters"]
    assert found is not None
    np.testing.assert_array_equal(np.float32(found.scales), expected["scales"])
    np.testing.assert_array_equal(found.zero_points, expected["zero_points"])
    if len(found.scales) > 1:
        assert found.axis == expected["quantized_dimension"]
    if tensor.data is not None:
        np.testing.assert_array_equal(tensor.data, interpreter.get_tensor(details["index"]))


def test_operators_and_tensors_are_those_that_litert_sees(model: Path) -> None:
    interpreter, graph = litert(model), read_tflite(model)
    interpreter.allocate_tensors()
    details = {tensor["index"]: tensor for tensor in interpreter.get_tensor_details()}
    operators = interpreter._get_ops_details()
    assert [node.operator.name for node in graph.nodes] == [operator["op_name"] for operator in operators]
    for node, operator in zip(graph.nodes, operators, strict=True):
        inputs = operator["inputs"][: len(node.inputs)]
        for ours, theirs in zip((*node.inputs, node.output), (*inputs, *operator["outputs"]), strict=True):
            assert_same_tensor(graph.tensors[ours], details[theirs], interpreter)
    for ours, theirs in (
        (graph.inputs, interpreter.get_input_details()),
        (graph.outputs, interpreter.get_output_details()),
    ):
        assert [graph.tensors[index].name for index in ours] == [tensor["name"] for tensor in theirs]


def test_constants_are_those_of_the_file(data_folder: Path) -> None:
    # Weights of MLPerf Tiny's models as published: 1x1 and 3x3 filters, biases, dense layer.
    graph = read_tflite(data_folder / "resnet8_cifar10_int8.tflite")
    channels = [
        (3, 16, 3),
        (16, 16, 3),
        (16, 16, 3),
        (16, 32, 3),
        (32, 32, 3),
        (16, 32, 1),
        (32, 64, 3),
        (64, 64, 3),
        (32, 64, 1),
    ]
    weights = sum(inputs * outputs * kernel**2 for inputs, outputs, kernel in channels) + 64 * 10
    biases = sum(outputs for _, outputs, _ in channels) + 10
    assert graph.constant_bytes == weights + 4 * biases
    # Multiply-accumulates: the image is 32, 16 and 8 pixels wide.
    widths = [32, 32, 32, 16, 16, 16, 8, 8, 8]
    macs = [i * o * k**2 * width**2 for (i, o, k), width in zip(channels, widths, strict=True)]
    assert graph.macs == sum(macs) + 640


def test_padding_is_spelled_out_in_rows_and_columns(data_folder: Path) -> None:
    graph = read_tflite(data_folder / "vww_96_int8.tflite")
    windows = [node.operator for node in graph.nodes if isinstance(node.operator, Window)]
    first, second, pointwise, pool = windows[0], windows[1], windows[2], windows[-1]
    # TFLite pads 96 rows for a 3x3 window of stride 2 by one row below, none above.
    assert (first.kernel, first.stride, first.pads) == ((3, 3), (2, 2), Pads(0, 0, 1, 1))
    assert (second.kernel, second.stride, second.pads) == ((3, 3), (1, 1), Pads(1, 1, 1, 1))
    assert (pointwise.kernel, pointwise.pads) == ((1, 1), NO_PADS)
    assert (pool.kernel, pool.stride, pool.pads) == ((3, 3), (3, 3), NO_PADS)
    assert {window.activation for window in windows[:-1]} == {Activation.RELU}


def test_written_again_it_computes_the_same(
    model: Path,
    tmp_path: Path,
    tflm: Callable[[Path], Callable[[np.ndarray], np.ndarray]],
    random_images: Callable[..., list[np.ndarray]],
) -> None:
    graph = read_tflite(model)
    again = tmp_path / "again.tflite"
    write_tflite({"main": graph}, again)
    original, rewritten = tflm(model), tflm(again)
    for image in random_images(graph, count=3):
        np.testing.assert_array_equal(rewritten(image), original(image))


@pytest.mark.parametrize("seed", range(12))
def test_what_was_written_is_read_back(seed: int, tmp_path: Path, random_graph: Callable[[int], Graph]) -> None:
    graph = random_graph(seed)
    write_tflite({"main": graph}, tmp_path / "model.tflite")
    read = read_tflite(tmp_path / "model.tflite")
    assert read.macs == graph.macs
    back = {read.tensors[node.output].name: node for node in read.nodes}
    for node in graph.nodes:
        if graph.tensors[node.output].name not in back:
            assert isinstance(node.operator, Reshape)
            assert node.operator.shape == graph.tensors[node.inputs[0]].shape
            continue
        again = back[graph.tensors[node.output].name]
        if again.operator != node.operator:
            # Padding that TFLite cannot say was written as operators of its own.
            assert isinstance(node.operator, Window)
            assert node.operator.pads != NO_PADS
            continue
        for ours, theirs in zip(node.inputs, again.inputs, strict=True):
            before, after = graph.tensors[ours], read.tensors[theirs]
            assert (before.data is None) == (after.data is None)
            if before.data is not None and after.data is not None:
                assert before.quantization == after.quantization
                np.testing.assert_array_equal(before.data, after.data)
