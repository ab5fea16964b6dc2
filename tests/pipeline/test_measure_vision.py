"""`edgepipe measure` of a vision model, alone and beside decoders."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.pipeline import cli, measure_vision
from edgepipe.pipeline.measure import Plan, measure
from edgepipe.pipeline.report import read_report
from edgepipe.pipeline.report_markdown import markdown
from edgepipe.pipeline.report_schema import Report
from edgepipe.pipeline.vision_session import VisionOptions
from edgepipe.runtimes.vision.plan import read_plan

PLAN = Plan(repeats=3, warmup=2)


@pytest.fixture(scope="module")
def report(vision_bundle: Path) -> Report:
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(measure_vision, "SAMPLE_NS", 2_000_000)
        return measure(vision_bundle, None, PLAN, vision=VisionOptions("litert", exact=True))


def test_what_a_report_without_decoders_has(report: Report) -> None:
    assert json.loads(json.dumps(report)) == report
    assert report["prompts"] == []
    assert report["load_ms"] is report["cost_curve"] is None
    assert set(report["bundle"]["sources"]) == {"vision"}
    assert report["configuration"]["vision"]["exact"] is True


def test_samples_are_kept_and_warm_ups_apart(report: Report, vision_bundle: Path) -> None:
    vision, plan = report["vision"], read_plan(vision_bundle / "vision/plan.json")
    assert vision["streamed_ms"] is not None
    for series in (vision["streamed_ms"], vision["whole_ms"]):
        assert (len(series["warmup"]), len(series["samples"])) == (2, 3)
        assert series["statistics"]["p50"] == pytest.approx(float(np.median(series["samples"])))
    assert [part["part"] for part in vision["parts"]] == [*plan.parts, "tail"]
    assert sum(part["tiles"] or 0 for part in vision["parts"]) == len(plan.tiles)


def test_parts_are_parts_of_the_whole(report: Report) -> None:
    vision = report["vision"]
    assert vision["streamed_ms"] is not None
    for sample in range(3):
        within = sum(part["samples"][sample] * (part["tiles"] or 1) for part in vision["parts"])
        assert 0 < within < vision["streamed_ms"]["samples"][sample]


def test_memory_as_planned_and_as_seen(report: Report, vision_bundle: Path) -> None:
    """The engine knows no in-place operators, so it takes more than planned; but not more, tile by tile, than whole."""
    plan, found = read_plan(vision_bundle / "vision/plan.json"), report["vision"]["activations"]
    assert found["planned_bytes"] == plan.memory.planned_bytes
    assert found["planned_whole_bytes"] == plan.memory.whole_bytes
    assert found["unreadable"] == {}
    assert found["seen_bytes"] is not None
    assert found["seen_whole_bytes"] is not None
    # Two images of 8 channels must stand beside each other: the residual's input and its branch.
    assert found["seen_whole_bytes"] >= 2 * 24 * 20 * 8
    assert found["planned_bytes"] <= found["seen_bytes"] <= found["seen_whole_bytes"]


def test_an_engine_that_does_not_tell(vision_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_vision, "SAMPLE_NS", 1)
    found = measure(vision_bundle, None, Plan(repeats=1), vision=VisionOptions("onnx"))["vision"]
    assert found["activations"]["seen_bytes"] is None
    assert "onnxruntime does not tell" in found["activations"]["unreadable"]["seen_bytes"]


def test_the_report_for_people(report: Report) -> None:
    text = markdown(report)
    assert "## Vision, in litert" in text
    assert "image in " in text
    assert "TTFT ms" not in text
    assert "Cost of one forward" not in text
    command = shlex.split(text.split("```")[1])
    assert command[:2] == ["edgepipe", "measure"]
    assert command[3:] == ["--repeats", "3", "--warmup", "2", "--engine", "litert", "--exact"]


def test_beside_decoders(
    tiny_model: Any, tiny_vision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from edgepipe.exporters.llm.recipe import DecoderRecipe
    from edgepipe.pipeline.export import export
    from edgepipe.pipeline.recipe import Recipe
    from edgepipe.pipeline.vision_recipe import VisionRecipe

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure_vision, "SAMPLE_NS", 1)
    target = DecoderRecipe(source=str(tiny_model("llama")), precision="fp32")
    export(Recipe(target, validate=False, vision=VisionRecipe(str(tiny_vision), sram="15K")), tmp_path / "both")
    quick = ["--prompt-lengths", "4", "--new-tokens", "3", "--max-width", "2", "--repeats", "2", "--threads", "1"]
    with pytest.raises(SystemExit) as caught:
        cli.main(["measure", "both", *quick, "--engine", "litert"])
    assert caught.value.code in (0, 5)  # two samples of each are too few to be trusted
    out = capsys.readouterr().out
    assert "prompt 4: TTFT" in out
    assert "image at once: " in out
    assert "KiB planned" in out
    report = read_report(tmp_path / "report/report.json")
    assert report["prompts"][0]["prompt_tokens"] == 4
    assert report["vision"]["engine"] == "litert"
    assert report["configuration"]["decode"]["engine"] == "onnx"
    assert "## Vision, in litert" in markdown(report)
    assert "--engine litert" in markdown(report)
