"""Draft folders: what is written is read back, and what is damaged is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import EdgepipeError, UnsupportedModel

pytest.importorskip("torch")

from edgepipe.exporters.llm.draft_folder import is_draft, read_draft, write_draft

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 50,
    "output_vocab_size": 3,
    "edgepipe": {"kind": "decoder", "target": "smollm2-135m"},
}


def tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    head = random.normal(size=(3, 64)).astype(np.float32) * np.array([[1e-6], [1.0], [300.0]], np.float32)
    return {
        "lm_head.weight": head,
        "model.layers.0.self_attn.q_proj.weight": np.zeros((8, 64), np.float32),
        "model.norm.weight": random.normal(size=64).astype(np.float32),
        "output_token_ids": np.array([0, 7, 49]),
    }


def test_int8_rows_are_within_half_a_step(tmp_path: Path) -> None:
    write_draft(tmp_path / "draft", CONFIG, tensors())
    draft = read_draft(tmp_path / "draft")
    assert (draft.kind, draft.target, draft.config) == ("decoder", "smollm2-135m", CONFIG)
    assert draft.output_token_ids.tolist() == [0, 7, 49]
    given = tensors()
    head = given["lm_head.weight"]
    step = np.abs(head).max(axis=1, keepdims=True) / 127
    # The scale's own rounding to float16: 2^-11 of it, at most 2^-25 where it is subnormal, times 127 steps.
    slack = 127 * np.maximum(step * 2.0**-11, 2.0**-25)
    assert (np.abs(draft.tensor("lm_head.weight") - head) <= step / 2 + slack).all()
    assert not draft.tensor("model.layers.0.self_attn.q_proj.weight").any()
    np.testing.assert_array_equal(draft.tensor("model.norm.weight"), given["model.norm.weight"])
    assert draft.shapes == {name: values.shape for name, values in given.items() if name != "output_token_ids"}


def test_without_int8_nothing_is_rounded(tmp_path: Path) -> None:
    write_draft(tmp_path, CONFIG, tensors(), int8=False)
    for name, values in tensors().items():
        if name != "output_token_ids":
            np.testing.assert_array_equal(read_draft(tmp_path).tensor(name), values)


def test_bfloat16_is_read_too(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    write_draft(tmp_path, CONFIG, tensors())
    stored = {"lm_head.weight": torch.tensor([[0.5, -3.0]], dtype=torch.bfloat16)}
    ids = torch.tensor([0, 7, 49], dtype=torch.int32)
    save_file({**stored, "output_token_ids": ids}, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(read_draft(tmp_path).tensor("lm_head.weight"), np.float32([[0.5, -3.0]]))


def test_a_draft_is_told_from_a_model(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    write_draft(tmp_path, CONFIG, tensors())
    assert is_draft(tmp_path)
    assert not is_draft(tiny_model("llama"))
    assert not is_draft(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"edgepipe": {"kind": "medusa", "target": "x"}}, "kind"),
        ({"edgepipe": None}, "expected {"),
        ({"output_vocab_size": 51}, "output_vocab_size is 51, expected 1 to vocab_size, 50"),
        ({"output_vocab_size": 2}, r"int32 \[3\], expected int32 \[2\]"),
        ({"vocab_size": 49}, "ascending ids from 0 to 48"),
    ],
)
def test_a_wrong_configuration_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    write_draft(tmp_path, CONFIG, tensors())
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(UnsupportedModel, match=reason):
        read_draft(tmp_path)


@pytest.mark.parametrize("ids", [[0, 49, 7], [0, 7, 7], [-1, 7, 49], [0, 7, 50], [0, 7]])
def test_ids_are_checked_before_they_are_written(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(UnsupportedModel, match="output_token_ids"):
        write_draft(tmp_path / "draft", CONFIG, {**tensors(), "output_token_ids": np.array(ids)})
    assert not (tmp_path / "draft").exists()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EdgepipeError, match="edgepipe distill"):
        read_draft(tmp_path / "nowhere")
    write_draft(tmp_path, CONFIG, tensors())
    whole = (tmp_path / "model.safetensors").read_bytes()
    for damage in (b"", whole[: len(whole) // 2], b"\xff" * 100):
        (tmp_path / "model.safetensors").write_bytes(damage)
        with pytest.raises(UnsupportedModel, match="distil the draft again") as refusal:
            read_draft(tmp_path)
        assert "\n" not in str(refusal.value)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match="has no model.safetensors"):
        read_draft(tmp_path)


Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({f"{Q}_scale": None}, "is I8 without .*_scale, expected F32"),
        ({Q: np.zeros((8, 64), np.int64), f"{Q}_scale": None}, "is I64 without"),
        ({Q: np.zeros((8, 64), bool), f"{Q}_scale": None}, "is BOOL without"),
        ({Q: np.zeros((8, 64), np.float32)}, "is F32 .*expected I8"),
        ({f"{Q}_scale": np.ones(7, np.float16)}, r"F16 \[7\]: expected I8 \[rows, columns\] and F16 \[rows\]"),
        ({f"{Q}_scale": np.ones(1, np.float16)}, r"F16 \[1\]: expected"),
        ({f"{Q}_scale": np.ones((8, 1), np.float16)}, r"F16 \[8, 1\]: expected"),
        ({f"{Q}_scale": np.ones(8, np.int32)}, r"I32 \[8\]: expected"),
    ],
)
def test_codes_are_not_taken_for_weights(tmp_path: Path, changes: dict[str, np.ndarray | None], reason: str) -> None:
    """Nor scales of another kind or count for theirs."""
    from safetensors.numpy import load_file, save_file

    write_draft(tmp_path, CONFIG, tensors())
    stored = {**load_file(tmp_path / "model.safetensors"), **changes}
    save_file({name: values for name, values in stored.items() if values is not None}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=f"model.safetensors is damaged: .*{reason}") as refusal:
        read_draft(tmp_path)
    assert "\n" not in str(refusal.value)
