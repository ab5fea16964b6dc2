"""Exporting a vision model: what is in the bundle, what was validated, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import BundleError, DoesNotFit, EdgepipeError, RecipeError, ValidationFailed
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.source import VisionSource
from edgepipe.pipeline import cli, export_vision
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.export import export
from edgepipe.pipeline.export_vision import source_info
from edgepipe.pipeline.recipe import Recipe, recipe_from, to_toml
from edgepipe.pipeline.vision_recipe import VisionRecipe
from edgepipe.runtimes.vision.engines.litert import LiteRTEngine
from edgepipe.runtimes.vision.patch_stream import run_streamed, run_whole
from edgepipe.runtimes.vision.plan import read_plan

IMAGES = (0, 1, 2)


def image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, (1, 24, 20, 3), np.int8)


@pytest.fixture
def edgepipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs `edgepipe` in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main([str(argument) for argument in arguments])
        assert isinstance(caught.value.code, int)
        return caught.value.code, *capsys.readouterr()

    return run


def test_the_bundle_holds_every_form(vision_bundle: Path) -> None:
    manifest = Bundle.open(vision_bundle).manifest
    component = manifest["components"]["vision"]
    assert set(manifest["components"]) == {"vision"}
    assert set(component["formats"]) == {"tflite", "onnx"}
    assert set(component["formats"]["tflite"]) == {"whole", "streamed"}
    plan = read_plan(vision_bundle / component["plan"])
    assert set(component["formats"]["onnx"]) == {"whole", "tail", *plan.parts}
    assert component["source"]["kind"] == "tflite"
    assert set(component["source"]["files"]) == {"tiny.tflite"}
    assert plan.labels == ("ant", "bee", "cat", "dog")
    assert (
        plan.memory.planned_bytes + 8 * 1024 <= plan.memory.budget_bytes == 15 * 1024 < plan.memory.whole_bytes + 8192
    )


@pytest.mark.parametrize("seed", IMAGES)
def test_the_files_compute_what_tflite_micro_does(vision_bundle: Path, tiny_vision: Path, seed: int) -> None:
    """The source in TFLite Micro is the oracle."""
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    interpreter = runtime.Interpreter.from_file(str(tiny_vision), arena_size=2**20)
    interpreter.set_input(image(seed), 0)
    interpreter.invoke()
    plan, engine = read_plan(vision_bundle / "vision/plan.json"), LiteRTEngine(vision_bundle / "vision")
    for run in (run_whole, run_streamed):
        assert np.array_equal(run(engine, plan, image(seed)), interpreter.get_output(0))


@pytest.fixture(scope="module")
def small_bundle(small_vision: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of `small_vision` in TFLite, split for as much SRAM as neither runtime needs for the whole model."""
    recipe = VisionRecipe(str(small_vision), sram="40K", formats=("tflite",))
    return export(Recipe(vision=recipe), tmp_path_factory.mktemp("small") / "bundle").folder


@pytest.mark.parametrize("seed", IMAGES)
def test_the_drop_in_takes_the_place_of_the_model_in_tflite_micro(
    small_bundle: Path, small_vision: Path, seed: int
) -> None:
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    codes = np.random.default_rng(seed).integers(-128, 128, (1, 48, 40, 3), np.int8)
    answers = [LiteRTEngine(small_bundle / "vision").run("split", codes)]
    for path in (small_vision, small_bundle / "vision/tflite/model.split.tflite"):
        interpreter = runtime.Interpreter.from_file(str(path), arena_size=2**20)
        interpreter.set_input(codes, 0)
        interpreter.invoke()
        answers.append(np.array(interpreter.get_output(0)))
    assert all(np.array_equal(answer, answers[0]) for answer in answers)


def test_the_bundle_says_what_tflite_micro_takes(small_bundle: Path, tflm_allocations: Any) -> None:
    """Its figures are those that the allocator prints; the drop-in has a plan of its own, and takes less."""
    manifest = Bundle.open(small_bundle).manifest
    component = manifest["components"]["vision"]
    plan = read_plan(small_bundle / "vision/plan.json")
    arenas = plan.memory.tflite_micro
    assert arenas.drop_in is not None
    assert component["memory"]["tflite_micro"]["drop_in"]["grid"] == list(arenas.drop_in.grid) != [1, 1]
    assert plan.whole_macs <= arenas.drop_in.macs <= max(1.1 * plan.whole_macs, plan.macs)
    found = {}
    for form, arena in {"whole": arenas.whole, "split": arenas.drop_in.arena}.items():
        head, tail = tflm_allocations(small_bundle / component["formats"]["tflite"][form])
        assert (arena.head_bytes, arena.tail_bytes) == (head, pytest.approx(tail, rel=0.02))
        found[form] = head + tail
    assert found["split"] <= 0.95 * found["whole"]
    figure = f"= {arenas.drop_in.arena.nbytes / 1024:,.1f} KiB"
    assert figure in (small_bundle / "README.md").read_text()
    assert manifest["validation"]["vision"]["split"]["differing_bytes"] == 0


