"""Validation: what it finds on faithful and on damaged exports, and how it judges."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgepipe.errors import ValidationFailed
from edgepipe.exporters.llm.recipe import DEFAULT_THRESHOLDS, Thresholds
from edgepipe.exporters.llm.validate import Agreement, judge, validate
from edgepipe.exporters.llm.validation_text import PROMPTS, TEXT

FP32 = DEFAULT_THRESHOLDS["fp32"]
ONNX = {"onnx": {"plain": "onnx/model.onnx", "scored": "onnx/model.scored.onnx"}}
PERFECT = Agreement(0.0, 1.0, 0.0, 10.0, 1.0)


@pytest.fixture
def with_tokenizer(export_tiny: Any, tmp_path: Path) -> Any:
    """``with_tokenizer(architecture, **recipe)``: an export of one's own, with its tokenizer beside it."""

    def build(architecture: str = "llama", **recipe: Any) -> tuple[Any, Path]:
        export = export_tiny(architecture, **recipe)
        folder = tmp_path / "component"
        shutil.copytree(export.folder, folder)
        export.weights.save_tokenizer(folder)
        return export, folder

    return build


def test_an_fp32_export_agrees(architecture: str, with_tokenizer: Any) -> None:
    export, folder = with_tokenizer(architecture, precision="fp32")
    results = validate(export.weights, folder, ONNX, FP32)
    for graph in ("plain", "scored"):
        assert results["formats"]["onnx"][graph]["max_abs_logit"] < 2e-3
        assert results["formats"]["onnx"][graph]["top1_agreement"] > 0.995
        assert results["formats"]["onnx"][graph]["perplexity_ratio"] == pytest.approx(1, abs=1e-4)
    assert results["prompts"] == len(PROMPTS)
    assert results["thresholds"]["max_abs_logit"] == 2e-3


def test_the_reference_perplexity_is_that_of_transformers(with_tokenizer: Any) -> None:
    """transformers' own loss over the same tokens."""
    import torch
    from tokenizers import Tokenizer

    export, folder = with_tokenizer(precision="fp32")
    results = validate(export.weights, folder, ONNX, FP32)
    context = export.weights.spec.context_length
    ids = torch.tensor([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids[:context]])
    with torch.inference_mode():
        loss = export.model(ids, labels=ids).loss
    assert results["reference_perplexity"] == pytest.approx(float(loss.exp()), rel=1e-4)
    assert results["formats"]["onnx"]["plain"]["perplexity"] == pytest.approx(float(loss.exp()), rel=1e-3)


def test_divergence_and_agreement_of_a_quantised_export(with_tokenizer: Any) -> None:
    """Against torch's KL and argmax over the same logits."""
    import torch
    from tokenizers import Tokenizer

    export, folder = with_tokenizer(precision="int4", head_precision="int4")
    plain = validate(export.weights, folder, ONNX, Thresholds())["formats"]["onnx"]["plain"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = export.session(capacity=600)
    divergences, largest = [], 0.0
    for prompt in PROMPTS:
        ids = np.array(tokenizer.encode(prompt).ids)
        expected, found = torch.tensor(export.reference(ids)), torch.tensor(session.logits(ids, 128))
        logs = [torch.log_softmax(logits.double(), -1) for logits in (found, expected)]
        divergences.append(torch.nn.functional.kl_div(*logs, log_target=True, reduction="none").sum(-1))
        largest = max(largest, float((found - expected).abs().max()))
    assert plain["mean_kl"] == pytest.approx(float(torch.cat(divergences).mean()), rel=0.02)
    assert plain["max_abs_logit"] == pytest.approx(largest, rel=0.02)
    assert 0 < plain["top1_agreement"] < 1


def test_a_damaged_graph_is_rejected_with_the_numbers(with_tokenizer: Any) -> None:
    export, folder = with_tokenizer(precision="fp32")
    path = folder / "onnx" / "model.scored.onnx"
    model = onnx.load(path, load_external_data=False)
    attention = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    next(entry for entry in attention.attribute if entry.name == "scale").f *= 1.1
    onnx.save(model, path)
    with pytest.raises(ValidationFailed) as failure:
        validate(export.weights, folder, ONNX, FP32)
    message = str(failure.value)
    assert "onnx/model.scored.onnx: max |dlogit|" in message
    assert "expected at most 0.002" in message
    assert "onnx/model.onnx:" not in message
    assert "\n" not in message
    assert failure.value.exit_code == 3


@pytest.mark.parametrize(
    ("field", "bad", "good", "limit"),
    [
        ("max_abs_logit", 0.3, 0.2, "max_abs_logit"),
        ("top1_agreement", 0.1, 0.2, "min_top1_agreement"),
        ("mean_kl", 0.3, 0.2, "max_mean_kl"),
        ("perplexity_ratio", 0.3, 0.2, "max_perplexity_ratio"),
    ],
)
def test_each_threshold_is_held_and_the_limit_itself_passes(field: str, bad: float, good: float, limit: str) -> None:
    thresholds = replace(Thresholds(), **{limit: 0.2})
    assert judge(replace(PERFECT, **{field: good}), thresholds) == []
    (miss,) = judge(replace(PERFECT, **{field: bad}), thresholds)
    assert f"{bad:g}" in miss
    assert "0.2" in miss
    assert len(judge(replace(PERFECT, **{field: float("nan")}), thresholds)) == 1


def test_no_thresholds_accept_anything() -> None:
    assert judge(replace(PERFECT, max_abs_logit=float("nan")), Thresholds()) == []


def test_progress_ends_at_one(with_tokenizer: Any) -> None:
    export, folder = with_tokenizer(precision="fp32")
    seen: list[float] = []
    validate(
        export.weights,
        folder,
        ONNX,
        FP32,
        lambda fraction, part: seen.append(fraction),
    )
    assert seen == sorted(seen)
    assert seen[-1] == 1
