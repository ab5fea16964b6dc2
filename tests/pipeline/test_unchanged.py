"""An export over a bundle: what would be written again as it is, is taken over; all else is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import edgepipe
from edgepipe.errors import ValidationFailed
from edgepipe.exporters.llm.recipe import DecoderRecipe, Thresholds
from edgepipe.exporters.llm.static_shape import StaticShape
from edgepipe.exporters.sources import open_draft, open_source
from edgepipe.pipeline import export as export_job
from edgepipe.pipeline import export_decoder, unchanged
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.bundle_writer import write_bundle
from edgepipe.pipeline.cli_export import command
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.unchanged import Origin

pytest.importorskip("torch")

TinyModel = Callable[..., Path]
Work = dict[str, list[str]]
DATA = "target/onnx/model.onnx.data"


def recipe(
    target: Path, draft: Path | None = None, formats: tuple[str, ...] = ("onnx",), check: bool = False, **changes: Any
) -> Recipe:
    return Recipe(
        DecoderRecipe(str(target), **{"precision": "fp32", **changes}),
        DecoderRecipe(str(draft), precision="fp32") if draft else None,
        validate=check,
        formats=formats,
        static=StaticShape((1, 3), 8),
    )


def without_times(bundle: Bundle) -> dict[str, Any]:
    """What edgepipe.json says, but for when, how long, and in how much memory."""
    manifest = deepcopy(bundle.manifest)
    del manifest["created"]
    for component in manifest["components"].values():
        for key in ("seconds", "peak_rss_bytes", "taken_over"):
            del component["export"][key]
        for entry in component["formats"].values():
            del entry["export_seconds"]
    return manifest


def taken_over(bundle: Bundle) -> dict[str, list[str]]:
    return {name: component["export"]["taken_over"] for name, component in bundle.manifest["components"].items()}


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """What was done, in order, as "target onnx" of each: the work itself is as ever."""
    done: Work = {"written": [], "validated": [], "recorded": []}
    write, validate, record = (
        getattr(export_decoder, name) for name in ("write_format", "validate", "write_reference")
    )

    def writing(form: str, weights: Any, recipe: Any, shape: Any, folder: Path, *others: Any) -> Any:
        done["written"].append(f"{folder.name} {form}")
        return write(form, weights, recipe, shape, folder, *others)

    def validating(weights: Any, folder: Path, models: Any, *others: Any) -> Any:
        done["validated"] += [f"{folder.name} {form}" for form in models]
        return validate(weights, folder, models, *others)

    def recording(bundle: Path, name: str, components: Any, form: str) -> None:
        done["recorded"].append(f"{name} {form}")
        record(bundle, name, components, form)

    monkeypatch.setattr(export_decoder, "write_format", writing)
    monkeypatch.setattr(export_decoder, "validate", validating)
    monkeypatch.setattr(export_decoder, "write_reference", recording)
    return done


@pytest.fixture(scope="module")
def original(tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A validated bundle of a target and a draft folder. Tests must not write into it."""
    folder = tmp_path_factory.mktemp("original") / "bundle"
    return edgepipe.export(recipe(tiny_model("llama"), tiny_draft("llama"), check=True), folder).folder


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(original, tmp_path / "bundle"))


def test_nothing_is_written_twice(
    bundle: Path, original: Path, tiny_model: TinyModel, tiny_draft: TinyModel, work: Work
) -> None:
    again = edgepipe.export(recipe(tiny_model("llama"), tiny_draft("llama"), check=True), bundle, force=True)
    assert work == {"written": [], "validated": [], "recorded": []}
    assert taken_over(again) == {"target": ["onnx"], "draft": ["onnx"]}
    assert without_times(again) == without_times(Bundle.open(original))
    again.verify()
    once_more = edgepipe.export(recipe(tiny_model("llama"), tiny_draft("llama"), check=True), bundle, force=True)
    assert taken_over(once_more) == taken_over(again)
    assert work["written"] == []


def test_what_was_taken_over_is_what_a_fresh_export_writes(
    bundle: Path, tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path
) -> None:
    same = recipe(tiny_model("llama"), tiny_draft("llama"), check=True)
    again, fresh = edgepipe.export(same, bundle, force=True), edgepipe.export(same, tmp_path / "fresh")
    assert taken_over(fresh) == {"target": [], "draft": []}
    assert again.manifest["files"] == fresh.manifest["files"]
    assert without_times(again) == without_times(fresh)


