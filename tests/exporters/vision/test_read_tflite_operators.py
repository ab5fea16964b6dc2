"""Every operator that the reader takes, in the forms that converters write, and what it refuses of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import UnsupportedModel
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
from edgepipe.exporters.vision.read_tflite import graph_from_tflite
from edgepipe.exporters.vision.write_tflite import write_tflite

flatbuffers = pytest.importorskip("flatbuffers")
schema = pytest.importorskip("ai_edge_litert.schema_py_generated")

SAME, VALID = 0, 1
RELU6, TANH = 3, 4


def value(*shape: int, dtype: str = "int8", scale: Any = 0.05, zero_point: int = 3, axis: int = 0) -> Any:
    """A tensor that is computed, or given."""
    scales = np.atleast_1d(np.float32(scale)) if scale else np.empty(0, np.float32)
    quantization = schema.QuantizationParametersT(
        scale=scales, zeroPoint=np.full(scales.size, zero_point, np.int64), quantizedDimension=axis
    )
    kind = getattr(schema.TensorType, dtype.upper())
    return schema.TensorT(name="value", shape=list(shape), type=kind, quantization=quantization, buffer=0)


def weights(*shape: int, dtype: str = "int8", **quantization: Any) -> tuple[Any, np.ndarray]:
    """A tensor that is stored, of noise."""
    data = np.random.default_rng(0).integers(-99, 99, shape).astype(dtype)
    return value(*shape, dtype=dtype, **{"zero_point": 0, **quantization}), data


def numbers(*values: Any, dtype: str = "int32") -> tuple[Any, np.ndarray]:
    """An operand."""
    data = np.array(values, dtype)
    return value(*data.shape, dtype=dtype, scale=None), data


def bias(channels: int, scale: Any) -> tuple[Any, np.ndarray]:
    return weights(channels, dtype="int32", scale=scale)


def model(name: str, inputs: list[Any], output: Any, options: Any = None) -> bytes:
    """A file of one operator; its inputs that are stored come with their data, None is left out."""
    operator = schema.OperatorT(opcodeIndex=0, inputs=[], outputs=[0], builtinOptions=options)
    if options is not None:
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T"))
    graph = schema.SubGraphT(tensors=[output], inputs=[], outputs=[0], operators=[operator])
    buffers = [schema.BufferT()]
    for given in inputs:
        tensor, data = given if isinstance(given, tuple) else (given, None)
        operator.inputs.append(-1 if tensor is None else len(graph.tensors))
        if tensor is None:
            continue
        if data is None:
            graph.inputs.append(len(graph.tensors))
        else:
            tensor.buffer = len(buffers)
            buffers.append(schema.BufferT(data=data.tobytes()))
        graph.tensors.append(tensor)
    number = getattr(schema.BuiltinOperator, name)
    code = schema.OperatorCodeT(deprecatedBuiltinCode=min(number, 127), builtinCode=number, version=1)
    builder = flatbuffers.Builder(0)
    file = schema.ModelT(version=3, operatorCodes=[code], subgraphs=[graph], buffers=buffers)
    builder.Finish(file.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def conv(**options: Any) -> Any:
    return schema.Conv2DOptionsT(**{"padding": SAME, "strideH": 1, "strideW": 1, **options})


def pool(padding: int, rows: int, columns: int, stride: int) -> Any:
    return schema.Pool2DOptionsT(
        padding=padding, filterHeight=rows, filterWidth=columns, strideH=stride, strideW=stride
    )


IMAGE = (1, 7, 6, 4)
ONE_256TH = {"scale": 1 / 256, "zero_point": -128}
SCALES = [0.01, 0.02, 0.03, 0.04]
CONV = [value(*IMAGE), weights(4, 3, 3, 4, scale=0.02), bias(4, 0.001)]

TAKEN: dict[str, tuple[bytes, Operator]] = {
    "convolution": (
        model("CONV_2D", CONV, value(1, 4, 3, 4), conv(strideH=2, strideW=2, fusedActivationFunction=RELU6)),
        Conv2D((3, 3), (2, 2), Pads(1, 0, 1, 1), Activation.RELU6),
    ),
    "convolution, a scale per channel, dilated": (
        model(
            "CONV_2D",
            [value(*IMAGE), weights(4, 3, 3, 4, scale=SCALES), bias(4, [0.05 * scale for scale in SCALES])],
            value(1, 3, 6, 4, scale=0.3),
            conv(dilationHFactor=2, strideH=3),
        ),
        Conv2D((3, 3), (3, 1), Pads(2, 1, 2, 1), dilation=(2, 1)),
    ),
    "convolution without a bias": (
        model("CONV_2D", CONV[:2], value(*IMAGE), conv()),
        Conv2D((3, 3), pads=Pads(1, 1, 1, 1)),
    ),
    "depthwise, two channels from each": (
        model(
            "DEPTHWISE_CONV_2D",
            [value(*IMAGE), weights(1, 3, 1, 8, scale=SCALES * 2, axis=3)],
            value(1, 5, 6, 8, scale=0.2),
            schema.DepthwiseConv2DOptionsT(VALID, 1, 1, depthMultiplier=2),
        ),
        DepthwiseConv2D((3, 1)),
    ),
    "dense": (
        model(
            "FULLY_CONNECTED",
            [value(1, 2, 6), weights(4, 6, scale=SCALES), bias(4, [0.05 * scale for scale in SCALES])],
            value(1, 2, 4, scale=0.2),
            schema.FullyConnectedOptionsT(keepNumDims=True),
        ),
        FullyConnected(keep_dims=True),
    ),
    "average pool": (
        model("AVERAGE_POOL_2D", [value(*IMAGE)], value(1, 4, 3, 4), pool(SAME, 3, 3, 2)),
        AveragePool2D((3, 3), (2, 2), Pads(1, 0, 1, 1)),
    ),
    "max pool": (
        model("MAX_POOL_2D", [value(*IMAGE)], value(1, 3, 3, 4), pool(VALID, 2, 2, 2)),
        MaxPool2D((2, 2), (2, 2)),
    ),
    "add": (model("ADD", [value(*IMAGE), value(*IMAGE, scale=0.02)], value(*IMAGE), schema.AddOptionsT()), Add()),
    "multiply by a stored row": (
        model("MUL", [value(*IMAGE), weights(1, 1, 1, 4)], value(*IMAGE), schema.MulOptionsT(RELU6)),
        Mul(Activation.RELU6),
    ),
    "join along the last axis": (
        model("CONCATENATION", [value(*IMAGE), value(1, 7, 6, 2)], value(1, 7, 6, 6), schema.ConcatenationOptionsT(-1)),
        Concatenation(3),
    ),
    "mean": (model("MEAN", [value(*IMAGE), numbers(-2, 1)], value(1, 4), schema.ReducerOptionsT()), Mean((1, 2))),
    "mean that keeps its axis": (
        model(
            "MEAN", [value(*IMAGE), numbers(2)], value(1, 7, 1, 4, scale=0.02), schema.ReducerOptionsT(keepDims=True)
        ),
        Mean((2,), keep_dims=True),
    ),
    "pad": (
        model(
            "PAD", [value(*IMAGE), numbers((0, 0), (1, 2), (0, 3), (0, 0))], value(1, 10, 9, 4), schema.PadOptionsT()
        ),
        Pad(((0, 0), (1, 2), (0, 3), (0, 0))),
    ),
    "pad with a value": (
        model(
            "PADV2",
            [value(*IMAGE), numbers((0, 0), (1, 0), (0, 1), (0, 0)), (value(1), np.int8([-77]))],
            value(1, 8, 7, 4),
        ),
        Pad(((0, 0), (1, 0), (0, 1), (0, 0)), -77),
    ),
    "reshape with a size left open": (
        model("RESHAPE", [value(*IMAGE), numbers(1, -1, 4)], value(1, 42, 4)),
        Reshape((1, 42, 4)),
    ),
    "reshape by its options": (
        model("RESHAPE", [value(*IMAGE)], value(1, 168), schema.ReshapeOptionsT([1, 168])),
        Reshape((1, 168)),
    ),
    "squeeze": (
        model("SQUEEZE", [value(1, 1, 1, 4)], value(1, 4), schema.SqueezeOptionsT([-3, 2])),
        Reshape((1, 4)),
    ),
    "squeeze whatever is 1": (
        model("SQUEEZE", [value(1, 1, 5, 4)], value(5, 4), schema.SqueezeOptionsT()),
        Reshape((5, 4)),
    ),
    "transpose that moves nothing": (
        model("TRANSPOSE", [value(1, 5, 1, 4), numbers(0, 2, 1, 3)], value(1, 1, 5, 4), schema.TransposeOptionsT()),
        Reshape((1, 1, 5, 4)),
    ),
    "softmax": (model("SOFTMAX", [value(1, 9)], value(1, 9, **ONE_256TH), schema.SoftmaxOptionsT(2.0)), Softmax(2.0)),
    "sigmoid": (model("LOGISTIC", [value(*IMAGE)], value(*IMAGE, **ONE_256TH)), Logistic()),
    "relu": (model("RELU", [value(*IMAGE)], value(*IMAGE, scale=0.03)), Relu()),
    "relu6": (model("RELU6", [value(*IMAGE)], value(*IMAGE)), Relu6()),
    "hard swish": (model("HARD_SWISH", [value(*IMAGE)], value(*IMAGE)), HardSwish()),
    "quantise uint8": (model("QUANTIZE", [value(*IMAGE, dtype="uint8")], value(*IMAGE, zero_point=-125)), Quantize()),
    "quantise float": (model("QUANTIZE", [value(*IMAGE, dtype="float32", scale=None)], value(*IMAGE)), Quantize()),
    "dequantise": (model("DEQUANTIZE", [value(*IMAGE)], value(*IMAGE, dtype="float32", scale=None)), Dequantize()),
    "resize": (
        model(
            "RESIZE_NEAREST_NEIGHBOR",
            [value(*IMAGE), numbers(11, 9)],
            value(1, 11, 9, 4),
            schema.ResizeNearestNeighborOptionsT(halfPixelCenters=True),
        ),
        ResizeNearestNeighbor((11, 9), half_pixel_centers=True),
    ),
    "slice": (
        model(
            "STRIDED_SLICE",
            [value(*IMAGE), numbers(0, 2, -4, 1), numbers(1, -1, 9, 3), numbers(1, 1, 1, 1)],
            value(1, 4, 4, 2),
            schema.StridedSliceOptionsT(beginMask=1),
        ),
        StridedSlice((0, 2, 2, 1), (1, 6, 6, 3)),
    ),
}


def run(path: Path, images: list[np.ndarray]) -> np.ndarray:
    """What TFLite Micro's reference kernels make of it."""
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    interpreter = runtime.Interpreter.from_file(str(path), arena_size=1 << 20)
    for position, image in enumerate(images):
        interpreter.set_input(image, position)
    interpreter.invoke()
    return np.array(interpreter.get_output(0))


