"""One bundle in several engines: the same text from each, errors that name the way out, one report of all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgepipe
from edgepipe.errors import BundleError, EdgepipeError, EdgepipeWarning, MissingExtra, RecipeError, UnsupportedModel
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.llm.static_shape import StaticShape
from edgepipe.pipeline import decoder_engines, engine_choice, reference
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.compare_view import view
from edgepipe.pipeline.decode_options import CacheOptions, DecodeOptions
from edgepipe.pipeline.decoder_engines import first_installed, require_width
from edgepipe.pipeline.engine_choice import choose_engine, expected_speedup
from edgepipe.pipeline.measure import Plan, measure
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.report import write_report
from edgepipe.pipeline.report_markdown import markdown
from edgepipe.pipeline.requirements import engines_for
from edgepipe.pipeline.session import Session
from edgepipe.pipeline.verify import verify_reference
from edgepipe.runtimes.llm.costs import Costs, DraftCost, MeasuredCosts
from edgepipe.runtimes.llm.engines import ENGINES, is_installed

SHAPE = StaticShape(widths=(1, 5), chunk=16)
OTHERS = [engine for engine in ENGINES if engine != "onnx"]
PROMPT = "def add(a, b):"


@pytest.fixture(scope="session")
def engines_bundle(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_bundle` in the formats of all engines that are installed. Do not write into it."""
    for module in ("onnx", "ai_edge_litert", "executorch"):
        pytest.importorskip(module)
    target = DecoderRecipe(str(tiny_model("llama")), precision="fp32", head_precision="fp32")
    draft = DecoderRecipe(str(tiny_model("llama", seed=1)), precision="fp32", head_precision="fp32")
    recipe = Recipe(target, draft, formats=tuple(ENGINES), static=SHAPE)
    return edgepipe.export(recipe, tmp_path_factory.mktemp("engines") / "bundle").folder


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing has been measured yet."""
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.slow
def test_a_bundle_tells_of_every_format(engines_bundle: Path) -> None:
    manifest = Bundle.open(engines_bundle).manifest
    for name in ("target", "draft"):
        formats = manifest["components"][name]["formats"]
        assert list(formats) == list(ENGINES)
        for engine, files in formats.items():
            assert files["bytes"] > 0
            assert files["export_seconds"] > 0
            assert set(files["precision"].values()) == {"fp32"}
            assert files.get("widths") == ([1, 5] if engine == "tflite" else None)
            found = manifest["validation"][name]["formats"][engine]
            assert found["plain"]["max_abs_logit"] < 2e-3
            assert found["scored"]["top1_agreement"] > 0.995


@pytest.mark.slow
@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("drafter", ["none", "lookup", "model", "sparse"])
def test_greedy_text_is_that_of_onnx(engines_bundle: Path, engine: str, drafter: str) -> None:
    def tokens(engine: str, drafter: str) -> list[int]:
        options = DecodeOptions(engine, threads=1, chunk=24, drafter=drafter, gamma=4)
        return edgepipe.run(engines_bundle, PROMPT, options, max_new_tokens=30, raw=True).generation.tokens

    assert tokens(engine, drafter) == tokens("onnx", "none")


@pytest.mark.slow
@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("policy", ["window", "h2o"])
def test_evicting_text_is_that_of_onnx(engines_bundle: Path, engine: str, policy: str) -> None:
    def tokens(engine: str) -> list[int]:
        options = DecodeOptions(engine, threads=1, chunk=16, cache=CacheOptions(policy, "24"))
        return edgepipe.run(engines_bundle, PROMPT * 4, options, max_new_tokens=30, raw=True).generation.tokens

    assert tokens(engine) == tokens("onnx")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_golden_outputs_are_of_each_engine(engines_bundle: Path, engine: str) -> None:
    outcome = verify_reference(Session(Bundle.open(engines_bundle), DecodeOptions(engine)))
    assert (outcome.engine, outcome.components) == (engine, ("target", "draft"))
    assert outcome.tokens == 2 * 3 * 16
    assert outcome.max_abs_logit < 1e-3


@pytest.mark.slow
def test_executorch_computes_as_it_did_when_it_was_exported(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of these shapes, torch's BLAS rounds otherwise where torch was loaded before the engine, as it is here."""
    pytest.importorskip("executorch")
    monkeypatch.setattr(reference, "PROMPTS", ("a, b: c", "x = y + 1"))
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "hidden_size": 576}
    target = DecoderRecipe(str(tiny_model("llama", **heads)), precision="fp32", head_precision="fp32")
    bundle = edgepipe.export(Recipe(target, formats=("executorch",)), tmp_path / "bundle").folder
    lengths = [
        len(case["prompt_ids"])
        for case in json.loads((bundle / "reference/target.executorch.json").read_bytes())["cases"]
    ]
    assert all(5 <= length <= 11 for length in lengths), lengths
    command = [sys.executable, "-m", "edgepipe", "run", str(bundle), "--verify", "--json"]
    outcome = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    assert outcome["max_abs_logit"] == 0