def test_a_bundle_elsewhere_is_no_cache(
    original: Path, tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path, work: Work
) -> None:
    edgepipe.export(recipe(tiny_model("llama"), tiny_draft("llama")), tmp_path / "fresh")
    assert work["written"] == ["target onnx", "draft onnx"]


def test_another_draft_leaves_the_target_as_it_is(
    bundle: Path, tiny_model: TinyModel, tiny_draft: TinyModel, work: Work
) -> None:
    other = recipe(tiny_model("llama"), tiny_draft("llama", seed=5), check=True)
    edgepipe.export(other, bundle, force=True)
    assert work == {key: ["draft onnx"] for key in work}
    alone = edgepipe.export(recipe(tiny_model("llama"), check=True), bundle, force=True)
    assert work["written"] == ["draft onnx"]
    assert set(alone.manifest["validation"]) == {"target"}
    assert not (bundle / "draft").exists()
    assert not (bundle / "reference/draft.json").exists()


def test_another_target_changes_the_draft_that_has_its_embeddings(
    bundle: Path, tiny_model: TinyModel, tiny_draft: TinyModel, work: Work
) -> None:
    edgepipe.export(recipe(tiny_model("llama", seed=5), tiny_draft("llama")), bundle, force=True)
    assert work["written"] == ["target onnx", "draft onnx"]


@pytest.mark.parametrize(
    "changes",
    [{"precision": "int8"}, {"head_precision": "int8"}, {"block_size": 64}, {"symmetric": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_another_quantisation_is_written(
    bundle: Path, tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path, work: Work, changes: dict[str, Any]
) -> None:
    other = recipe(tiny_model("llama"), tiny_draft("llama"), **changes)
    over = edgepipe.export(other, bundle, force=True)
    assert work["written"] == ["target onnx"]
    assert over.manifest["files"] == edgepipe.export(other, tmp_path / "fresh").manifest["files"]


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "generation_config.json"])
def test_a_source_that_changes_in_place_is_written(
    tiny_model: TinyModel, tmp_path: Path, work: Work, file: str
) -> None:
    source = Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))
    edgepipe.export(recipe(source, check=True), tmp_path / "bundle")
    if file == "model.safetensors":
        content = bytearray((source / file).read_bytes())
        content[-1] ^= 0x01
        (source / file).write_bytes(content)
    else:
        (source / file).write_text((source / file).read_text() + "\n")
    edgepipe.export(recipe(source, check=True), tmp_path / "bundle", force=True)
    assert work == {key: ["target onnx"] * 2 for key in work}


def test_where_the_source_lies_does_not_matter(tiny_model: TinyModel, tmp_path: Path, work: Work) -> None:
    edgepipe.export(recipe(tiny_model("llama")), tmp_path / "bundle")
    moved = shutil.copytree(tiny_model("llama"), tmp_path / tiny_model("llama").name)
    edgepipe.export(recipe(Path(moved)), tmp_path / "bundle", force=True)
    assert work["written"] == ["target onnx"]


