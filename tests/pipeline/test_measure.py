"""The job as a whole, on a tiny bundle: what is in the report and how its parts hang together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import ContextError, RecipeError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.measure import Plan, measure
from edgepipe.pipeline.prompt_text import TEXT, prompt_tokens
from edgepipe.pipeline.report_schema import DEFINITIONS, SCHEMA_VERSION, Report
from edgepipe.pipeline.session import CacheOptions, DecodeOptions, Session
from edgepipe.runtimes.llm.tokenizer import load_tokenizer

PLAN = Plan(prompt_lengths=(5, 40), new_tokens=9, repeats=3, warmup=2, against="plain", max_width=4)
OPTIONS = DecodeOptions(threads=1, drafter="model", gamma=3, chunk=16, cache=CacheOptions("h2o", "24"))


@pytest.fixture(scope="session")
def report(tiny_bundle: Path) -> Report:
    return measure(tiny_bundle, OPTIONS, PLAN)


def generated(sample: dict[str, Any]) -> list[int]:
    """The tokens of a raw sample."""
    return [sample["first_token"], *(token for added in sample["round_tokens"] for token in added)]


def test_the_report_is_json_and_complete(report: Report) -> None:
    assert json.loads(json.dumps(report)) == report
    assert set(report) == set(Report.__required_keys__)
    assert report["schema_version"] == SCHEMA_VERSION
    assert report["definitions"] == DEFINITIONS


def test_the_bundle_is_identified(report: Report, tiny_bundle: Path) -> None:
    manifest = Bundle.open(tiny_bundle).manifest
    facts = report["bundle"]
    assert facts["bundle_id"] == manifest["bundle_id"]
    assert facts["files"]["target/onnx/model.onnx"] == manifest["files"]["target/onnx/model.onnx"]["sha256"]
    assert set(facts["sources"]) == {"target", "draft"}


def test_the_configuration_is_whole(report: Report) -> None:
    configuration = report["configuration"]
    assert configuration["prompt_lengths"] == [5, 40]
    assert configuration["against"] == "plain"
    assert configuration["decode"]["cache"] == {
        "policy": "h2o",
        "budget": "24",
        "recent": None,
        "normalise": True,
        "sinks": 4,
    }


def test_every_sample_is_kept_and_warm_ups_apart(report: Report) -> None:
    assert [prompt["prompt_tokens"] for prompt in report["prompts"]] == [5, 40]
    for prompt in report["prompts"]:
        assert prompt["plain"] is not None
        assert prompt["speedup"] is not None
        for decoding in (prompt["measured"], prompt["plain"]):
            assert len(decoding["warmup"]) == 2
            assert len(decoding["samples"]) == 3
            assert decoding["tpot_ms"]["count"] == decoding["ttft_ms"]["count"] == 3
            for sample in (*decoding["warmup"], *decoding["samples"]):
                assert len(generated(sample)) == 9
                rounds = len(sample["round_tokens"])
                for series in ("round_ns", "drafted", "accepted", "draft_ns", "verify_ns", "sample_ns", "kv_ns"):
                    assert len(sample[series]) == rounds
        assert prompt["speedup"]["decode"]["count"] == 3
    assert len(report["load_ms"]["warmup"]) == 1
    assert report["load_ms"]["statistics"]["count"] == len(report["load_ms"]["samples"]) == 3


def test_figures_follow_from_the_raw_samples(report: Report) -> None:
    for prompt in report["prompts"]:
        measured = prompt["measured"]
        samples = measured["samples"]
        tpot = [sum(sample["round_ns"]) / 1e6 / 8 for sample in samples]
        assert measured["tpot_ms"]["p50"] == pytest.approx(float(np.median(tpot)))
        rounds = [time / 1e6 for sample in samples for time in sample["round_ns"]]
        for name, share in (("p50", 50), ("p90", 90), ("p99", 99)):
            assert measured["round_ms"][name] == pytest.approx(np.percentile(rounds, share))
        drafted = sum(sum(sample["drafted"]) for sample in samples)
        accepted = sum(sum(sample["accepted"]) for sample in samples)
        assert measured["acceptance_rate"] == pytest.approx(accepted / drafted)
        assert sum(measured["time_split"].values()) == pytest.approx(1.0)
        assert all(0 <= share <= 1 for share in measured["time_split"].values())


def test_repetitions_generate_the_same_text(report: Report) -> None:
    """Caches start empty each time, so greedy decoding has nothing to differ by."""
    for prompt in report["prompts"]:
        for decoding in (prompt["measured"], prompt["plain"]):
            assert decoding is not None
            runs = (*decoding["warmup"], *decoding["samples"])
            assert all(generated(run) == generated(runs[0]) for run in runs)


def test_the_baseline_is_plain(report: Report, tiny_bundle: Path) -> None:
    """It neither drafts nor evicts, and says what a plain decoder says."""
    session = Session(Bundle.open(tiny_bundle), DecodeOptions(threads=1))
    for prompt in report["prompts"]:
        plain = prompt["plain"]
        assert plain is not None
        assert plain["acceptance_rate"] is None
        assert plain["tokens_per_round"] == 1
        length = prompt["prompt_tokens"]
        decoder = session.decoder(length + 9)
        decoder.stop_tokens = frozenset()
        decoder.start(prompt_tokens(session.tokenizer, TEXT, length))
        while len(decoder.text) < length + 9:
            decoder.step(1)
        assert generated(plain["samples"][0]) == decoder.text[length:]


def test_kv_bytes_are_those_of_the_caches(report: Report) -> None:
    """float32 keys and values of 2 layers, 2 heads of 16: 512 bytes a slot, target and draft alike."""
    for prompt in report["prompts"]:
        total = prompt["prompt_tokens"] + 9
        chunk, round_ = max(min(16, total), 4), 4
        assert prompt["plain"] is not None
        assert prompt["plain"]["kv_bytes"] == 512 * (total + round_), "a text held in full has room for its chunks"
        assert prompt["measured"]["kv_bytes"] == 2 * 512 * (min(24, total) + chunk)


def test_cost_curve(report: Report) -> None:
    curve = report["cost_curve"]
    assert curve["prompt_tokens"] == 40
    assert [entry["width"] for entry in curve["widths"]] == [1, 2, 3, 4]
    assert curve["widths"][0]["relative_cost"] == 1.0
    first = curve["widths"][0]["statistics"]["p50"]
    for entry in curve["widths"]:
        assert (len(entry["warmup"]), len(entry["samples"])) == (2, 3)
        assert entry["relative_cost"] == pytest.approx(np.median(entry["samples"]) / first)


def test_status_follows_from_the_gates(report: Report) -> None:
    failed = {gate["gate"] for gate in report["gates"] if gate["outcome"] == "failed"}
    assert "samples" in failed, "3 samples a series are too few"
    assert report["status"] == "untrustworthy"


def test_without_baseline_there_is_none(tiny_bundle: Path) -> None:
    plan = Plan(prompt_lengths=(4,), new_tokens=2, repeats=1, max_width=1)
    steps: list[str] = []
    report = measure(tiny_bundle, DecodeOptions(threads=1), plan, progress=steps.append)
    assert report["prompts"][0]["plain"] is None
    assert report["prompts"][0]["speedup"] is None
    assert report["prompts"][0]["measured"]["tokens_per_round"] == 1
    assert any("prompt of 4" in step for step in steps)


@pytest.mark.parametrize("count", [1, 7, 500, 2000])
def test_prompts_are_cut_to_length(tiny_bundle: Path, count: int) -> None:
    tokenizer = load_tokenizer(tiny_bundle / "target")
    tokens = prompt_tokens(tokenizer, TEXT, count)
    assert len(tokens) == count
    assert TEXT.startswith(tokenizer.decode(tokens[:7])[:5])


def test_a_short_text_is_repeated(tiny_bundle: Path) -> None:
    tokenizer = load_tokenizer(tiny_bundle / "target")
    assert tokenizer.decode(prompt_tokens(tokenizer, "ab ", 2 * len(tokenizer.encode("ab ")))) == "ab ab "


def test_own_text(tiny_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("def add(a, b):\n    return a + b\n" * 5)
    plan = Plan(prompt_lengths=(4,), new_tokens=2, repeats=1, max_width=1, file=str(file))
    report = measure(tiny_bundle, DecodeOptions(threads=1), plan)
    built_in = measure(tiny_bundle, DecodeOptions(threads=1), replace(plan, file=None))
    assert report["configuration"]["text_sha256"] != built_in["configuration"]["text_sha256"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\xff"])
def test_a_text_that_is_none(tiny_bundle: Path, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    with pytest.raises((ContextError, RecipeError), match="--file"):
        measure(tiny_bundle, DecodeOptions(threads=1), Plan(prompt_lengths=(4,), file=str(file)))


def test_a_prompt_beyond_the_context_is_named(tiny_bundle: Path) -> None:
    plan = Plan(prompt_lengths=(32, 500), new_tokens=13)
    with pytest.raises(ContextError, match="prompt length 500 and 13 .* context of 512: .* at most 499"):
        measure(tiny_bundle, DecodeOptions(), plan)
    evicting = DecodeOptions(cache=CacheOptions("window", "64"))
    with pytest.raises(ContextError, match="leave out --against"):
        measure(tiny_bundle, evicting, replace(plan, against="plain"))


@pytest.mark.parametrize("new_tokens", [512, 9000])
def test_new_tokens_beyond_the_context_are_named(tiny_bundle: Path, new_tokens: int) -> None:
    plan = Plan(prompt_lengths=(8,), new_tokens=new_tokens)
    with pytest.raises(ContextError, match="context of 512: give fewer --new-tokens than 512, or set --policy"):
        measure(tiny_bundle, plan=plan)


def test_an_evicting_policy_goes_beyond_the_context(tiny_bundle: Path) -> None:
    options = DecodeOptions(threads=1, cache=CacheOptions("window", "64"), chunk=64)
    report = measure(tiny_bundle, options, Plan(prompt_lengths=(520,), new_tokens=3, repeats=1, max_width=2))
    assert report["prompts"][0]["measured"]["kv_bytes"] == 512 * (64 + 64)


def test_a_width_beyond_the_chunk(tiny_bundle: Path) -> None:
    with pytest.raises(RecipeError, match="max_width is 9: expected at most the 8"):
        measure(tiny_bundle, DecodeOptions(chunk=8), Plan(prompt_lengths=(4,), max_width=9))


@pytest.mark.parametrize(
    "values",
    [
        {"prompt_lengths": ()},
        {"prompt_lengths": (0,)},
        {"new_tokens": 1},
        {"repeats": 0},
        {"warmup": 0},
        {"max_width": 0},
        {"against": "llama"},
    ],
)
def test_values_out_of_range(values: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(values))):
        Plan(**values)