def test_there_is_no_drop_in_that_saves_nothing(edgepipe: Any, tiny_vision: Path, tmp_path: Path) -> None:
    code, out, err = edgepipe("export", "--vision", tiny_vision, "--sram", "15K", "--formats", "tflite", "-o", "bundle")
    assert (code, err) == (0, "")
    assert "No model.split.tflite: in TFLite Micro no split saves 5%" in out
    assert "TFLite Micro's arena, predicted for a 64-bit host" in out
    assert not (tmp_path / "bundle/vision/tflite/model.split.tflite").exists()
    assert read_plan(tmp_path / "bundle/vision/plan.json").memory.tflite_micro.drop_in is None


def test_a_model_that_fits_whole_in_our_arena_only_has_a_drop_in(small_vision: Path, tmp_path: Path) -> None:
    """Our C runtime needs no patches for 50K, TFLite Micro does."""
    recipe = VisionRecipe(str(small_vision), sram="50K", formats=("tflite",))
    bundle = export(Recipe(vision=recipe), tmp_path / "bundle")
    component = bundle.manifest["components"]["vision"]
    assert set(component["formats"]["tflite"]) == {"whole", "split"}
    assert component["grid"] == [1, 1]
    assert bundle.manifest["validation"]["vision"]["split"] == {"images": 8, "differing_bytes": 0}


def test_validation_is_kept(vision_bundle: Path) -> None:
    found = Bundle.open(vision_bundle).manifest["validation"]["vision"]
    assert found["split"] == {"images": 8, "differing_bytes": 0}
    assert found["onnx"]["images"] == 8
    assert found["onnx"]["top1_agreement"] == 1
    assert found["onnx"]["max_split_stage_difference"] == found["onnx"]["max_split_output_difference"] == 0
    assert found["onnx"]["max_stage_difference"] <= 2, "one step in each of two roundings"


def test_the_card_tells_of_it(vision_bundle: Path) -> None:
    card = (vision_bundle / "README.md").read_text()
    assert "# tiny for the edge" in card
    assert "edgepipe run . --image photo.jpg" in card
    assert "24x20x3 image in" in card
    assert "differing bytes 0" in card
    assert "Hello" not in card


