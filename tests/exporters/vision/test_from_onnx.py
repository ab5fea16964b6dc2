"""ONNX models as torch modules, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import EdgepipeError, UnsupportedModel

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from edgepipe.exporters.vision.from_onnx import read_onnx  # noqa: E402

SHAPE = (1, 3, 10, 12)


def node(operator: str, inputs: Sequence[str] = ("x",), output: str = "y", **attributes: Any) -> Any:
    return helper.make_node(operator, list(inputs), [output], **attributes)


def save(
    path: Path,
    nodes: Sequence[Any],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 17,
    shape: Sequence[int | str] = SHAPE,
    kind: int = TensorProto.FLOAT,
) -> Path:
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", kind, list(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(values, name) for name, values in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(0, 1, shape).astype(np.float32)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


CONV = {"w": weights(6, 3, 3, 3), "b": weights(6)}
NORM = {name: np.abs(weights(3)) + 0.5 for name in ("scale", "bias", "mean", "var")}
CASES: dict[str, tuple[list[Any], dict[str, np.ndarray], int]] = {
    "conv": ([node("Conv", ("x", "w", "b"), pads=[1, 1, 1, 1], strides=[2, 2])], CONV, 17),
    "conv, asymmetric": ([node("Conv", ("x", "w"), pads=[0, 1, 2, 0], strides=[2, 1])], CONV, 17),
    "conv, same": ([node("Conv", ("x", "w", "b"), auto_pad="SAME_UPPER", strides=[2, 2])], CONV, 17),
    "conv, valid": ([node("Conv", ("x", "w"), auto_pad="VALID", dilations=[2, 2])], CONV, 17),
    "conv, depthwise": ([node("Conv", ("x", "w"), group=3)], {"w": weights(6, 1, 3, 5)}, 17),
    "batch norm": ([node("BatchNormalization", ("x", *NORM), epsilon=1e-3)], NORM, 17),
    "relu": ([node("Relu")], {}, 17),
    "clip, 6": ([node("Clip", min=0.0, max=6.0)], {}, 7),
    "clip, inputs": ([node("Clip", ("x", "low", "high"))], {"low": np.float32(-1), "high": np.float32(0.5)}, 17),
    "clip, no minimum": ([node("Clip", ("x", "", "high"))], {"high": np.float32(0.5)}, 17),
    "sigmoid": ([node("Sigmoid")], {}, 17),
    "hard swish": ([node("HardSwish")], {}, 17),
    "add": ([node("Relu", output="z"), node("Add", ("x", "z"))], {}, 17),
    "mul": ([node("Mul", ("x", "c"))], {"c": weights(1, 3, 1, 1)}, 17),
    "concat": ([node("Relu", output="z"), node("Concat", ("x", "z"), axis=1)], {}, 17),
    "max pool": ([node("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])], {}, 17),
    "average pool": ([node("AveragePool", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0])], {}, 17),
    "average pool, pads count": (
        [node("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)], {}, 17,
    ),
    "global average pool": ([node("GlobalAveragePool")], {}, 17),
    "reduce mean": ([node("ReduceMean", axes=[2, 3], keepdims=0)], {}, 17),
    "reduce mean, input": ([node("ReduceMean", ("x", "axes"))], {"axes": integers(-1, -2)}, 18),
    "gemm": (
        [node("Flatten", output="z"), node("Gemm", ("z", "w", "b"), transB=1)],
        {"w": weights(4, 360), "b": weights(4)}, 17,
    ),
    "matmul": ([node("Flatten", output="z"), node("MatMul", ("z", "w"))], {"w": weights(360, 4)}, 17),
    "reshape": ([node("Reshape", ("x", "shape"))], {"shape": integers(0, -1, 6)}, 17),
    "squeeze": ([node("GlobalAveragePool", output="z"), node("Squeeze", ("z", "a"))], {"a": integers(2, 3)}, 17),
    "squeeze, attribute": ([node("GlobalAveragePool", output="z"), node("Squeeze", ("z",), axes=[3])], {}, 11),
    "unsqueeze": ([node("Unsqueeze", ("x", "a"))], {"a": integers(0, -1)}, 17),
    "transpose": ([node("Transpose", perm=[0, 2, 3, 1])], {}, 17),
    "softmax": ([node("Softmax", axis=1)], {}, 17),
    "softmax, old": ([node("Flatten", output="z"), node("Softmax", ("z",))], {}, 11),
    "pad": ([node("Pad", ("x", "p", "v"))], {"p": integers(0, 0, 1, 2, 0, 0, 3, 0), "v": np.float32(0.5)}, 17),
    "pad, attribute": ([node("Pad", pads=[0, 1, 0, 2, 0, 0, 0, 0])], {}, 7),
    "resize": (
        [node("Resize", ("x", "", "s"), coordinate_transformation_mode="asymmetric", nearest_mode="floor")],
        {"s": np.array([1, 1, 2, 2], np.float32)}, 17,
    ),
    "resize, sizes": (
        [node("Resize", ("x", "", "", "s"), coordinate_transformation_mode="asymmetric", nearest_mode="floor")],
        {"s": integers(1, 3, 20, 36)}, 17,
    ),
    "identity, dropout": ([node("Identity", output="z"), node("Dropout", ("z",))], {}, 17),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators_agree_with_onnxruntime(name: str, tmp_path: Path):
    nodes, constants, opset = CASES[name]
    path = save(tmp_path / "model.onnx", nodes, constants, opset)
    image = weights(*SHAPE)
    (expected,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": image})
    module, shape = read_onnx(path)
    assert shape == (10, 12, 3)
    with torch.no_grad():
        found = module(torch.from_numpy(image)).numpy()
    assert found.shape == expected.shape
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_shapes_that_follow_from_an_open_batch_size_are_folded(tmp_path: Path):
    """What torch's older exporter writes for ``x.view(x.shape[0], -1)``."""
    nodes = [
        node("Shape", output="shape"),
        node("Gather", ("shape", "zero"), "batch"),
        node("Unsqueeze", ("batch", "axis"), "batches"),
        node("Concat", ("batches", "rest"), "target", axis=0),
        node("Reshape", ("x", "target")),
    ]
    constants = {"zero": np.array(0, np.int64), "axis": integers(0), "rest": integers(-1)}
    module, shape = read_onnx(save(tmp_path / "model.onnx", nodes, constants, shape=("batch", 3, 10, 12)))
    assert shape == (10, 12, 3)
    assert module(torch.zeros(SHAPE)).shape == (1, 360)


