"""Engines run the parts of a real int8 model, and say in one line what is wrong."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import BundleError, EdgepipeError, EngineError, MissingExtra
from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.operators import Activation, Conv2D, FullyConnected, Mean, Pads, Softmax
from edgepipe.exporters.vision.patch_split import join, split
from edgepipe.exporters.vision.patches import PatchPlan, SplitModel
from edgepipe.exporters.vision.write_onnx import write_onnx
from edgepipe.exporters.vision.write_tflite import write_tflite
from edgepipe.lazy import load
from edgepipe.runtimes.vision.engine import Engine
from edgepipe.runtimes.vision.engines import ENGINES
from edgepipe.runtimes.vision.engines.litert import LiteRTEngine

ENGINE_NAMES = ("litert", "onnx")
IMAGE = np.random.default_rng(7).integers(-128, 128, (1, 19, 23, 3), np.int8)
FILES = {"litert": "tflite/model.tflite", "onnx": "onnx/whole.onnx"}


def network() -> Graph:
    """Two convolutions and a classifier of four classes."""
    generator, builder = np.random.default_rng(3), GraphBuilder()

    def constant(shape: tuple[int, ...], scale: float) -> int:
        codes = generator.integers(-127, 128, shape, np.int8)
        return builder.tensor(Tensor(f"weights_{len(shape)}", shape, "int8", Quantization((scale,), (0,)), codes))

    x = image = builder.tensor(Tensor("image", IMAGE.shape, "int8", Quantization((1 / 64,), (0,))))
    for channels, stride in ((6, 2), (8, 1)):
        inputs = [x, constant((channels, 3, 3, builder.tensors[x].shape[3]), 0.003)]
        conv = Conv2D((3, 3), (stride, stride), Pads(1, 1, 1, 1), Activation.RELU6)
        x = builder.node(conv, inputs, f"conv_{channels}", "int8", Quantization((6 / 255,), (-128,)))
    x = builder.node(Mean((1, 2)), [x], "mean", "int8", Quantization((3 / 255,), (-128,)))
    x = builder.node(FullyConnected(), [x, constant((4, 8), 0.02)], "logits", "int8", Quantization((0.06,), (0,)))
    x = builder.node(Softmax(), [x], "probabilities", "int8", Quantization((1 / 256,), (-128,)))
    return builder.build([image], [x])


@pytest.fixture(scope="module")
def model() -> SplitModel:
    return split(network(), PatchPlan(2, 2, 3))


@pytest.fixture
def folder(model: SplitModel, tmp_path: Path) -> Path:
    """The model as a bundle's ``vision`` folder."""
    streamed = {**model.tile_graphs, "tail": model.tail}
    for part, graph in {"whole": model.whole, "split": join(model), **streamed}.items():
        write_onnx(graph, tmp_path / "onnx" / f"{part}.onnx")
    (tmp_path / "tflite").mkdir()
    write_tflite({"whole": model.whole}, tmp_path / "tflite/model.tflite")
    write_tflite({"split": join(model)}, tmp_path / "tflite/model.split.tflite")
    write_tflite(streamed, tmp_path / "tflite/model.streamed.tflite")
    return tmp_path


@pytest.fixture(params=ENGINE_NAMES)
def engine(request: pytest.FixtureRequest, folder: Path) -> Engine:
    return load(ENGINES[request.param])(folder, threads=1)


def streamed(engine: Engine, model: SplitModel) -> np.ndarray:
    """The model's output by tiles and tail."""
    stage = np.empty(model.tail.tensors[model.tail.inputs[0]].shape, np.int8)
    for tile in model.tiles:
        (top, bottom), (left, right) = tile.window.rows, tile.window.columns
        stage[:, slice(*tile.output.rows), slice(*tile.output.columns)] = engine.run(
            tile.graph, IMAGE[:, top:bottom, left:right]
        )
    return engine.run("tail", stage)


def test_all_parts_give_what_the_whole_gives(engine: Engine, model: SplitModel) -> None:
    whole = engine.run("whole", IMAGE)
    assert (whole.shape, whole.dtype) == ((1, 4), np.int8)
    assert len(np.unique(whole)) > 1
    np.testing.assert_array_equal(engine.run("split", IMAGE), whole)
    np.testing.assert_array_equal(streamed(engine, model), whole)


def test_an_output_is_the_callers_to_keep(engine: Engine) -> None:
    first = engine.run("whole", IMAGE)
    kept = first.copy()
    assert not np.array_equal(engine.run("whole", np.full_like(IMAGE, 127)), kept)
    np.testing.assert_array_equal(first, kept)


