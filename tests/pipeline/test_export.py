"""`edgepipe export` as a whole, on tiny random models."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgepipe
from edgepipe.errors import BundleError, EdgepipeError, TokenizerError, UnsupportedModel, ValidationFailed
from edgepipe.exporters.llm.recipe import DecoderRecipe, Thresholds
from edgepipe.exporters.llm.static_shape import StaticShape
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.bundle_writer import write_bundle
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.session import DecodeOptions, Session
from edgepipe.pipeline.verify import verify_reference

pytest.importorskip("torch")

TinyModel = Callable[..., Path]

# Runs `edgepipe` as on a device: what only a workstation has cannot be imported.
ON_DEVICE = """
import sys
absent = "torch transformers onnx tokenizers gguf optimum safetensors sentencepiece huggingface_hub scipy"
sys.modules.update(dict.fromkeys(absent.split()))
from edgepipe.pipeline.cli import main
main(sys.argv[1:])
"""


def recipe(source: Path, draft: Path | None = None, **changes: Any) -> Recipe:
    target = DecoderRecipe(str(source), precision="fp32", **changes)
    return Recipe(target, DecoderRecipe(str(draft), precision="fp32") if draft else None)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def exported(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a target and a draft. Tests must not write into it."""
    folder = tmp_path_factory.mktemp("exported")
    pair = recipe(tiny_model("llama"), tiny_model("llama", num_hidden_layers=1, seed=1))
    return edgepipe.export(pair, folder / "bundle").folder


@pytest.fixture
def other_tokenizer(tiny_model: TinyModel, tmp_path: Path) -> Path:
    """The tiny model again, with two tokens of its vocabulary swapped."""
    folder = tmp_path / "other"
    shutil.copytree(tiny_model("llama"), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_a_bundle_describes_itself(exported: Path, tiny_model: TinyModel) -> None:
    manifest = Bundle.open(exported).manifest
    assert manifest["edgepipe_version"] == edgepipe.__version__
    assert set(manifest["components"]) == set(manifest["validation"]) == {"target", "draft"}
    config = json.loads((tiny_model("llama") / "config.json").read_text())
    target = manifest["components"]["target"]
    assert target["spec"]["num_layers"] == config["num_hidden_layers"]
    assert target["spec"]["vocab_size"] == config["vocab_size"]
    assert set(target["precision"].values()) == {"fp32"}
    assert target["export"]["peak_rss_bytes"] > 2**20
    assert manifest["recipe"]["target"]["source"] == str(tiny_model("llama"))
    for name in ("target", "draft"):
        component = manifest["components"][name]
        files = component["formats"]["onnx"]
        assert files["bytes"] == (exported / name / "onnx/model.onnx.data").stat().st_size
        assert files["export_seconds"] > 0
        for path in (files["plain"], files["scored"], component["tokenizer"], f"reference/{name}.json"):
            assert (exported / path).is_file()
        for path in ("config.json", "tokenizer_config.json", "genai_config.json", "onnx/model.onnx.data"):
            assert f"{name}/{path}" in manifest["files"]


def test_the_model_card_names_source_and_figures(exported: Path, tiny_model: TinyModel) -> None:
    card = (exported / "README.md").read_text()
    assert tiny_model("llama").name in card
    assert "perplexity ratio" in card


def test_golden_outputs_are_those_of_transformers(exported: Path, tiny_model: TinyModel) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float32)
    golden = json.loads((exported / "reference/target.json").read_text())
    for case in golden["cases"]:
        ids = torch.tensor([case["prompt_ids"] + case["greedy_ids"]])
        with torch.inference_mode():
            logits = model(ids).logits[0].numpy()
        first = len(case["prompt_ids"]) - 1
        top = case["logits_top"]
        np.testing.assert_allclose(logits[first, top["ids"]], top["values"], atol=2e-3)
        assert top["values"][0] == pytest.approx(logits[first].max(), abs=2e-3)
        assert top["values"] == sorted(top["values"], reverse=True)
        for step, token in enumerate(case["greedy_ids"]):
            row = logits[first + step]
            assert row.max() - row[token] < 4e-3