@pytest.mark.parametrize("case", TAKEN)
def test_operator_is_read_and_computes_what_the_file_does(case: str, tmp_path: Path) -> None:
    content, operator = TAKEN[case]
    graph = graph_from_tflite(content)
    (node,) = graph.nodes
    assert node.operator == operator
    (tmp_path / "given.tflite").write_bytes(content)
    write_tflite({"main": graph}, tmp_path / "again.tflite")
    generator = np.random.default_rng(1)
    for _ in range(3):
        images = []
        for index in graph.inputs:
            shape, dtype = graph.tensors[index].shape, graph.tensors[index].dtype
            codes = generator.integers(0 if dtype == "uint8" else -128, 256 if dtype == "uint8" else 128, shape)
            images.append((codes / 20 if dtype == "float32" else codes).astype(dtype))
        given, again = run(tmp_path / "given.tflite", images), run(tmp_path / "again.tflite", images)
        np.testing.assert_array_equal(again, given)
        assert given.size == 1 or given.min() < given.max()


def test_a_bias_left_out_by_number_is_no_input() -> None:
    graph = graph_from_tflite(model("CONV_2D", [*CONV[:2], (None, None)], value(*IMAGE), conv()))
    assert len(graph.nodes[0].inputs) == 2


def test_paddings_of_64_bits_are_read() -> None:
    paddings = numbers((0, 0), (1, 0), (0, 1), (0, 0), dtype="int64")
    graph = graph_from_tflite(model("PAD", [value(*IMAGE), paddings], value(1, 8, 7, 4), schema.PadOptionsT()))
    assert graph.nodes[0].operator == Pad(((0, 0), (1, 0), (0, 1), (0, 0)))


