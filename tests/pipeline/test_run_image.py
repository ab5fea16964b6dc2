"""`edgepipe run --image`, from Python and as a user meets it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgepipe as product
from edgepipe.errors import BundleError, EngineError, ImageError, MissingExtra, RecipeError, ValidationFailed
from edgepipe.pipeline import cli
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.cli_run import OF_TEXT, command
from edgepipe.pipeline.run_image import run_image
from edgepipe.pipeline.vision_reference import verify_vision
from edgepipe.pipeline.vision_session import VisionOptions, VisionSession

EXACT = VisionOptions("litert", exact=True)


@pytest.fixture
def edgepipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs `edgepipe run` in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(["run", *map(str, arguments)])
        assert isinstance(caught.value.code, int)
        return caught.value.code, *capsys.readouterr()

    return run


def photograph() -> np.ndarray:
    """Pixels of the model's own size."""
    return np.random.default_rng(5).integers(0, 256, (24, 20, 3), np.uint8)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(photograph()).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def oracle(tiny_vision: Path) -> np.ndarray:
    """What TFLite Micro says of the photograph, as real numbers: a scale of 1/256, a zero point of -128."""
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    interpreter = runtime.Interpreter.from_file(str(tiny_vision), arena_size=2**20)
    interpreter.set_input((photograph().astype(np.int16) - 128).astype(np.int8)[np.newaxis], 0)
    interpreter.invoke()
    return (np.array(interpreter.get_output(0)).astype(np.float64)[0] + 128) / 256


def test_classes_labels_and_scores(edgepipe: Any, vision_bundle: Path, tiny_vision: Path, picture: Path) -> None:
    scores = oracle(tiny_vision)
    order = sorted(range(4), key=lambda index: (-scores[index], index))
    code, out, err = edgepipe(vision_bundle, "--image", picture, "--exact", "--top-k", 3)
    assert code == 0
    labels = ("ant", "bee", "cat", "dog")
    assert [line.split() for line in out.splitlines()] == [[f"{scores[i]:.4f}", labels[i]] for i in order[:3]]
    assert err.startswith("litert, in ")
    answer = json.loads(edgepipe(vision_bundle, "--image", picture, "--exact", "--json")[1])
    assert [guess["index"] for guess in answer["top"]] == order
    assert [guess["score"] for guess in answer["top"]] == [scores[i] for i in order]


def test_every_way_in_gives_the_same_output(vision_bundle: Path, picture: Path, tmp_path: Path) -> None:
    codes = (photograph().astype(np.int16) - 128).astype(np.int8)
    np.save(tmp_path / "codes.npy", codes)
    expected = run_image(vision_bundle, picture, EXACT).output
    image = VisionSession(Bundle.open(vision_bundle), EXACT).plan.input
    np.save(tmp_path / "real.npy", image.real(codes))
    sources = [str(picture), photograph(), codes, codes[np.newaxis], tmp_path / "codes.npy", tmp_path / "real.npy"]
    sources += [iter(photograph()), list(codes), image.real(codes), list(image.real(codes))]
    sources += [photograph().tolist(), tuple(map(tuple, photograph().tolist())), iter(photograph().tolist())]
    pillow = pytest.importorskip("PIL.Image")
    sources += [pillow.open(picture), pillow.fromarray(photograph())]
    for source in sources:
        assert np.array_equal(run_image(vision_bundle, source, EXACT).output, expected)
    whole = VisionOptions("litert", exact=True, whole=True)
    for source in (picture, iter(codes)):
        assert np.array_equal(run_image(vision_bundle, source, whole).output, expected)
    assert run_image(vision_bundle, picture, whole).grid == (1, 1)


def test_from_the_package(vision_bundle: Path) -> None:
    answer = product.run_image(vision_bundle, photograph(), top_k=1)
    assert len(answer.top) == 1
    assert answer.grid != (1, 1)


@pytest.mark.parametrize("engine", ["litert", "onnx"])
@pytest.mark.parametrize("way", [[], ["--whole"]])
def test_engines_agree_on_the_class(
    edgepipe: Any, vision_bundle: Path, tiny_vision: Path, picture: Path, engine: str, way: list[str]
) -> None:
    answer = json.loads(edgepipe(vision_bundle, "--image", picture, "--engine", engine, "--json", *way)[1])
    assert answer["engine"] == engine
    assert answer["top"][0]["index"] == int(oracle(tiny_vision).argmax())