def test_another_tool_or_another_code_writes_anew(
    bundle: Path, tiny_model: TinyModel, tiny_draft: TinyModel, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = recipe(tiny_model("llama"), tiny_draft("llama"))
    monkeypatch.setattr(export_job, "_installed", lambda name: "7.0")
    edgepipe.export(same, bundle, force=True)
    assert work["written"] == ["target onnx", "draft onnx"]
    edgepipe.export(same, bundle, force=True)
    assert len(work["written"]) == 2
    monkeypatch.setattr(unchanged, "code_digest", lambda: "edited")
    edgepipe.export(same, bundle, force=True)
    assert len(work["written"]) == 4


def test_every_part_of_an_origin_counts() -> None:
    shape = StaticShape()
    origin = Origin("model 1", {"precision": "int4"}, False, {"a": "1"}, {"onnx": "1"}, {"onnx": "1.0"}, "1")
    others = [
        replace(origin, source="model 2"),
        replace(origin, recipe={"precision": "int8"}),
        replace(origin, gives_features=True),
        replace(origin, texts={"a": "2"}),
        replace(origin, read={"onnx": "2"}),
        replace(origin, tools={"onnx": "1.1"}),
        replace(origin, code="2"),
    ]
    digests = [one.digest("tflite", shape) for one in (origin, *others)]
    digests += [origin.digest(*case) for case in (("tflite", None), ("onnx", shape), ("tflite", StaticShape((1, 9))))]
    digests.append(origin.digest("tflite", StaticShape(chunk=8)))
    assert len(set(digests)) == len(digests) == len(Origin.__dataclass_fields__) + 5
    assert origin.digest("tflite", StaticShape()) == digests[0]


def test_a_drafts_identity_is_its_content_and_its_target(
    tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_draft("llama"), tmp_path / "draft"))

    def identity(**changes: Any) -> str:
        return open_draft(str(folder), open_source(str(tiny_model("llama", **changes)))).identity

    first = identity()
    assert identity() == first
    assert identity(seed=5) != first
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config, indent=7))
    second = identity()
    assert second != first
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 0x01
    (folder / "model.safetensors").write_bytes(content)
    assert identity() not in (first, second)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (DATA, "flipped"),
        ("reference/target.json", "flipped"),
        (DATA, "truncated"),
        ("target/genai_config.json", "missing"),
    ],
)
def test_damaged_files_are_written_anew(
    bundle: Path, original: Path, tiny_model: TinyModel, tiny_draft: TinyModel, work: Work, file: str, damage: str
) -> None:
    content = bytearray((bundle / file).read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 0x01
        (bundle / file).write_bytes(content)
    elif damage == "truncated":
        (bundle / file).write_bytes(content[:-1])
    else:
        (bundle / file).unlink()
    whole = edgepipe.export(recipe(tiny_model("llama"), tiny_draft("llama"), check=True), bundle, force=True)
    # Sizes are looked at first, and a bundle that lacks something is trusted in nothing.
    damaged = ["target onnx"] if damage == "flipped" else ["target onnx", "draft onnx"]
    assert work == dict.fromkeys(work, damaged)
    assert whole.manifest["files"] == Bundle.open(original).manifest["files"]
    whole.verify()


@pytest.mark.parametrize(
    "unsaid",
    [
        ("written_from", "files", "notes"),
        *[(key,) for key in ("files", "notes", "precision", "bytes", "export_seconds")],
    ],
    ids=lambda unsaid: unsaid[0],
)
def test_a_bundle_that_says_less_is_written_anew(
    bundle: Path, tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path, work: Work, unsaid: tuple[str, ...]
) -> None:
    """As that of an older edgepipe does."""
    with write_bundle(tmp_path / "older") as draft:
        draft.manifest = {
            key: value for key, value in Bundle.open(bundle).manifest.items() if key not in ("bundle_id", "files")
        }
        for folder in ("target", "draft", "reference"):
            shutil.copytree(bundle / folder, draft.folder / folder)
        for component in draft.manifest["components"].values():
            for key in unsaid:
                del component["formats"]["onnx"][key]
    edgepipe.export(recipe(tiny_model("llama"), tiny_draft("llama")), tmp_path / "older", force=True)
    assert work["written"] == ["target onnx", "draft onnx"]


def test_a_manifest_of_another_schema_is_written_anew(
    bundle: Path, tiny_model: TinyModel, tiny_draft: TinyModel, work: Work
) -> None:
    path = bundle / "edgepipe.json"
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps(content | {"schema_version": content["schema_version"] + 1}))
    edgepipe.export(recipe(tiny_model("llama"), tiny_draft("llama")), bundle, force=True)
    assert work["written"] == ["target onnx", "draft onnx"]


def test_validation_comes_and_goes(
    bundle: Path, original: Path, tiny_model: TinyModel, tiny_draft: TinyModel, work: Work
) -> None:
    validated = recipe(tiny_model("llama"), tiny_draft("llama"), check=True)
    without = edgepipe.export(replace(validated, validate=False), bundle, force=True)
    assert without.manifest["validation"] == {}
    assert work["validated"] == []
    again = edgepipe.export(validated, bundle, force=True)
    assert work == {"written": [], "validated": ["target onnx", "draft onnx"], "recorded": []}
    assert without_times(again) == without_times(Bundle.open(original))