def test_a_split_that_computes_otherwise_is_no_bundle(
    tiny_vision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of another model than the whole: the very fault that validation is there for."""
    true_write = export_vision.WRITERS["tflite"]

    def write(graph: Any, model: Any, folder: Path) -> dict[str, Path]:
        files = true_write(graph, model, folder)
        content = bytearray(files["streamed"].read_bytes())
        weights = next(t.data for t in graph.tensors if t.data is not None).tobytes()
        place = content.index(weights)
        content[place : place + len(weights)] = bytes(len(weights))
        files["streamed"].write_bytes(content)
        return files

    monkeypatch.setattr(export_vision, "WRITERS", {**export_vision.WRITERS, "tflite": write})
    with pytest.raises(ValidationFailed, match="other bytes than whole on 8 images, expected 0"):
        export(Recipe(vision=VisionRecipe(str(tiny_vision), sram="15K")), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_without_a_budget_it_is_split_as_far_as_that_is_cheap(tiny_vision: Path, tmp_path: Path) -> None:
    bundle = export(Recipe(vision=VisionRecipe(str(tiny_vision))), tmp_path / "bundle")
    plan = read_plan(bundle.folder / "vision/plan.json")
    assert plan.tiles
    assert plan.memory.budget_bytes is None
    assert plan.memory.planned_bytes < plan.memory.whole_bytes
    assert plan.macs <= 1.1 * plan.whole_macs == 1.1 * read_tflite(tiny_vision).macs


def test_a_model_that_fits_stays_whole(edgepipe: Any, tiny_vision: Path, tmp_path: Path) -> None:
    code, out, err = edgepipe("export", "--vision", tiny_vision, "--sram", "1M", "-o", "bundle")
    assert (code, err) == (0, "")
    assert "image at once" in out
    assert "Runs as a whole" in out
    folder = tmp_path / "bundle"
    assert {path.name for path in (folder / "vision").rglob("*.*")} == {"plan.json", "model.tflite", "whole.onnx"}
    np.save(tmp_path / "image.npy", image(0))
    for engine in ("litert", "onnx"):
        assert edgepipe("run", folder, "--image", "image.npy", "--engine", engine)[0] == 0
        assert edgepipe("run", folder, "--verify", "--engine", engine)[0] == 0


def test_only_one_format(tiny_vision: Path, tmp_path: Path) -> None:
    """TFLite's kernels judge it all the same."""
    recipe = VisionRecipe(str(tiny_vision), sram="15K", formats=("onnx",))
    bundle = export(Recipe(vision=recipe), tmp_path / "bundle")
    assert not (bundle.folder / "vision/tflite").exists()
    assert bundle.manifest["validation"]["vision"]["split"]["differing_bytes"] == 0


def test_without_validation(tiny_vision: Path, tmp_path: Path) -> None:
    bundle = export(Recipe(vision=VisionRecipe(str(tiny_vision)), validate=False), tmp_path / "bundle")
    assert bundle.manifest["validation"] == {}
    assert "not validated" in (bundle.folder / "README.md").read_text()


@pytest.mark.slow
def test_every_format(edgepipe: Any, tiny_vision: Path, tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    names = "tflite,onnx,executorch"
    code, _, err = edgepipe("export", "--vision", tiny_vision, "--sram", "15K", "--formats", names, "-o", "bundle")
    assert code == 0, err
    found = Bundle.open(tmp_path / "bundle").manifest["validation"]["vision"]["executorch"]
    assert found["top1_agreement"] == 1
    assert found["max_split_stage_difference"] == found["max_split_output_difference"] == 0
    for engine in ("litert", "onnx", "executorch"):
        outcome = json.loads(edgepipe("run", "bundle", "--verify", "--engine", engine, "--json")[1])["vision"]
        assert outcome["engine"] == engine
        assert outcome["images"] == 8


def test_beside_decoders(edgepipe: Any, tiny_model: Any, tiny_vision: Path, tmp_path: Path) -> None:
    target = DecoderRecipe(source=str(tiny_model("llama")), precision="fp32")
    recipe = Recipe(target, validate=False, vision=VisionRecipe(str(tiny_vision), sram="15K"))
    bundle = export(recipe, tmp_path / "bundle").folder
    assert set(Bundle.open(bundle).manifest["components"]) == {"target", "vision"}
    np.save(tmp_path / "image.npy", image(0))
    assert edgepipe("run", bundle, "The fox", "-n", 2, "--raw")[0] == 0
    assert edgepipe("run", bundle, "--image", "image.npy")[0] == 0
    outcome = json.loads(edgepipe("run", bundle, "--verify", "--json")[1])
    assert outcome["components"] == ["target"]
    assert outcome["vision"]["max_difference"] == 0
    code, out, _ = edgepipe("run", bundle, "--verify", "--engine", "litert")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == [
        "verified target with onnx",
        "verified vision with litert",
    ]


@pytest.mark.parametrize(
    ("reference", "kind", "files"),
    [
        ("digits", "built-in", {}),
        ("mobilenet_v2:0.35:144", "built-in", {}),
        ("net.py:build", "py", {"net.py": hashlib.sha256(b"net").hexdigest()}),
    ],
)
def test_where_a_model_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, kind: str, files: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_bytes(b"net")
    nothing = Graph((), (), (), ())
    found = source_info(VisionRecipe(reference), VisionSource(nothing, "name", "MIT", None, ("note",), ()))
    assert (found.kind, found.name, found.licence, found.files, found.notes) == (kind, "name", "MIT", files, ("note",))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sram": "9K"}, DoesNotFit, r"no plan fits into 9.0 KiB.*the smallest that does is \d+K.*try --sram \d+K"),
        ({"flash": "1K"}, RecipeError, "no memory to plan for: give --sram"),
        ({"sram": "1M", "flash": "1K"}, DoesNotFit, "weights and requantisation tables take .* of flash"),
        ({"board": "arduino"}, EdgepipeError, "no board 'arduino'"),
        ({"labels": "labels.txt"}, RecipeError, "labels.txt has 2 labels: the model tells 4 classes apart"),
        ({"labels": "absent.txt"}, RecipeError, "absent.txt: No such file"),
        ({"labels": "binary.txt"}, RecipeError, "binary.txt is not UTF-8 text"),
        ({"mean": (0.0, 1.0), "std": (1.0,)}, RecipeError, "one for each of the 3 channels"),
        ({"weights": "weights.pt"}, EdgepipeError, "has weights of its own"),
    ],
)
def test_what_does_not_go_together(
    tiny_vision: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    error: type[EdgepipeError],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("labels.txt").write_text("one\ntwo\n")
    Path("binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(error, match=message) as caught:
        export(Recipe(vision=VisionRecipe(str(tiny_vision), **options)), tmp_path / "bundle")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("vision", "message"),
    [
        ({}, "vision.source is missing: expected text in quotes"),
        ({"source": "x", "srm": 1}, "unknown key vision.srm: did you mean vision.sram?"),
        ({"source": "x", "sram": "much"}, "vision.sram: 'much' is no size: expected something like 192K, 1M or 262144"),
        ({"source": "x", "mode": "fast"}, "vision.mode is 'fast': expected one of streamed, resident"),
        ({"source": "x", "formats": ["tf"]}, "vision.formats has 'tf': expected tflite, onnx, executorch, firmware"),
        (
            {"source": "x", "formats": []},
            "vision.formats is empty: expected one or more of tflite, onnx, executorch, firmware",
        ),
        ({"source": "x", "mean": [0.5]}, "vision.mean and std belong together: give both, or neither"),
        ({"source": "x", "mean": [0.5], "std": [0]}, "vision.mean and std need one value or one a channel, and std"),
        ({"source": "", "sram": 1}, "vision.source is '': expected a name, or to be left out"),
    ],
)
def test_mistakes_in_a_recipe(vision: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_from({"vision": vision})
    assert str(caught.value).startswith(message)


def test_a_recipe_reads_back() -> None:
    import tomllib

    vision = VisionRecipe("digits", sram="64K", formats=("onnx",), mean=(0.5,), std=(0.25,), seed=3)
    for recipe in (Recipe(vision=vision), Recipe(DecoderRecipe("x"), vision=VisionRecipe("y", sram=65536))):
        assert recipe_from(tomllib.loads(to_toml(recipe))) == recipe


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sram", "64K", "-o", "x"], "--sram is an option of a vision model, but no --vision MODEL is given"),
        (["--vision", "digits", "--precision", "int4", "-o", "x"], "no --target MODEL is given"),
        (["--vision", "digits"], "no place to write to"),
        (["--vision", "digits", "--mode", "fast", "-o", "x"], "'fast' is not one of"),
    ],
)
def test_wrong_usage(edgepipe: Any, arguments: list[str], message: str) -> None:
    code, _, err = edgepipe("export", *arguments)
    assert code == 2
    assert message in err


