"""ExecuTorch runs the parts of a model, and says in one line what is wrong."""

from __future__ import annotations

import gc
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgepipe.errors import BundleError, EdgepipeError, EngineError, MissingExtra
from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.operators import Conv2D

pytest.importorskip("executorch")
from edgepipe.exporters.vision.write_executorch import write_executorch
from edgepipe.runtimes.vision.engines.executorch import ExecuTorchEngine

SHAPE = (1, 5, 7, 3)
IMAGE = np.random.default_rng(7).integers(-128, 128, SHAPE, np.int8)


def network(step: int) -> Graph:
    """Moves codes by ``step`` channels: a convolution whose weights are a permutation, without a scale of its own."""
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", SHAPE, "int8", Quantization((0.5,), (3,))))
    codes = np.roll(np.eye(3, dtype=np.int8), step, axis=1).reshape(3, 1, 1, 3)
    weights = builder.tensor(Tensor("weights", codes.shape, "int8", Quantization((1.0,), (0,)), codes))
    output = builder.node(Conv2D((1, 1)), [image, weights], "output", "int8", Quantization((0.5,), (3,)))
    return builder.build([image], [output])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    (folder / "executorch").mkdir()
    write_executorch({"whole": network(0), "tile_0": network(1)}, folder / "executorch/model.pte")
    return folder


@pytest.fixture
def folder(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "vision"))


@pytest.fixture
def engine(folder: Path) -> ExecuTorchEngine:
    gc.collect()  # engines of other tests hold the pool of threads
    return ExecuTorchEngine(folder, threads=1)


def one_line(error: pytest.ExceptionInfo[EdgepipeError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def test_each_part_is_a_method(engine: ExecuTorchEngine) -> None:
    np.testing.assert_array_equal(engine.run("whole", IMAGE), IMAGE)
    np.testing.assert_array_equal(engine.run("tile_0", IMAGE), np.roll(IMAGE, -1, axis=3))


def test_an_output_is_the_callers_to_keep(engine: ExecuTorchEngine) -> None:
    first = engine.run("whole", IMAGE)
    engine.run("whole", np.zeros_like(IMAGE))
    np.testing.assert_array_equal(first, IMAGE)


def test_an_input_may_be_a_view_that_cannot_be_written(engine: ExecuTorchEngine) -> None:
    view = np.repeat(IMAGE, 2, axis=1)[:, ::2]
    view.flags.writeable = False
    np.testing.assert_array_equal(engine.run("whole", view), IMAGE)


def test_an_unknown_part_is_named_with_those_there_are(engine: ExecuTorchEngine) -> None:
    with pytest.raises(EngineError) as error:
        engine.run("tail", IMAGE)
    assert one_line(error) == f"{engine.path} has no part 'tail': expected one of tile_0, whole"


@pytest.mark.parametrize(
    "image",
    [IMAGE[:, 1:], IMAGE[0], IMAGE.astype(np.uint8), IMAGE.astype(np.float32)],
    ids=["rows", "no batch", "uint8", "float32"],
)
def test_an_input_must_fit(engine: ExecuTorchEngine, image: np.ndarray) -> None:
    with pytest.raises(EngineError) as error:
        engine.run("whole", image)
    found = f"the input of whole is {image.dtype} of shape {image.shape}"
    assert one_line(error) == f"{found}: expected int8 of shape {SHAPE}"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: b"\xff" * len(data),
        lambda data: data[:2000] + bytes(len(data) - 2000),
    ],
    ids=["half", "one byte short", "empty", "no program", "zeros"],
)
def test_a_damaged_file_is_named(engine: ExecuTorchEngine, damage: Callable[[bytes], bytes]) -> None:
    engine.path.write_bytes(damage(engine.path.read_bytes()))
    with pytest.raises(BundleError) as error:
        engine.run("whole", IMAGE)
    message = one_line(error)
    assert re.match(rf"{engine.path} (cannot be loaded \(|is no ExecuTorch program: copy)", message)
    assert message.endswith("copy or export the bundle again")


def test_an_empty_folder_has_no_parts(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="has no part 'whole': expected one of none"):
        ExecuTorchEngine(tmp_path).run("whole", IMAGE)


def test_the_threads_of_a_live_engine_stay(engine: ExecuTorchEngine) -> None:
    """ExecuTorch would end the process."""
    engine.run("whole", IMAGE)
    with pytest.raises(EngineError) as error:
        ExecuTorchEngine(engine.path.parents[1], threads=2)
    assert one_line(error) == "2 threads for ExecuTorch, which runs with 1 in this process: ask for 1"
    np.testing.assert_array_equal(ExecuTorchEngine(engine.path.parents[1]).run("whole", IMAGE), IMAGE)


def test_executorch_missing_says_what_to_type(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "executorch.extension.pybindings", None)
    with pytest.raises(MissingExtra) as error:
        ExecuTorchEngine(folder)
    expected = "executorch.extension.pybindings is not installed: pip install 'edgepipe[executorch]'"
    assert one_line(error) == expected