def test_a_model_with_channels_last_takes_images_all_the_same(tmp_path: Path):
    nodes = [node("Transpose", output="z", perm=[0, 3, 1, 2]), node("Conv", ("z", "w", "b"))]
    path = save(tmp_path / "model.onnx", nodes, CONV, shape=(1, 10, 12, 3))
    module, shape = read_onnx(path)
    assert shape == (10, 12, 3)
    image = weights(1, 10, 12, 3)
    (expected,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": image})
    with torch.no_grad():
        found = module(torch.from_numpy(image).permute(0, 3, 1, 2)).numpy()
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "options", "message"),
    [
        ([node("Erf")], {}, r"operator Erf \(.*\) is not supported: expected float32 with Add, "),
        ([node("Relu")], {"shape": (1, 3, "rows", 12)}, r"a tensor \(1, 3, rows, 12\): expected one image of fixed"),
        (
            [node("Relu")],
            {"shape": (1, 3, 8000, 8000)},
            r"8000 x 8000 pixels with 3 channels: expected at most 4194304",
        ),
        ([node("Relu")], {"shape": (1, 1, 2, 70_000)}, "2 x 70000 pixels .*and sides of 65536"),
        ([node("Relu")], {"shape": (1, 2**40, 2**40, 2**40)}, "expected at most 4194304 elements"),
        ([node("Relu")], {"shape": (1, 30)}, r"a tensor \(1, 30\): expected one image"),
        ([node("Relu")], {"shape": (4, 3, 10, 12)}, r"a tensor \(4, 3, 10, 12\): expected one image"),
        ([node("Cast", to=1)], {"kind": TensorProto.UINT8}, "type UINT8: expected a model in float32"),
        ([node("MaxPool", kernel_shape=[2, 2], pads=[0, 0, 1, 1])], {}, r"MaxPool \(.*\): padding that differs"),
        ([node("Resize", ("x", "", "s"))], {"constants": {"s": np.float32([1, 1, 2, 2])}}, r"Resize \(.*\): resizing"),
    ],
)
def test_what_cannot_be_taken_is_named(tmp_path: Path, nodes: list[Any], options: dict[str, Any], message: str):
    path = save(tmp_path / "model.onnx", nodes, **options)
    with pytest.raises(UnsupportedModel, match=message) as raised:
        module, _ = read_onnx(path)
        module(torch.zeros(SHAPE))
    assert "\n" not in str(raised.value)


def test_a_shape_that_would_fill_memory_is_not_folded(tmp_path: Path):
    nodes = [node("ConstantOfShape", ("s",), "z"), node("ReduceMean", ("z",), "m"), node("Add", ("x", "m"))]
    path = save(tmp_path / "model.onnx", nodes, {"s": integers(2**20, 2**20)})
    with pytest.raises(UnsupportedModel, match="operator ConstantOfShape"):
        read_onnx(path)


@pytest.mark.parametrize("content", [b"", b"not protobuf at all", bytes(range(256)) * 20])
def test_damaged_files(tmp_path: Path, content: bytes):
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(UnsupportedModel, match=r"model\.onnx cannot be read as an ONNX model"):
        read_onnx(tmp_path / "model.onnx")


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(EdgepipeError, match="no file .*absent.onnx"):
        read_onnx(tmp_path / "absent.onnx")
