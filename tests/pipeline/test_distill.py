"""`edgepipe distill`: a draft that export takes, the same for the same seed, and never half a one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from edgepipe.errors import EdgepipeError, RecipeError, UnsupportedModel
from edgepipe.exporters.llm.distill.training import TrainingSettings
from edgepipe.exporters.llm.draft_folder import read_draft
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.sources import open_source
from edgepipe.pipeline.cli_distill import command
from edgepipe.pipeline.decode_options import DecodeOptions
from edgepipe.pipeline.distill import distill
from edgepipe.pipeline.distillation import Distillation
from edgepipe.pipeline.export import export
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.run import run

FILES = ["README.md", "config.json", "model.safetensors"]


def assert_texts_are_alike(target: str, draft: Path, bundle: Path) -> None:
    """With the draft, exported into ``bundle`` beside its target, and without."""
    pair = Recipe(
        target=DecoderRecipe(target, precision="fp32"),
        draft=DecoderRecipe(str(draft), precision="fp32"),
        validate=False,
    )
    export(pair, bundle)
    plain, speculative = (
        run(bundle, "The quick", DecodeOptions(drafter=drafter), max_new_tokens=20) for drafter in ("none", "model")
    )
    assert speculative.text == plain.text


@pytest.fixture
def recipe(tiny_distillation: Distillation) -> Distillation:
    return tiny_distillation


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_draft_is_what_export_and_run_take(recipe: Distillation, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    facts = distill(recipe, draft, tmp_path / "work")
    assert sorted(contents(draft)) == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "work"]

    found = read_draft(draft)
    assert (found.kind, found.target) == ("decoder", recipe.target)
    assert found.shapes["lm_head.weight"] == (120, 64)
    assert 0 <= facts["acceptance"]["greedy"] <= 1
    card = (draft / "README.md").read_text()
    assert f"| held-out greedy acceptance | {facts['acceptance']['greedy']:.3f}" in card

    assert_texts_are_alike(recipe.target, draft, tmp_path / "bundle")


def test_layers_of_their_own_types_are_cut_with_the_layers(
    recipe: Distillation, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    target = str(tiny_model("qwen3"))
    distill(replace(recipe, target=target), tmp_path / "draft", tmp_path / "work")
    assert len(read_draft(tmp_path / "draft").config["layer_types"]) == 1
    pair = Recipe(target=DecoderRecipe(target), draft=DecoderRecipe(str(tmp_path / "draft")))
    export(pair, tmp_path / "bundle")  # which compares both with transformers


def test_a_head_is_what_export_and_run_take(recipe: Distillation, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    distill(replace(recipe, kind="head", layers=None), draft, tmp_path / "work")
    assert read_draft(draft).kind == "head"
    assert_texts_are_alike(recipe.target, draft, tmp_path / "bundle")


def test_a_seed_gives_one_draft(recipe: Distillation, tmp_path: Path) -> None:
    drafts = []
    for name, seed in (("one", 0), ("other", 0), ("another", 1)):
        training = replace(recipe.training, seed=seed)
        distill(replace(recipe, seed=seed, training=training), tmp_path / name, tmp_path / f"{name}.work")
        drafts.append((tmp_path / name / "model.safetensors").read_bytes())
    assert drafts[0] == drafts[1] != drafts[2]


def test_the_draft_starts_from_the_chosen_layers(recipe: Distillation, tmp_path: Path) -> None:
    """So few steps, so small, that the weights are still those of the layer, rounded to int8."""
    training = TrainingSettings(passes=0.001, rate=1e-9)
    for layer in (0, 1):
        folder = tmp_path / f"draft{layer}"
        distill(replace(recipe, layers=(layer,), training=training), folder, tmp_path / f"work{layer}")
        found = read_draft(folder).tensor("model.layers.0.mlp.down_proj.weight")
        expected = open_source(recipe.target).tensor(f"model.layers.{layer}.mlp.down_proj.weight")
        np.testing.assert_allclose(found, expected, atol=np.abs(expected).max() / 127)


@pytest.mark.parametrize("kind", ["decoder", "head"])
def test_a_draft_goes_on_from_another(recipe: Distillation, tmp_path: Path, kind: str) -> None:
    """So few steps, so small, that its weights are still those of the other."""
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    recipe = replace(recipe, kind=kind)
    first = distill(recipe, earlier, tmp_path / "work")
    still = TrainingSettings(passes=0.001, rate=1e-9, seed=1)
    going_on = replace(recipe, start=str(earlier), layers=None, output_vocab_size=None, training=still, seed=1)
    facts = distill(going_on, later, tmp_path / "work of its own")

    before, after = read_draft(earlier), read_draft(later)
    np.testing.assert_array_equal(after.output_token_ids, before.output_token_ids)
    assert after.shapes == before.shapes
    for name in before.shapes:
        expected = before.tensor(name)
        np.testing.assert_allclose(after.tensor(name), expected, atol=1e-3 * np.abs(expected).max(), err_msg=name)
    assert (facts["layers"], facts["start"]["training_tokens"]) == (first["layers"], first["training_tokens"])
    assert (
        f"| goes on from | earlier, trained on {first['training_tokens']} tokens" in (later / "README.md").read_text()
    )

    third = distill(replace(going_on, start=str(later), seed=2), tmp_path / "third", tmp_path / "third.work")
    assert third["start"]["start"] == facts["start"]
    assert "seed 1; before from earlier, trained on" in (tmp_path / "third" / "README.md").read_text()


def test_only_a_draft_of_the_same_kind_and_target_can_be_gone_on_from(
    recipe: Distillation, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    distill(recipe, tmp_path / "earlier", tmp_path / "work")
    start = replace(recipe, start=str(tmp_path / "earlier"), layers=None, output_vocab_size=None)
    other = tiny_model("qwen2", hidden_size=32)
    for options, message in (
        ({"kind": "head"}, "earlier, of kind decoder: give --kind decoder"),
        ({"start": recipe.target}, "a whole model: expected a draft"),
        ({"start": str(tmp_path / "none")}, "none does not exist"),
        ({"target": str(other)}, "distil a draft from this target"),
        ({"layers": (0,)}, "are those of .*earlier, the start: leave them out"),
        ({"output_vocab_size": 9}, "are those of .*earlier, the start: leave them out"),
    ):
        with pytest.raises(EdgepipeError, match=message):
            distill(replace(start, **options), tmp_path / "later", tmp_path / "later.work")
    config = json.loads((tmp_path / "earlier/config.json").read_text())
    for layers in (None, [], [0, 1], [7], ["0"], [[0]]):
        config["edgepipe"]["layers"] = layers
        (tmp_path / "earlier/config.json").write_text(json.dumps(config))
        with pytest.raises(UnsupportedModel, match="was cut from layers"):
            distill(start, tmp_path / "later", tmp_path / "later.work")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier", "work"]


def test_a_domain_text_is_continued_without_a_chat(recipe: Distillation, tmp_path: Path) -> None:
    text = tmp_path / "manual.txt"
    text.write_text(" ".join(f"Turn screw {number} by {number % 7} turns." for number in range(200)))
    facts = distill(replace(recipe, text=text), tmp_path / "draft", tmp_path / "work")
    assert facts["prompts"].startswith("manual.txt sha256:")


def test_another_target_of_the_same_name_is_another(recipe: Distillation, tmp_path: Path) -> None:
    """In a folder of work whose samples are refused, and again when they were removed as the error says."""
    work = tmp_path / "work"
    distill(recipe, tmp_path / "one", work)
    target = tmp_path / Path(recipe.target).name
    shutil.copytree(recipe.target, target)
    tensors = load_file(target / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"][::-1].copy()
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    other = replace(recipe, target=str(target))
    with pytest.raises(RecipeError, match=r"holds samples with target .* give another --work"):
        distill(other, tmp_path / "other", work)
    shutil.rmtree(work / "samples")
    distill(other, tmp_path / "other", work)
    distill(other, tmp_path / "alone", tmp_path / "alone.work")
    name = "model.safetensors"
    assert (tmp_path / "other" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert (tmp_path / "other" / name).read_bytes() != (tmp_path / "one" / name).read_bytes()


def test_a_name_that_no_folder_can_have_is_refused_at_once(recipe: Distillation, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        distill(recipe, tmp_path / ("d" * 300), tmp_path / "work")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": (0, 7)}, "layers is 0,7: expected layers of the target, 0 to 1"),
        ({"layers": (1, 0)}, "ascending"),
        ({"kind": "head", "layers": (0, 1)}, "layers is 0,1: expected one"),
        ({"target": "./nothing"}, "does not exist"),
    ],
)
def test_what_cannot_be_distilled_is_said_at_once(
    recipe: Distillation, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(EdgepipeError, match=message):
        distill(replace(recipe, **options), tmp_path / "draft", tmp_path / "work")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "tree"}, "kind is tree: expected decoder or head"),
        ({"output_vocab_size": 0}, "output_vocab_size is 0: expected 1 or more"),
        ({"temperatures": ()}, "temperatures"),
        *(({"temperatures": (0.5, value)}, "temperatures") for value in (-1.0, float("nan"), float("inf"))),
        ({"sample_tokens": 0}, "sample_tokens is 0"),
        ({"training": TrainingSettings(passes=0)}, "passes is 0"),
        *(({"training": TrainingSettings(passes=value)}, "passes is") for value in (float("nan"), float("inf"))),
        *(({"training": TrainingSettings(minutes=value)}, f"minutes is {value}: ") for value in (-1, 0, float("nan"))),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is"),
        *(({"threads": value}, f"threads is {value}: expected 1 to .* cores") for value in (0, 10**6)),
        ({"prompts": Path("a"), "text": Path("b")}, "both"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Distillation("model", **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model"], "Missing option '--output'"),
        (["model", "-o", "draft", "--layers", "first"], "'first' is not a list of numbers, as in 0,1"),
        (["model", "-o", "draft", "--temperatures", "0,warm"], "as in 0,0.7"),
        (["model", "-o", "draft", "--prompts", "not-there.txt"], "'not-there.txt' does not exist"),
    ],
)
def test_usage_errors_are_one_line(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_and_goes_on_to_the_same_draft(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """SIGKILL while sampling and while training, then to the end; compared with a run that was left alone."""
    options = ["--samples", "6000", "--passes", "3", "--vocabulary", "150", "--threads", "1", "--json"]

    def start(name: str) -> subprocess.Popen[bytes]:
        arguments = ["distill", str(tiny_model("llama")), "-o", str(tmp_path / name), *options]
        return subprocess.Popen([sys.executable, "-m", "edgepipe", *arguments], stdout=subprocess.PIPE)

    whole = start("whole")
    out, _ = whole.communicate()
    assert whole.returncode == 0
    assert json.loads(out)["kind"] == "decoder"

    work = tmp_path / "killed.work"
    for sign in (work / "samples" / "held-out.npz", work / "samples" / "00000.npz"):
        process = start("killed")
        while not sign.exists():
            time.sleep(0.02)
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "killed").exists()
    assert start("killed").wait() == 0
    name = "model.safetensors"
    assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