def test_a_device_without_workstation_packages_runs_it(exported: Path, tmp_path: Path) -> None:
    def on_device(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", ON_DEVICE, "run", str(exported), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    verified = on_device("--verify", "--json")
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["verified"] is True
    answer = on_device("def add(a, b):", "--raw", "-n", "5", "--json")
    assert answer.returncode == 0, answer.stderr
    assert len(json.loads(answer.stdout)["tokens"]) == 5


def test_a_device_that_exports_is_told_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_DEVICE, "export", "--target", "model", "-o", "bundle"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "error: onnx is not installed: pip install 'edgepipe[export]'\n"


def test_verify_notices_another_model(exported: Path, tmp_path: Path) -> None:
    """Golden outputs of the target, replayed through the draft's weights, cannot pass."""
    manifest = Bundle.open(exported).manifest
    with write_bundle(tmp_path / "forged") as draft:
        for folder in ("target", "draft", "reference"):
            shutil.copytree(exported / folder, draft.folder / folder)
        shutil.copy(exported / "reference/draft.json", draft.folder / "reference/target.json")
        draft.manifest = {key: value for key, value in manifest.items() if key not in ("bundle_id", "files")}
    session = Session(Bundle.open(tmp_path / "forged"), DecodeOptions())
    with pytest.raises(ValidationFailed, match="golden"):
        verify_reference(session)


def test_progress_goes_from_nothing_to_all(tiny_model: TinyModel, tmp_path: Path) -> None:
    told: list[float] = []
    pair = recipe(tiny_model("llama"), tiny_model("llama", num_hidden_layers=1, seed=1))
    edgepipe.export(pair, tmp_path / "bundle", progress=lambda fraction, step: told.append(fraction))
    assert told == sorted(told)
    assert 0 <= told[0] < told[-1] == 1


def test_a_signal_whose_exception_gets_lost_ends_it_at_the_next_step(tiny_model: TinyModel, tmp_path: Path) -> None:
    steps = []

    def told(fraction: float, step: str) -> None:
        steps.append(step)
        with contextlib.suppress(SystemExit):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as end:
        edgepipe.export(recipe(tiny_model("llama")), tmp_path / "bundle", progress=told)
    assert (end.value.code, len(steps)) == (143, 1)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("shape", [StaticShape((1, 513), 64), StaticShape((1, 5), 513)])
def test_a_forward_wider_than_the_context_is_refused(tiny_model: TinyModel, tmp_path: Path, shape: StaticShape) -> None:
    source = tiny_model("llama")
    wide = Recipe(DecoderRecipe(str(source)), formats=("onnx", "tflite"), static=shape)
    message = f"{source.name} has a context of 512 tokens, and a forward of 513 is asked for: expected"
    with pytest.raises(UnsupportedModel, match=message):
        edgepipe.export(wide, tmp_path / "bundle")
    assert names(tmp_path) == set()
    StaticShape((1, 512), 512).require_context("model", 512)


def test_a_draft_with_another_tokenizer_is_refused(
    tiny_model: TinyModel, other_tokenizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(TokenizerError, match="different tokenizers"):
        edgepipe.export(recipe(tiny_model("llama"), other_tokenizer), tmp_path / "out" / "bundle")
    assert names(tmp_path / "out") == set()


@pytest.mark.parametrize("part", ["target", "draft"])
@pytest.mark.parametrize("ids_beyond", [1, 100])
def test_token_ids_beyond_the_models_table_are_refused(
    tiny_model: TinyModel, tmp_path: Path, part: str, ids_beyond: int
) -> None:
    from transformers import AutoTokenizer

    folder = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), folder)
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    spare = rows - len(tokenizer)
    tokenizer.add_tokens([f"<new{index}>" for index in range(spare + ids_beyond)])
    tokenizer.save_pretrained(folder)
    message = f"ids up to {rows + ids_beyond - 1}, the model's table {rows} rows: resize the embeddings"
    pair = recipe(folder) if part == "target" else recipe(tiny_model("llama"), folder)
    (tmp_path / "out").mkdir()
    with pytest.raises(UnsupportedModel, match=message) as refusal:
        edgepipe.export(pair, tmp_path / "out" / "bundle")
    assert str(folder) in str(refusal.value)
    assert names(tmp_path / "out") == set()