def rows(count: int) -> Iterator[np.ndarray]:
    yield from np.zeros((count, 20, 3), np.uint8)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (rows(23), "the image ends after 23 rows: the model takes 24"),
        (rows(25), "more rows come after the 24 that the model takes"),
        (np.zeros((23, 20, 3), np.uint8), r"\(1, 23, 20, 3\): the model takes int8 of shape \(1, 24, 20, 3\)"),
        (
            np.zeros((24, 20, 3), np.int16),
            "are int16: expected uint8 from 0 to 255, floating-point real values, or codes of int8",
        ),
        (np.zeros((24, 20, 4), np.uint8), "expected 3 channels"),
        (np.zeros((), np.uint8), "expected 3 channels"),
        (None, "the image is NoneType: expected the path of a file, Pillow's image, an array, or rows"),
        (b"\x89PNG", "the image is bytes: expected the path"),
        (3, "the image is int: expected"),
        ({"image": 1}, "the image is dict: expected"),
        ([], "the image ends after 0 rows: the model takes 24"),
        ([1, 2, 3], "expected 3 channels"),
        ([None] * 24, "are object: expected uint8"),
        ([[[0, 0, 0], [0, 0]]] * 24, "a row is no array of columns and channels"),
        ([[[0, 0, 300]] * 20] * 24, "are int64: expected uint8 from 0 to 255"),
        ([["abc"] * 20] * 24, "are <U3: expected uint8"),
        ([[[np.nan] * 3] * 20] * 24, "NaN or infinity"),
    ],
)
def test_images_that_are_none(vision_bundle: Path, image: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        run_image(vision_bundle, image)


def test_files_that_are_no_image(edgepipe: Any, vision_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    for name in ("text.png", "absent.png", "."):
        code, out, err = edgepipe(vision_bundle, "--image", name)
        assert (code, out) == (1, "")
        assert name in err
        assert len(err.splitlines()) == 1
    error = json.loads(edgepipe(vision_bundle, "--image", "text.png", "--json")[1])["error"]
    assert error["type"] == "ImageError"


@pytest.mark.parametrize(
    "flags",
    [["x"], ["--chat"], ["--file", "-"], ["--verify"]],
)
def test_an_image_takes_no_prompt(edgepipe: Any, vision_bundle: Path, flags: list[str]) -> None:
    code, _, err = edgepipe(vision_bundle, "--image", "a.png", *flags)
    assert code == 2
    assert "--image takes no prompt" in err


@pytest.mark.parametrize(
    "flags",
    [
        ["--policy", "h2o", "--budget", "64"],
        ["--policy", "full"],
        ["--chunk", 256],
        ["--seed", 1],
        ["--temperature", 0],
        ["--top-p", 0.5],
        ["--drafter", "none"],
        ["--summed"],
        ["-n", 3],
        ["--stop", "x"],
        ["--stop-token", "1"],
        ["--system", "x"],
        ["--raw"],
    ],
)
def test_options_of_text_say_nothing_of_an_image(edgepipe: Any, vision_bundle: Path, flags: list[object]) -> None:
    code, out, err = edgepipe(vision_bundle, "--image", "a.png", *flags)
    assert (code, out) == (2, "")
    assert "is an option of a language model, and --image is given" in err
    assert ("--max-new-tokens" if flags[0] == "-n" else str(flags[0])) in err


def test_every_option_is_of_text_or_of_images() -> None:
    """A new option has to say which."""
    of_images = {"bundle", "prompt", "file", "chat", "image", "whole", "exact", "verify", "as_json"}
    of_images |= {"engine", "threads", "top_k", "device", "baud"}
    names = {parameter.name for parameter in command.params}
    assert OF_TEXT <= names <= OF_TEXT | of_images


@pytest.mark.parametrize("engine", ["onnx", "executorch"])
def test_exact_is_an_option_of_litert(edgepipe: Any, vision_bundle: Path, engine: str) -> None:
    code, out, err = edgepipe(vision_bundle, "--image", "a.png", "--exact", "--engine", engine)
    assert (code, out) == (2, "")
    assert f"--exact is an option of litert, and --engine is {engine}: leave one out" in err


def test_options_of_images_alone(edgepipe: Any, vision_bundle: Path, picture: Path) -> None:
    assert "belong to an --image" in edgepipe(vision_bundle, "x", "--whole")[2]
    assert "top_k is -1: expected 1 or more" in edgepipe(vision_bundle, "--image", picture, "--top-k", -1)[2]
    assert "cores of this machine" in edgepipe(vision_bundle, "--image", picture, "--threads", 10**6)[2]
    with pytest.raises(RecipeError, match="engine is 'tpu'"):
        VisionOptions("tpu")


def test_a_bundle_without_what_is_asked_for(
    edgepipe: Any, vision_bundle: Path, tiny_bundle: Path, picture: Path
) -> None:
    code, out, err = edgepipe(tiny_bundle, "--image", picture)
    assert (code, out) == (1, "")
    assert "holds no vision model, only target, draft: export again with --vision" in err
    code, out, err = edgepipe(vision_bundle, "Hello")
    assert (code, out) == (1, "")
    assert "holds no target model, only vision: give --image FILE, or export again with --target" in err
    code, out, err = edgepipe(vision_bundle, "--image", picture, "--engine", "executorch")
    assert (code, out) == (1, "")
    assert "not exported for executorch, only for litert, onnx" in err


def test_without_pillow(edgepipe: Any, vision_bundle: Path, picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    code, _, err = edgepipe(vision_bundle, "--image", picture)
    assert code == 1
    assert "pip install 'edgepipe[vision]'" in err


def test_without_litert_the_next_engine_runs(vision_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("ai_edge_litert", "ai_edge_litert.interpreter", "tflite_runtime"):
        monkeypatch.setitem(sys.modules, package, None)
    assert run_image(vision_bundle, photograph()).engine == "onnx"
    with pytest.raises(MissingExtra, match=r"edgepipe\[litert\]"):
        run_image(vision_bundle, photograph(), VisionOptions("litert"))


def test_verify_replays_images(edgepipe: Any, vision_bundle: Path) -> None:
    for engine in ("litert", "onnx"):
        code, out, err = edgepipe(vision_bundle, "--verify", "--engine", engine)
        assert (code, err) == (0, "")
        assert out == f"verified vision with {engine}: 8 images, patch by patch and whole, outputs the same\n"


@pytest.mark.parametrize("engine", ["litert", "onnx"])
def test_verify_finds_what_differs(vision_bundle: Path, tmp_path: Path, engine: str) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(vision_bundle, copy)
    session = VisionSession(Bundle.open(copy), VisionOptions(engine, exact=True))
    golden = copy / "reference/vision.npz"
    arrays = dict(np.load(golden))
    arrays[engine][3] += 1 if engine == "litert" else 17
    np.savez(golden, **arrays)
    with pytest.raises(ValidationFailed, match="vision, golden image 3, patch by patch"):
        verify_vision(session)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"images": np.zeros((0, 1, 24, 20, 3), np.int8)},
        {"images": np.zeros((2, 1, 24, 21, 3), np.int8)},
        {"images": np.zeros((2, 1, 24, 20, 3), np.int16)},
        {"images": np.zeros((2, 1, 24, 20, 3), np.int8), "litert": np.zeros((3, 1, 4), np.int8)},
    ],
)
def test_golden_images_that_are_none(vision_bundle: Path, tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(vision_bundle, copy)
    session = VisionSession(Bundle.open(copy), EXACT)
    np.savez(copy / "reference/vision.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(BundleError, match=r"vision\.npz is damaged"):
        verify_vision(session)
    (copy / "reference/vision.npz").write_bytes(b"PK no archive")
    with pytest.raises(BundleError, match=r"vision\.npz is damaged"):
        verify_vision(session)


def test_a_plan_of_another_model(vision_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(vision_bundle, copy)
    session = VisionSession(Bundle.open(copy), EXACT)
    tiles = session.plan.tiles
    middle = next(tile.graph for tile in tiles if tile.window.shape != tiles[0].window.shape)
    object.__setattr__(tiles[0], "graph", middle)
    with pytest.raises(EngineError, match=f"the input of {middle} is int8 of shape"):
        session.run(np.zeros(session.plan.input.shape, np.int8))