def test_litert_gives_the_bytes_of_tflite_micro(folder: Path) -> None:
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    interpreter = runtime.Interpreter.from_file(str(folder / "tflite/model.tflite"))
    interpreter.set_input(IMAGE, 0)
    interpreter.invoke()
    np.testing.assert_array_equal(LiteRTEngine(folder).run("whole", IMAGE), interpreter.get_output(0))


def test_the_fast_kernels_of_litert_are_near(folder: Path) -> None:
    exact = LiteRTEngine(folder).run("whole", IMAGE).astype(int)
    fast = LiteRTEngine(folder, exact=False).run("whole", IMAGE).astype(int)
    assert fast.argmax() == exact.argmax()
    assert np.abs(fast - exact).max() <= 12, "a few steps of the logits, which softmax widens"


def test_what_is_not_run_is_not_loaded(folder: Path, model: SplitModel) -> None:
    for name in ENGINE_NAMES:
        expected = load(ENGINES[name])(folder).run("whole", IMAGE)
        (folder / FILES[name]).write_bytes(b"damaged")
        np.testing.assert_array_equal(streamed(load(ENGINES[name])(folder), model), expected)


def one_line(error: pytest.ExceptionInfo[EdgepipeError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def test_an_unknown_part_is_named_with_those_there_are(engine: Engine) -> None:
    for part in ("middle", "../onnx/whole", ""):
        with pytest.raises(EngineError) as error:
            engine.run(part, IMAGE)
        assert repr(part) in one_line(error)
        assert all(known in str(error.value) for known in ("split", "tail", "tile_0", "whole"))


@pytest.mark.parametrize(
    "image",
    [IMAGE[:, 1:], IMAGE[0], IMAGE.astype(np.uint8), IMAGE.astype(np.float32)],
    ids=["rows", "no batch", "uint8", "float32"],
)
@pytest.mark.parametrize("part", ["whole", "split"])
def test_an_input_must_fit(engine: Engine, part: str, image: np.ndarray) -> None:
    with pytest.raises(EngineError) as error:
        engine.run(part, image)
    found = f"the input of {part} is {image.dtype} of shape {image.shape}"
    assert one_line(error) == f"{found}: expected int8 of shape (1, 19, 23, 3)"


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("damage", [truncated, lambda data: b"", lambda data: b"\xff" * len(data)])
@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_a_damaged_file_is_named(name: str, damage: Callable[[bytes], bytes], folder: Path) -> None:
    path = folder / FILES[name]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BundleError) as error:
        load(ENGINES[name])(folder).run("whole", IMAGE)
    message = one_line(error)
    assert message.startswith(f"{path} cannot be loaded (")
    assert message.endswith("): if there is memory left for it, copy or export the bundle again")


def test_a_damaged_streamed_file_is_named(folder: Path) -> None:
    path = folder / "tflite/model.streamed.tflite"
    path.write_bytes(truncated(path.read_bytes()))
    with pytest.raises(BundleError, match=r"model\.streamed\.tflite cannot be loaded"):
        LiteRTEngine(folder).run("tail", IMAGE)


@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_an_empty_folder_has_no_parts(name: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="has no part 'whole': expected one of none"):
        load(ENGINES[name])(tmp_path).run("whole", IMAGE)


def test_litert_missing_says_what_to_type(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("ai_edge_litert", "tflite_runtime"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as error:
        LiteRTEngine(folder)
    assert one_line(error) == "ai-edge-litert is not installed: pip install 'edgepipe[litert]'"


def test_tflite_runtime_serves_where_litert_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module has the same two names."""
    expected = LiteRTEngine(folder).run("whole", IMAGE)
    interpreter: Any = importlib.import_module("ai_edge_litert.interpreter")
    package = type(sys)("tflite_runtime")
    monkeypatch.setattr(package, "interpreter", interpreter, raising=False)
    monkeypatch.setitem(sys.modules, "tflite_runtime", package)
    monkeypatch.setitem(sys.modules, "tflite_runtime.interpreter", interpreter)
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    np.testing.assert_array_equal(LiteRTEngine(folder).run("whole", IMAGE), expected)


def test_onnxruntime_missing_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ENGINES["onnx"].partition(":")[0]
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(EngineError) as error:
        importlib.import_module(module)
    assert "pip install onnxruntime" in one_line(error)