def test_other_limits_are_validated_again(
    bundle: Path, tiny_model: TinyModel, tiny_draft: TinyModel, work: Work
) -> None:
    def limited(**limits: float) -> Bundle:
        pair = recipe(tiny_model("llama"), tiny_draft("llama"), check=True, thresholds=Thresholds(**limits))
        return edgepipe.export(pair, bundle, force=True)

    looser = limited(max_perplexity_ratio=1.5)
    assert work == {"written": [], "validated": ["target onnx"], "recorded": []}
    assert looser.manifest["validation"]["target"]["thresholds"]["max_perplexity_ratio"] == 1.5
    before = {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    with pytest.raises(ValidationFailed):
        limited(max_abs_logit=0.0)
    assert {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()} == before


def test_a_head_asks_its_target_for_features(
    bundle: Path, tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path, work: Work
) -> None:
    with_head = recipe(tiny_model("llama"), tiny_draft("llama", kind="head"))
    edgepipe.export(with_head, bundle, force=True)
    assert work["written"] == ["target onnx", "draft onnx"]
    edgepipe.export(with_head, bundle, force=True)
    assert len(work["written"]) == 2
    coarser = recipe(tiny_model("llama"), tiny_draft("llama", kind="head"), precision="int8")
    over = edgepipe.export(coarser, bundle, force=True)
    assert work["recorded"][2:] == ["target onnx", "draft onnx"]
    assert over.manifest["files"] == edgepipe.export(coarser, tmp_path / "fresh").manifest["files"]


def test_the_old_bundle_shares_nothing_with_the_new_one(
    bundle: Path, tiny_model: TinyModel, tiny_draft: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What writes into files that were taken over, and then fails, leaves the bundle that is in use as it was."""
    before = {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}

    def spoiling(form: str, weights: Any, recipe: Any, shape: Any, folder: Path, *others: Any) -> Any:
        for path in (folder.parent / "target").rglob("*"):
            if path.is_file():
                path.write_bytes(b"spoilt")
        raise ZeroDivisionError

    monkeypatch.setattr(export_decoder, "write_format", spoiling)
    with pytest.raises(ZeroDivisionError):
        edgepipe.export(recipe(tiny_model("llama"), tiny_draft("llama", seed=5)), bundle, force=True)
    assert {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()} == before


def test_the_command_says_what_it_took_over(
    original: Path, tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path
) -> None:
    bundle = shutil.copytree(original, tmp_path / "bundle")
    arguments = ["--target", str(tiny_model("llama")), "--precision", "fp32", "-o", str(bundle), "--force"]
    done = CliRunner().invoke(command, [*arguments, "--draft", str(tiny_draft("llama", seed=5))])
    assert done.exit_code == 0, done.output
    target, draft = done.stdout.split("\ndraft: ")
    assert "MB, unchanged and taken over; against its source" in target
    assert "taken over" not in draft


@pytest.mark.slow
def test_formats_come_and_go(tiny_model: TinyModel, tmp_path: Path, work: Work) -> None:
    for module in ("onnx", "ai_edge_litert", "executorch"):
        pytest.importorskip(module)
    source, bundle, formats = tiny_model("llama"), tmp_path / "bundle", ("onnx", "tflite", "executorch")
    edgepipe.export(recipe(source, formats=("onnx",), check=True), bundle)
    edgepipe.export(recipe(source, formats=("onnx", "tflite"), check=True), bundle, force=True)
    whole = edgepipe.export(recipe(source, formats=formats, check=True), bundle, force=True)
    assert work == {key: [f"target {form}" for form in formats] for key in work}
    assert taken_over(whole) == {"target": ["onnx", "tflite"]}
    assert list(whole.manifest["validation"]["target"]["formats"]) == list(formats)
    assert without_times(whole) == without_times(
        edgepipe.export(recipe(source, formats=formats, check=True), tmp_path / "fresh")
    )
    assert len(work["written"]) == 6

    wider = replace(recipe(source, formats=formats, check=True), static=StaticShape((1, 5), 8))
    assert taken_over(edgepipe.export(wider, bundle, force=True)) == {"target": ["onnx", "executorch"]}
    assert work["written"][6:] == work["validated"][6:] == work["recorded"][6:] == ["target tflite"]
    content = np.fromfile(bundle / "target/tflite/model.tflite", np.uint8)
    content[content.size // 2] ^= 1
    content.tofile(bundle / "target/tflite/model.tflite")
    edgepipe.export(wider, bundle, force=True).verify()
    assert work["written"][7:] == ["target tflite"]

    fewer = edgepipe.export(recipe(source, formats=("executorch",), check=True), bundle, force=True)
    assert taken_over(fewer) == {"target": ["executorch"]}
    assert list(fewer.manifest["validation"]["target"]["formats"]) == ["executorch"]
    assert {path.parent.name for path in bundle.rglob("*.json")} == {"bundle", "target", "reference"}
    assert not (bundle / "target/onnx").exists()
    assert not (bundle / "target/genai_config.json").exists()
