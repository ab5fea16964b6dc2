"""Files that are damaged, or made to harm: one line that says what is wrong, at once, and no memory spent."""

from __future__ import annotations

import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.operators import Add, Concatenation, Conv2D, Mean, Pads, Reshape, Softmax
from edgepipe.exporters.vision.read_tflite import graph_from_tflite, read_tflite
from edgepipe.exporters.vision.write_tflite import write_tflite

flatbuffers = pytest.importorskip("flatbuffers")
schema = pytest.importorskip("ai_edge_litert.schema_py_generated")

MEMORY_BYTES = 2**22
# What is done to the schema's objects of the main subgraph and of its tensors by name.
Change = Callable[[Any, dict[str, Any]], None]


def network() -> Graph:
    """A convolution, a residual, a join, a classifier: enough to damage."""
    builder, codes = GraphBuilder(), Quantization((0.05,), (3,))
    image = builder.tensor(Tensor("image", (1, 8, 8, 4), "int8", codes))
    scales = Quantization((0.01, 0.02, 0.03, 0.04), (0, 0, 0, 0))
    weights = builder.tensor(Tensor("weights", (4, 3, 3, 4), "int8", scales, np.ones((4, 3, 3, 4), np.int8)))
    products = Quantization(tuple(float(np.float32(0.05 * scale)) for scale in scales.scales), (0, 0, 0, 0))
    bias = builder.tensor(Tensor("bias", (4,), "int32", products, np.arange(4, dtype=np.int32)))
    x = builder.node(Conv2D((3, 3), pads=Pads(1, 1, 1, 1)), (image, weights, bias), "features", "int8", codes)
    x = builder.node(Add(), (x, image), "sum", "int8", codes)
    x = builder.node(Concatenation(3), (x, image), "joined", "int8", codes)
    x = builder.node(Mean((1, 2)), (x,), "mean", "int8", codes)
    x = builder.node(Reshape((1, 2, 4)), (x,), "shaped", "int8", codes)
    x = builder.node(Softmax(), (x,), "likely", "int8", Quantization((1 / 256,), (-128,)))
    return builder.build((image,), (x,))


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("hostile") / "model.tflite"
    write_tflite({"main": network()}, path)
    return path.read_bytes()


def refusal(content: bytes) -> str | None:
    """The message with which a file is refused, or None; never another exception, never much memory."""
    tracemalloc.start()
    try:
        graph_from_tflite(content)
        message = None
    except UnsupportedModel as error:
        message = str(error)
        assert "\n" not in message
        assert len(message) < 1000
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < MEMORY_BYTES + 8 * len(content)
    return message


def changed(content: bytes, change: Change) -> bytes:
    """The file with its main subgraph (and its tensors by name) changed through the schema's objects."""
    model = schema.ModelT.InitFromPackedBuf(content)
    subgraph = model.subgraphs[0]
    change(subgraph, {tensor.name.decode(): tensor for tensor in subgraph.tensors})
    builder = flatbuffers.Builder(0)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def put(thing: str, **attributes: Any) -> Change:
    """Set attributes of a tensor."""

    def change(subgraph: Any, tensors: dict[str, Any]) -> None:
        for name, value in attributes.items():
            setattr(tensors[thing], name, value)

    return change


def scaled(thing: str, scales: list[float], zero_points: list[int] | None = None) -> Change:
    """Give a tensor other scales."""

    def change(subgraph: Any, tensors: dict[str, Any]) -> None:
        tensors[thing].quantization.scale = np.float32(scales)
        if zero_points is not None:
            tensors[thing].quantization.zeroPoint = np.int64(zero_points)

    return change


def rewired(operator: int, **attributes: Any) -> Change:
    """Give an operator other inputs or outputs."""

    def change(subgraph: Any, tensors: dict[str, Any]) -> None:
        for name, value in attributes.items():
            setattr(subgraph.operators[operator], name, value)

    return change


def ends(**attributes: list[int]) -> Change:
    """Give the model other inputs or outputs."""

    def change(subgraph: Any, tensors: dict[str, Any]) -> None:
        for name, value in attributes.items():
            setattr(subgraph, name, value)

    return change