def test_a_tokenizer_may_fill_the_models_table(tiny_model: TinyModel, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), folder)
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"<new{index}>" for index in range(rows - len(tokenizer))])
    tokenizer.save_pretrained(folder)
    target = DecoderRecipe(str(folder), precision="fp32")
    assert edgepipe.export(Recipe(target, validate=False), tmp_path / "bundle").manifest["components"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", ""),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", "[" * 100_000),
        ("chat_template.jinja", "{% for message in messages %}"),
        ("chat_template.jinja", "{{ messages | nosuchfilter }}"),
        ("chat_template.jinja", "{{ }}"),
    ],
)
def test_a_broken_tokenizer_is_refused_by_the_name_of_its_source(
    tiny_model: TinyModel, tmp_path: Path, file: str, text: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), folder)
    (folder / file).write_text(text)
    (tmp_path / "out").mkdir()
    with pytest.raises(TokenizerError) as refusal:
        edgepipe.export(recipe(folder), tmp_path / "out" / "bundle")
    message = str(refusal.value)
    assert message.startswith(f"{folder}: {file}")
    assert "partial" not in message
    assert "\n" not in message
    assert names(tmp_path / "out") == set()


def test_a_miss_of_validation_leaves_no_bundle(tiny_model: TinyModel, tmp_path: Path) -> None:
    strict = recipe(tiny_model("llama"), thresholds=Thresholds(max_abs_logit=0.0))
    with pytest.raises(ValidationFailed):
        edgepipe.export(strict, tmp_path / "bundle")
    assert names(tmp_path) == set()


def test_without_validation_a_miss_is_not_looked_for(tiny_model: TinyModel, tmp_path: Path) -> None:
    target = DecoderRecipe(str(tiny_model("llama")), precision="fp32", thresholds=Thresholds(max_abs_logit=0.0))
    bundle = edgepipe.export(Recipe(target, validate=False), tmp_path / "bundle")
    assert bundle.manifest["validation"] == {}
    assert "not validated" in (bundle.folder / "README.md").read_text()


def test_a_taken_name_is_refused_before_the_source_is_read(exported: Path) -> None:
    with pytest.raises(BundleError, match="--force"):
        edgepipe.export(recipe(Path("no/such/model")), exported)
    with pytest.raises(EdgepipeError, match="no/such/model"):
        edgepipe.export(recipe(Path("no/such/model")), exported, force=True)
    Bundle.open(exported)


def command(source: Path, destination: Path, *options: str) -> list[str]:
    verb = [sys.executable, "-m", "edgepipe", "export", "--target", str(source), "-o", str(destination)]
    return [*verb, "--precision", "fp32", "--head-precision", "fp32", *options]


def test_the_verb_prints_its_result_and_nothing_else(tiny_model: TinyModel, tmp_path: Path) -> None:
    done = subprocess.run(
        command(tiny_model("llama"), tmp_path / "bundle", "--json"), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["bundle_id"] == Bundle.open(tmp_path / "bundle").manifest["bundle_id"]
    assert done.stderr == ""


def test_the_verb_ends_with_3_when_validation_fails(tiny_model: TinyModel, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("[target]\nsource = 'x'\n[target.thresholds]\nmax_abs_logit = 0\n")
    options = ("--recipe", str(tmp_path / "recipe.toml"))
    done = subprocess.run(command(tiny_model("llama"), tmp_path / "bundle", *options), capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert names(tmp_path) == {"recipe.toml"}


@pytest.mark.slow
def test_kill_at_any_moment_leaves_no_half_bundle(tiny_model: TinyModel, tmp_path: Path) -> None:
    destination = tmp_path / "bundle"
    export = command(tiny_model("llama"), destination, "--no-validate")

    def start_writing() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(export, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        earlier = names(tmp_path)
        while names(tmp_path) == earlier and process.poll() is None:
            time.sleep(0.005)
        return process

    process = start_writing()
    started = time.monotonic()
    assert process.wait() == 0
    duration = time.monotonic() - started
    shutil.rmtree(destination)

    chance = random.Random(0)
    for _ in range(6):
        process = start_writing()
        time.sleep(chance.uniform(0, duration))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if destination.exists():
            Bundle.open(destination).verify()
            shutil.rmtree(destination)
        else:
            assert any(".edgepipe-partial-" in name for name in names(tmp_path)), "it was not killed at work"
    subprocess.run(export, check=True, capture_output=True)
    assert names(tmp_path) == {"bundle"}