def test_what_dry_run_prints_is_a_recipe(edgepipe: Any, tmp_path: Path) -> None:
    options = ("--sram", "64K", "--formats", "tflite,executorch", "--labels", "l.txt", "--board", "nrf52840")
    printed = edgepipe("export", "--vision", "digits", *options, "--dry-run")[1]
    assert "[vision]" in printed
    assert "[target]" not in printed
    (tmp_path / "again.toml").write_text(printed)
    assert edgepipe("export", "--recipe", "again.toml", "--dry-run")[1] == printed


def test_a_source_that_is_not_there(edgepipe: Any) -> None:
    for name in ("absent.tflite", "nothing"):
        code, out, err = edgepipe("export", "--vision", name, "-o", "bundle")
        assert (code, out) == (1, "")
        assert name in err
        assert len(err.splitlines()) == 1


def test_without_the_extra(edgepipe: Any, tiny_vision: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    monkeypatch.setitem(sys.modules, "tflite_runtime", None)
    code, _, err = edgepipe("export", "--vision", tiny_vision, "-o", "bundle")
    assert code == 1
    assert "ai-edge-litert is not installed" in err


def test_a_damaged_plan_is_named(edgepipe: Any, vision_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(vision_bundle, tmp_path / "copy")
    plan = tmp_path / "copy/vision/plan.json"
    plan.write_text(plan.read_text()[:-9] + "}" * 9)
    with pytest.raises(BundleError, match=r"plan\.json is damaged"):
        Bundle.open(tmp_path / "copy")
    code, out, err = edgepipe("run", "copy", "--image", "image.png")
    assert (code, out) == (1, "")
    assert "plan.json is damaged" in err