def both(first: Change, second: Change) -> Change:
    """One change after the other."""

    def change(subgraph: Any, tensors: dict[str, Any]) -> None:
        first(subgraph, tensors)
        second(subgraph, tensors)

    return change


# Tensors in the order of `network`: 0 image, 1 weights, 2 bias, 3 features, 4 sum, 5 joined, 6 mean, ...
DAMAGES = {
    "a tensor that is not there": (rewired(1, inputs=[3, 999]), r"operator 1 \(ADD\), tensor 4 \(sum\): no tensor 999"),
    "a negative tensor": (rewired(1, inputs=[3, -7]), "no tensor -7"),
    "an output that is not there": (ends(outputs=[2**31 - 1]), "no tensor 2147483647"),
    "an input that is not there": (ends(inputs=[12345]), "no tensor 12345"),
    "a cycle": (
        rewired(0, inputs=[4, 1, 2]),
        r"operator 0 \(CONV_2D\).*reads tensor 4 \(sum\) before anything wrote it",
    ),
    "an operator that reads its own output": (rewired(1, inputs=[4, 0]), "reads tensor 4 .* before anything wrote it"),
    "a tensor that is written twice": (both(rewired(0, outputs=[4]), rewired(1, inputs=[0, 0])), "is there already"),
    "an operator that writes a constant": (
        both(rewired(0, outputs=[1]), rewired(1, inputs=[1, 0])),
        "is there already",
    ),
    "an operator that writes the input": (rewired(0, outputs=[0]), "is there already"),
    "an operator of two outputs": (rewired(0, outputs=[3, 4]), "2 outputs"),
    "an operator of a kind that is not there": (rewired(0, opcodeIndex=77), "operator 0 is of kind 77"),
    "no inputs": (ends(inputs=[]), r"inputs are tensors \[\]"),
    "no outputs": (ends(outputs=[]), r"outputs are tensors \[\]"),
    "the same input twice": (ends(inputs=[0, 0]), r"inputs are tensors \[0, 0\]"),
    "an output that nothing writes": (ends(outputs=[2, 4]), "no operator computes the model's output, tensor 2"),
    "a constant as input": (ends(inputs=[0, 2]), "is a constant"),
    "nothing but the input": (ends(outputs=[0]), "the model is empty"),
    "a huge shape": (put("image", shape=[1, 2**31 - 1, 2**31 - 1, 2**31 - 1]), "bytes: expected at most"),
    "an image beyond any board": (put("image", shape=[1, 4096, 4097, 4]), "67125248 bytes: expected at most 67108864"),
    "a shape of many axes": (put("image", shape=[1] * 100_000), "expected up to 6 sizes"),
    "a tensor of no elements": (put("image", shape=[1, 0, 8, 4]), "expected up to 6 sizes of 1 or more"),
    "a negative size": (put("image", shape=[1, -8, 8, 4]), "expected up to 6 sizes of 1 or more"),
    "a tensor without axes": (put("image", shape=[]), "expected a batch of 1"),
    "sizes left open": (
        put("image", shapeSignature=[1, -1, -1, 4]),
        r"dynamic shape \(1, -1, -1, 4\): fix all its sizes",
    ),
    "a buffer that is not there": (put("weights", buffer=4_000_000_000), "stored in buffer 4000000000"),
    "a buffer of another size": (put("weights", buffer=2), "has 16 bytes of data: its shape asks for 144"),
    "a type that is not known": (put("image", type=99), "of unknown type 99"),
    "strings": (put("image", type=schema.TensorType.STRING), "is STRING: expected"),
    "a variable": (put("features", isVariable=True), "is a variable"),
    "a name that is not UTF-8": (put("image", name=b"\xff\xfe"), "the name of tensor 0 is not UTF-8"),
    "a name with a line break": (put("image", name="image\nEverything is fine"), "cannot be printed"),
    "a name that colours the terminal": (put("image", name="\x1b[31m"), "cannot be printed"),
    "no quantisation": (put("features", quantization=None), "'features' has no scale"),
    "no scale": (scaled("features", []), "'features' has no scale"),
    "a scale that is not a number": (scaled("features", [float("nan")]), "not a positive number"),
    "an infinite scale": (scaled("features", [float("inf")]), "not a positive number"),
    "a scale of zero": (scaled("weights", [0.01, 0, 0.01, 0.01]), "not a positive number"),
    "a negative scale": (scaled("features", [-0.05]), "not a positive number"),
    "many scales": (scaled("features", [0.1] * 8, [0] * 8), "8 scales along axis 0"),
    "scales without zero points": (scaled("features", [0.05], []), "1 scales and 0 zero points"),
    "a zero point beyond the codes": (scaled("features", [0.05], [128]), "zero point 128, expected -128 to 127"),
    "a zero point beyond 32 bits": (scaled("features", [0.05], [-(2**63)]), "beyond 32 bits"),
    "a multiplier beyond 32 bits": (scaled("features", [1e-30]), "a multiplier is .* less than 1.07374e"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(damage: str, content: bytes) -> None:
    change, reason = DAMAGES[damage]
    message = refusal(changed(content, change))
    assert message is not None
    assert re.search(reason, message), message


def test_undamaged_it_is_read(content: bytes) -> None:
    assert refusal(content) is None
    assert refusal(changed(content, both(put("image", name=b"image"), ends(outputs=[8])))) is None


def test_every_truncation_is_refused(content: bytes) -> None:
    for size in (*range(0, len(content), 7), len(content) - 1):
        message = refusal(content[:size])
        # What stands at the end may be padding, or a part that nobody reads.
        assert message is not None or size > len(content) - 64


@given(st.binary(max_size=2000))
def test_random_bytes_are_refused(noise: bytes) -> None:
    assert refusal(noise) is not None
    assert refusal(noise[:4] + b"TFL3" + noise[8:]) is not None


@given(st.data())
@settings(max_examples=300)
def test_flipped_bits_never_do_more_than_refuse(content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    refusal(bytes(damaged))


@given(st.data())
@settings(max_examples=300)
def test_wild_numbers_never_do_more_than_refuse(content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        position = 4 * data.draw(st.integers(0, len(content) // 4 - 1))
        number = data.draw(st.sampled_from((0, 1, -1, 4, 2**31 - 1, -(2**31), len(content), -len(content))))
        struct.pack_into("<i", damaged, position, number)
    refusal(bytes(damaged))


def test_lists_that_overlap_are_not_read_twice(content: bytes) -> None:
    """A long name that thousands of tensors share would be thousands of long names once read."""
    builder = flatbuffers.Builder(0)
    name = builder.CreateString("x" * 1_000_000)
    schema.TensorStart(builder)
    schema.TensorAddName(builder, name)
    tensor = schema.TensorEnd(builder)
    schema.SubGraphStartTensorsVector(builder, 9000)
    for _ in range(9000):
        builder.PrependUOffsetTRelative(tensor)
    tensors = builder.EndVector()
    schema.BufferStart(builder)
    buffer = schema.BufferEnd(builder)
    schema.ModelStartBuffersVector(builder, 1)
    builder.PrependUOffsetTRelative(buffer)
    buffers = builder.EndVector()
    schema.SubGraphStart(builder)
    schema.SubGraphAddTensors(builder, tensors)
    subgraph = schema.SubGraphEnd(builder)
    schema.ModelStartSubgraphsVector(builder, 1)
    builder.PrependUOffsetTRelative(subgraph)
    subgraphs = builder.EndVector()
    schema.ModelStart(builder)
    schema.ModelAddSubgraphs(builder, subgraphs)
    schema.ModelAddBuffers(builder, buffers)
    builder.Finish(schema.ModelEnd(builder), b"TFL3")
    assert "its lists overlap" in str(refusal(bytes(builder.Output())))


def test_more_operators_than_any_model_has_are_refused(content: bytes) -> None:
    def repeat(subgraph: Any, tensors: dict[str, Any]) -> None:
        subgraph.operators = subgraph.operators[:1] * 10_001

    assert "10001 operators: expected at most 10000" in str(refusal(changed(content, repeat)))


@pytest.mark.parametrize("kind", ["absent", "a folder", "empty"])
def test_what_is_no_file_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    if kind == "a folder":
        path.mkdir()
    if kind == "empty":
        path.touch()
    with pytest.raises(UnsupportedModel, match=r"model\.tflite: (no such file|not a TFLite file)"):
        read_tflite(path)


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UnsupportedModel, match="1099511627776 bytes: expected at most"):
        read_tflite(path)