def test_what_changes_nothing_or_only_says_a_shape_vanishes() -> None:
    """The chain in which Keras flattens an image whose batch was open, behind a transpose that keeps the order."""
    file = schema.ModelT.InitFromPackedBuf(TAKEN["relu"][0])
    graph = file.subgraphs[0]
    order, data = numbers(0, 1, 2, 3)
    order.buffer = len(file.buffers)
    file.buffers.append(schema.BufferT(data=data.tobytes()))
    # Tensors: 0 relu, 1 image, 2 transposed, 3 order, 4 shape, 5 flat.
    graph.tensors += [value(*IMAGE), order, value(4, dtype="int32", scale=None), value(1, 168, scale=0.03)]
    for name in ("TRANSPOSE", "SHAPE", "RESHAPE"):
        number = getattr(schema.BuiltinOperator, name)
        file.operatorCodes.append(schema.OperatorCodeT(deprecatedBuiltinCode=number, builtinCode=number, version=1))
    graph.operators = [
        schema.OperatorT(opcodeIndex=1, inputs=[1, 3], outputs=[2]),
        schema.OperatorT(opcodeIndex=0, inputs=[2], outputs=[0]),
        schema.OperatorT(opcodeIndex=2, inputs=[0], outputs=[4]),
        schema.OperatorT(opcodeIndex=3, inputs=[0, 4], outputs=[5]),
    ]
    graph.outputs = [5]
    builder = flatbuffers.Builder(0)
    builder.Finish(file.Pack(builder), b"TFL3")
    read = graph_from_tflite(bytes(builder.Output()))
    assert [node.operator for node in read.nodes] == [Relu(), Reshape((1, 168))]
    assert read.nodes[0].inputs == read.inputs
    assert len(read.tensors) == 3