@pytest.mark.slow
def test_a_round_wider_than_any_forward_is_refused(engines_bundle: Path) -> None:
    bundle = Bundle.open(engines_bundle)
    message = "has 8 tokens, and .* has forwards of 1, 5: give --gamma 4 or less, or export with --widths 1,5,8"
    with pytest.raises(RecipeError, match=message):
        Session(bundle, DecodeOptions("tflite", drafter="lookup", gamma=7))
    most = {engine: Session(bundle, DecodeOptions(engine, drafter="lookup")).most_guesses(100) for engine in ENGINES}
    assert most == {engine: 4 if engine == "tflite" else 15 for engine in ENGINES}


@pytest.mark.slow
@pytest.mark.parametrize("engine", OTHERS)
def test_another_engines_file_is_refused_in_a_line(engines_bundle: Path, engine: str, tmp_path: Path) -> None:
    spec = Session(Bundle.open(engines_bundle), DecodeOptions()).spec
    path = tmp_path / "model"
    shutil.copy(engines_bundle / "target/onnx/model.onnx", path)
    with pytest.raises(EdgepipeError) as refusal:
        decoder_engines.load(ENGINES[engine])(path, spec, threads=1)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
def test_engines_are_measured_in_turns(engines_bundle: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    plan = Plan(prompt_lengths=(5, 20), new_tokens=6, repeats=2, warmup=1, max_width=7)
    options = DecodeOptions(threads=1, drafter="lookup", gamma=4)
    report = measure(engines_bundle, options, plan, engines=list(ENGINES), progress=steps.append)
    assert report["configuration"]["engines"] == list(ENGINES)
    assert report["configuration"]["decode"]["engine"] == "onnx"
    assert [other["engine"] for other in report["other_engines"]] == OTHERS
    timed = [step.split(":")[0] for step in steps if "repetition" in step]
    assert timed == list(ENGINES) * (len(plan.prompt_lengths) * plan.repeats)
    assert report["cost_curve"] is not None
    assert len(report["cost_curve"]["widths"]) == 7
    texts = {}
    for other in report["other_engines"]:
        widest = 5 if other["engine"] == "tflite" else 7
        assert [entry["width"] for entry in other["cost_curve"]["widths"]] == list(range(1, widest + 1))
        for prompt, ratios, ours in zip(report["prompts"], other["against_first"], other["prompts"], strict=True):
            assert prompt["prompt_tokens"] == ours["prompt_tokens"]
            pairs = zip(prompt["measured"]["samples"], ours["measured"]["samples"], strict=True)
            expected = [first["ttft_ns"] / other["ttft_ns"] for first, other in pairs]
            assert [ratios["ttft"]["min"], ratios["ttft"]["max"]] == pytest.approx([min(expected), max(expected)])
            texts[other["engine"]] = [sample["round_tokens"] for sample in ours["measured"]["samples"]]
    assert len({json.dumps(text) for text in texts.values()}) == 1
    found = markdown(report)
    assert "## Engines, in turns" in found
    assert "--engine all" in found
    write_report(report, tmp_path)
    compared = {str(figure) for figure in view(tmp_path / "report.json").figures}
    for engine in OTHERS:
        assert f"| 20 | {engine} |" in found
        assert any(f"decode, {engine}" in figure for figure in compared)


@pytest.mark.slow
def test_the_engine_is_chosen_once(engines_bundle: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, told = Bundle.open(engines_bundle), []
    options = DecodeOptions(threads=1, drafter="model")
    chosen = choose_engine(bundle, options, told.append)
    assert [step for step in told if step.removeprefix("measuring ") in ENGINES] == [f"measuring {e}" for e in ENGINES]
    (kept,) = (json.loads(path.read_text()) for path in (empty_cache / "engine").iterdir())
    assert set(kept["tokens_per_s"]) == set(ENGINES)
    assert chosen == kept["engine"] == max(kept["tokens_per_s"], key=kept["tokens_per_s"].get)
    told.clear()
    assert choose_engine(bundle, options, told.append) == chosen
    assert told == []
    monkeypatch.setattr(engine_choice, "is_installed", lambda engine: engine == "tflite")
    assert choose_engine(bundle, options) == "tflite"


@pytest.mark.slow
def test_deploying_installs_what_is_asked_for(engines_bundle: Path) -> None:
    bundle = Bundle.open(engines_bundle)
    assert engines_for(bundle) == ["onnx"]
    assert engines_for(bundle, "tflite") == engines_for(bundle, "litert") == ["litert"]
    assert engines_for(bundle, "all") == ["executorch", "litert", "onnx"]


def test_without_a_wider_forward_the_way_out_has_no_guesses() -> None:
    message = r"has forwards of 1: give --drafter none, or export with --widths 1,2"
    with pytest.raises(RecipeError, match=message):
        require_width({"widths": [1]}, 1, "bundle in tflite")
    with pytest.raises(RecipeError, match="gamma is 0: expected 1"):  # so that it can't be the way out
        DecodeOptions(drafter="lookup", gamma=0)


@pytest.mark.slow
def test_an_engine_without_so_wide_a_forward_is_left_out(engines_bundle: Path, empty_cache: Path) -> None:
    bundle, options = Bundle.open(engines_bundle), DecodeOptions(threads=1, drafter="lookup", gamma=7)
    with pytest.warns(EdgepipeWarning, match="^--engine auto leaves out tflite: gamma is 7") as caught:
        chosen = choose_engine(bundle, options)
    assert len(caught) == 1
    assert chosen in ("onnx", "executorch")
    (kept,) = (json.loads(path.read_text()) for path in (empty_cache / "engine").iterdir())
    assert set(kept["tokens_per_s"]) == {"onnx", "executorch"}


def test_the_first_that_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    component = {"formats": {"executorch": {}, "tflite": {}}}
    monkeypatch.setattr(decoder_engines, "is_installed", lambda engine: engine == "executorch")
    assert first_installed(component) == "executorch"
    monkeypatch.setattr(decoder_engines, "is_installed", lambda engine: False)
    assert first_installed(component) == "tflite", "whose loading says what to install"
    assert is_installed("onnx")


def test_an_engine_that_the_bundle_was_not_exported_for(tiny_bundle: Path) -> None:
    message = "not exported for tflite, only for onnx: give --engine onnx, or export again with --formats onnx,tflite"
    for name in ("tflite", "litert"):
        with pytest.raises(BundleError, match=message):
            Session(Bundle.open(tiny_bundle), DecodeOptions(name))


def test_a_head_draft_is_refused_before_the_long_work(
    tiny_model: Callable[..., Path], tiny_draft: Callable[..., Path], tmp_path: Path
) -> None:
    pair = Recipe(
        DecoderRecipe(str(tiny_model("llama"))),
        DecoderRecipe(str(tiny_draft("llama", kind="head"))),
        formats=("onnx", "tflite"),
    )
    with pytest.raises(UnsupportedModel, match="--formats onnx"):
        edgepipe.export(pair, tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def test_expected_speed_by_arithmetic() -> None:
    """At an acceptance of 0.5, four guesses bring 1.9375 tokens on average, in t(5) + draft(4)."""
    measured = MeasuredCosts({1: 10e6, 5: 12e6}, {"model": DraftCost(0.1, 0.1, 0.0)}, {"model": 0.5})
    costs = Costs(measured, widths=(1, 5))
    assert expected_speedup(costs, range(4, 5)) == pytest.approx(1.9375 / 1.6)
    assert expected_speedup(costs, range(5)) == pytest.approx(max(1.9375 / 1.6, 1.875 / 1.5, 1.75 / 1.4))
    assert expected_speedup(Costs(MeasuredCosts({1: 10e6}, {})), range(1)) == 1


def test_an_engine_that_is_not_installed_is_named_with_its_extra(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(tiny_bundle)
    formats = bundle.manifest["components"]["target"]["formats"]
    for engine, modules in (("tflite", ("ai_edge_litert", "tflite_runtime")), ("executorch", ("executorch",))):
        formats[engine] = formats["onnx"]
        for module in (*modules, *(name for name in sys.modules if name.startswith(tuple(f"{m}." for m in modules)))):
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra, match=r"pip install 'edgepipe\[(litert|executorch)\]'"):
            Session(bundle, DecodeOptions(engine)).decoder(10)
    assert Session(bundle, DecodeOptions()).engine == "onnx"


def test_an_engine_that_cannot_be_loaded_is_not_chosen(
    tiny_bundle: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(tiny_bundle)
    formats = bundle.manifest["components"]["target"]["formats"]
    formats["tflite"] = formats["onnx"]
    monkeypatch.setattr(engine_choice, "is_installed", lambda engine: True)

    def absent(*arguments: Any, **options: Any) -> None:
        raise MissingExtra("ai-edge-litert", "litert")

    load = decoder_engines.load
    monkeypatch.setattr(decoder_engines, "load", lambda name: absent if name == ENGINES["tflite"] else load(name))
    for _ in range(2):  # nothing is kept, as it may be mended
        with pytest.warns(EdgepipeWarning, match="^--engine auto leaves out tflite: ai-edge-litert is not installed"):
            assert choose_engine(bundle, DecodeOptions(threads=1)) == "onnx"
    assert not (empty_cache / "engine").exists()
    monkeypatch.setattr(decoder_engines, "load", lambda name: absent)
    with pytest.raises(MissingExtra, match=r"edgepipe\[litert\]"):
        choose_engine(bundle, DecodeOptions(threads=2))
