"""Training: starts as the target, learns, and goes on after an interruption to the very same weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from edgepipe.errors import EdgepipeError, RecipeError
from edgepipe.exporters.llm.distill import training
from edgepipe.exporters.llm.distill.batches import collate
from edgepipe.exporters.llm.distill.decoder_draft import HEAD_RATE, NORM_SCALE, DecoderDraft
from edgepipe.exporters.llm.distill.samples import Sample
from edgepipe.exporters.llm.distill.training import Training, TrainingSettings
from edgepipe.exporters.sources import open_source

OUTPUT_IDS = np.arange(3, 250, 2, dtype=np.int32)
SETTINGS = TrainingSettings(passes=6, batch_tokens=120, rate=3e-3)


class Interrupted(Exception):
    """Stands for Ctrl-C and kill -9."""


@pytest.fixture
def start(tiny_target: Any, tiny_samples: list[Sample], tmp_path: Path) -> Callable[..., Training]:
    """``start(name, settings)`` → a training whose checkpoint has this name, of a new draft."""

    def begin(name: str, settings: TrainingSettings = SETTINGS, layers: tuple[int, ...] = (1,)) -> Training:
        torch.manual_seed(len(name))  # nothing may depend on it
        config = AutoConfig.from_pretrained(tiny_target.folder)
        draft = DecoderDraft(tiny_target.weights, config, layers, OUTPUT_IDS)
        held_out, samples = tiny_samples[:3], tiny_samples[3:]
        return Training(draft, samples, held_out, settings, tmp_path / name, {"layers": list(layers)})

    return begin


def weights(training: Training) -> dict[str, np.ndarray]:
    return training.draft.tensors()  # type: ignore[attr-defined,no-any-return]


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def silent(fraction: float, line: str) -> None:
    pass


def test_a_draft_of_all_layers_is_the_target(tiny_model: Callable[..., Path], tiny_samples: list[Sample]) -> None:
    """In bfloat16, as the frozen embeddings are kept. The norm is scaled, and the logits with it."""
    for architecture in ("llama", "llama3_rope", "mistral", "qwen2", "qwen3"):
        folder = tiny_model(architecture, dtype="bfloat16")
        source = open_source(str(folder))
        draft = DecoderDraft(source, AutoConfig.from_pretrained(folder), range(source.spec.num_layers), OUTPUT_IDS)
        batch = collate(tiny_samples[:4])
        with torch.no_grad():
            found = draft(batch.tokens, batch.predicts) / NORM_SCALE
            expected = source.reference_model()(batch.tokens).logits[batch.predicts][:, OUTPUT_IDS]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def test_matrices_decay_and_the_head_learns_slowly(start: Callable[..., Training]) -> None:
    draft = start("a", layers=(0, 1)).draft
    named = dict(draft.named_parameters())  # type: ignore[attr-defined]
    found = {
        name: (group["lr"], group["weight_decay"])
        for group in training.parameter_groups(draft, 0.5)
        for name, parameter in named.items()
        if any(parameter is each for each in group["params"])
    }
    assert found.pop("head") == (0.5 * HEAD_RATE, training.WEIGHT_DECAY)
    assert found["decoder.layers.1.mlp.down_proj.weight"] == (0.5, training.WEIGHT_DECAY)
    assert found["decoder.layers.0.input_layernorm.weight"] == found["decoder.norm.weight"] == (0.5, 0.0)
    assert set(found) == {name for name in named if name.startswith("decoder.") and "embed_tokens" not in name}


def test_only_layers_norm_and_head_are_trained(start: Callable[..., Training]) -> None:
    trained = start("a", layers=(0, 1))
    before = {name: value.copy() for name, value in weights(trained).items()}
    embeddings = trained.draft.embeddings.clone()  # type: ignore[attr-defined]
    trained.run(silent)
    assert set(before) == {
        "model.norm.weight",
        "lm_head.weight",
        *(
            f"model.layers.{layer}.{part}.weight"
            for layer in (0, 1)
            for part in (
                *(f"self_attn.{name}_proj" for name in "qkvo"),
                *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
                "input_layernorm",
                "post_attention_layernorm",
            )
        ),
    }
    assert [name for name, value in weights(trained).items() if np.array_equal(value, before[name])] == []
    assert torch.equal(trained.draft.embeddings, embeddings)  # type: ignore[attr-defined]


def test_training_lowers_the_loss_on_what_it_sees(start: Callable[..., Training], tiny_samples: list[Sample]) -> None:
    trained = start("a", replace(SETTINGS, rate=3e-2))
    batch = collate(tiny_samples[3:])
    before = trained.draft.loss(batch).item()
    state = trained.run(silent)
    assert trained.draft.loss(batch).item() < 0.9 * before
    assert state.tokens == 6 * batch.size
    assert [each["tokens"] for each in state.evaluations] == sorted(each["tokens"] for each in state.evaluations)


def test_the_same_settings_give_the_same_draft(start: Callable[..., Training]) -> None:
    one, other, another = start("a"), start("bb"), start("ccc", replace(SETTINGS, seed=1))
    for each in (one, other, another):
        each.run(silent)
    assert same(weights(one), weights(other))
    assert not same(weights(one), weights(another))


@pytest.mark.parametrize("every", [1, 3])
def test_an_interrupted_training_ends_the_same(
    start: Callable[..., Training], monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """It is interrupted after every few steps, the last of which are lost each time."""
    whole = start("whole")
    expected = whole.run(silent)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", -1.0)  # after every step
    state = None
    while state is None:
        left = every

        def interrupt(fraction: float, line: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted

        part = start("parts")
        with contextlib.suppress(Interrupted):
            state = part.run(interrupt)
    assert same(weights(part), weights(whole))
    assert state.evaluations == expected.evaluations
    assert state.tokens == expected.tokens


def test_a_finished_training_is_not_repeated(start: Callable[..., Training]) -> None:
    whole = start("a")
    whole.run(silent)
    again = start("a")
    again.run(lambda fraction, line: pytest.fail("trained again"))
    assert same(weights(again), weights(whole))


def test_minutes_end_a_training(start: Callable[..., Training]) -> None:
    state = start("a", replace(SETTINGS, passes=1e6, minutes=0.02)).run(silent)
    assert state.seconds >= 1.2
    assert state.tokens < 1e6


def test_a_checkpoint_of_other_settings_is_refused(start: Callable[..., Training]) -> None:
    start("a").run(silent)
    with pytest.raises(RecipeError, match=r"training with passes 6, not 7: remove it"):
        start("a", replace(SETTINGS, passes=7))
    with pytest.raises(RecipeError, match=r"layers \[1\], not \[0\]"):
        start("a", layers=(0,))


@pytest.mark.parametrize("keep", [0, 1000, -1000])
def test_a_damaged_checkpoint_is_named(start: Callable[..., Training], tmp_path: Path, keep: int) -> None:
    start("a").run(silent)
    path = tmp_path / "a"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(EdgepipeError, match="a is damaged: remove it"):
        start("a")


def test_a_bit_that_flipped_is_noticed(start: Callable[..., Training], tmp_path: Path) -> None:
    """In weights, where torch reads on."""
    start("a").run(silent)
    path = tmp_path / "a"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(EdgepipeError, match="a is damaged: remove it"):
        start("a")


def test_the_state_is_json(start: Callable[..., Training]) -> None:
    assert json.dumps(start("a").run(silent).evaluations)