REFUSED: dict[str, tuple[bytes, str]] = {
    "an operator that is not supported": (model("CUMSUM", [value(*IMAGE)], value(*IMAGE)), "CUMSUM.*not supported"),
    "a transpose that moves data": (
        model("TRANSPOSE", [value(1, 5, 6, 4), numbers(0, 3, 1, 2)], value(1, 4, 5, 6)),
        r"TRANSPOSE.*moves data of shape \(1, 5, 6, 4\)",
    ),
    "a float model": (
        model("RELU", [value(*IMAGE, dtype="float32", scale=None)], value(*IMAGE, dtype="float32", scale=None)),
        "RELU.*float32, expected int8: quantise the model",
    ),
    "weights in int8, all else in float": (
        model("CONV_2D", [value(*IMAGE, dtype="float32", scale=None), *CONV[1:]], value(*IMAGE), conv()),
        "CONV_2D.*float32, expected int8",
    ),
    "uint8 all through": (
        model("MAX_POOL_2D", [value(*IMAGE, dtype="uint8")], value(1, 3, 3, 4, dtype="uint8"), pool(VALID, 2, 2, 2)),
        "MAX_POOL_2D.*uint8, expected int8: convert the model anew",
    ),
    "16-bit activations": (model("RELU", [value(*IMAGE, dtype="int16")], value(*IMAGE)), "is INT16: expected INT8"),
    "a fused tanh": (model("CONV_2D", CONV, value(*IMAGE), conv(fusedActivationFunction=TANH)), "fused activation 4"),
    "no options": (model("CONV_2D", CONV, value(*IMAGE)), "CONV_2D.*options are missing"),
    "a stride of zero": (
        model("CONV_2D", CONV, value(*IMAGE), conv(strideH=0)),
        r"\(3, 3, 0, 1, 1, 1\): expected 1 to",
    ),
    "a wrong shape": (model("CONV_2D", CONV, value(1, 7, 7, 4), conv()), r"\(1, 7, 7, 4\): expected \(1, 7, 6, 4\)"),
    "too many inputs": (model("RELU", [value(*IMAGE), value(*IMAGE)], value(*IMAGE)), "2 inputs: expected at most 1"),
    "too few inputs": (model("ADD", [value(*IMAGE)], value(*IMAGE), schema.AddOptionsT()), "1 inputs"),
    "weights that are computed": (
        model("CONV_2D", [value(*IMAGE), value(1, 3, 3, 4)], value(1, 7, 6, 1), conv()),
        "weights 'value' are computed, expected them stored",
    ),
    "scales along another axis": (
        model("CONV_2D", [value(*IMAGE), weights(4, 3, 3, 4, scale=SCALES, axis=3)], value(*IMAGE), conv()),
        "scales along axis 3, expected 0",
    ),
    "as many scales as there are not channels": (
        model("CONV_2D", [value(*IMAGE), weights(4, 3, 3, 4, scale=SCALES[:3])], value(*IMAGE), conv()),
        "3 scales along axis 0",
    ),
    "weights that are not symmetric": (
        model("CONV_2D", [value(*IMAGE), weights(4, 3, 3, 4, zero_point=2)], value(*IMAGE), conv()),
        "zero points other than 0",
    ),
    "a bias of another scale": (
        model("CONV_2D", [*CONV[:2], bias(4, 0.002)], value(*IMAGE), conv()),
        "scale 0.002, expected the input's times the weights', 0.001",
    ),
    "pooling into another scale": (
        model("MAX_POOL_2D", [value(*IMAGE)], value(1, 3, 3, 4, scale=0.06), pool(VALID, 2, 2, 2)),
        "differ in scale or zero point",
    ),
    "a softmax of another scale": (
        model("SOFTMAX", [value(1, 9)], value(1, 9), schema.SoftmaxOptionsT(1.0)),
        "SOFTMAX.*expected 1/256 and -128",
    ),
    "a softmax at which the kernel stops": (
        model("SOFTMAX", [value(1, 9, scale=1e-9)], value(1, 9, **ONE_256TH), schema.SoftmaxOptionsT(1.0)),
        "beta times the input's scale is 1e-09",
    ),
    "a clamp beyond 32 bits": (
        model("RELU6", [value(*IMAGE)], value(*IMAGE, scale=1e-9)),
        "a clamp at 6 does not fit into 32 bits",
    ),
    "a shape said twice, differently": (
        model("RESHAPE", [value(*IMAGE), numbers(1, 4, 42)], value(1, 42, 4)),
        r"the new shape is \(1, 4, 42\), but the output's is \(1, 42, 4\)",
    ),
    "a reshape to a scale for each slice": (
        model("RESHAPE", [value(*IMAGE)], value(1, 42, 4, scale=SCALES, axis=2)),
        "RESHAPE.*4 scales, expected one",
    ),
    "a squeeze of more than 1": (
        model("SQUEEZE", [value(1, 2, 1, 4)], value(2, 4), schema.SqueezeOptionsT([1])),
        "not all of size 1",
    ),
    "an axis that is not there": (
        model("MEAN", [value(*IMAGE), numbers(4)], value(1, 7, 6), schema.ReducerOptionsT()),
        "axis 4 of a tensor of 4 axes",
    ),
    "axes that are computed": (
        model("MEAN", [value(*IMAGE), value(1, dtype="int32")], value(1, 4), schema.ReducerOptionsT()),
        "computed while the model runs",
    ),
    "axes of another size than their shape says": (
        model("MEAN", [value(*IMAGE), (value(dtype="int32"), np.int32([1, 2]))], value(1, 4), schema.ReducerOptionsT()),
        r"of shape \(\) has 8 bytes: expected those of its shape",
    ),
    "a slice of every second": (
        model(
            "STRIDED_SLICE",
            [value(1, 8), numbers(0, 0), numbers(1, 8), numbers(1, 2)],
            value(1, 4),
            schema.StridedSliceOptionsT(),
        ),
        "expected strides of 1",
    ),
    "a batch of two": (model("RELU", [value(2, 7, 6, 4)], value(2, 7, 6, 4)), "expected a batch of 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_taken_is_named(case: str) -> None:
    content, reason = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        graph_from_tflite(content)
    assert "\n" not in str(caught.value)


def test_an_operator_is_named_with_its_index_and_tensor() -> None:
    with pytest.raises(UnsupportedModel, match=r"operator 0 \(CUMSUM\), tensor 0 \(value\)"):
        graph_from_tflite(REFUSED["an operator that is not supported"][0])
