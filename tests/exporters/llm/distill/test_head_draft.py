"""The head: unrolled training sees what drafting sees, and features are those of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from edgepipe.errors import EdgepipeError
from edgepipe.exporters.llm.distill.batches import collate
from edgepipe.exporters.llm.distill.features import Features
from edgepipe.exporters.llm.distill.head_draft import HeadDraft
from edgepipe.exporters.llm.distill.samples import Sample
from edgepipe.exporters.llm.distill.training import Training, TrainingSettings
from edgepipe.exporters.sources import open_source
from edgepipe.exporters.sources.draft_head import HeadModel

OUTPUT_IDS = np.arange(3, 250, 2, dtype=np.int32)
STEPS = 3


def reference(draft: HeadDraft, source: Any, config: Any) -> tuple[HeadModel, list[torch.Tensor]]:
    """The head as export runs it, with the same weights, and the features that it gives, call by call."""
    config = AutoConfig.from_pretrained(config)
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    model = HeadModel(config, len(OUTPUT_IDS))
    embeddings = torch.from_numpy(source.tensor("model.embed_tokens.weight"))
    tensors = {name: torch.from_numpy(value) for name, value in draft.tensors().items()}
    tensors["model.embed_tokens.weight"] = embeddings
    tensors["model.norm.weight"] = torch.from_numpy(source.tensor("model.norm.weight"))
    tensors["lm_head.weight"] = embeddings[OUTPUT_IDS]
    model.load_state_dict(tensors)
    features: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda norm, rows: features.append(rows[0]))
    return model.eval(), features


@pytest.mark.filterwarnings("error::FutureWarning")  # users would see it
def test_a_step_sees_what_it_sees_when_drafting(tiny_model: Callable[..., Path], architecture: str) -> None:
    """One row at a time: true features up to there, then the head's own, all fed anew for every guess."""
    folder = tiny_model(architecture, dtype="bfloat16")
    source = open_source(str(folder))
    draft = HeadDraft(source, AutoConfig.from_pretrained(folder), 1, OUTPUT_IDS)
    with torch.no_grad():
        for parameter in draft.parameters():  # away from a start at which much is alike
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model, given = reference(draft, source, folder)
    tokens = torch.tensor([[40, 41, 90, 7, 200, 33, 12, 150, 61]])
    true = torch.randn(1, tokens.shape[1], 64)
    with torch.no_grad():
        unrolled = draft(tokens, true, STEPS)
        for row in range(STEPS - 1, tokens.shape[1] - 1):
            for step in range(1, STEPS + 1):
                first_own = row - step + 2  # the row that is the first to read a predicted feature
                features = true[:, :first_own]
                for end in range(first_own, row + 2):
                    ids = tokens[:, 1 : end + 1]
                    model(ids, features, use_cache=False)
                    features = torch.cat([features, given[-1][:, -1:]], 1)
                torch.testing.assert_close(unrolled[step - 1][:, row], features[:, -1], atol=1e-4, rtol=1e-4)


@pytest.fixture
def featured(tiny_target: Any, tiny_samples: list[Sample], tmp_path: Path) -> list[Sample]:
    return Features(tiny_target.weights, tmp_path).add(tiny_samples, lambda fraction: None)


def test_features_are_what_the_final_norm_gets(tiny_target: Any, featured: list[Sample]) -> None:
    model = tiny_target.weights.reference_model()
    rows: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda norm, inputs: rows.append(inputs[0][0]))
    for sample in featured:
        with torch.no_grad():
            model(torch.from_numpy(sample.tokens).long()[None])
        assert sample.features is not None
        expected = rows[-1].numpy()
        distance = np.linalg.norm(sample.features - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
        assert distance.max() < 0.05  # products in bfloat16, where there is any; another row is 1 away and more


def test_features_are_computed_once(tiny_target: Any, tiny_samples: list[Sample], tmp_path: Path) -> None:
    features = Features(tiny_target.weights, tmp_path)
    features.add(tiny_samples, lambda fraction: None)
    features.add(tiny_samples, lambda fraction: pytest.fail("computed again"))


def test_features_of_other_texts_as_long_are_others(tiny_target: Any, featured: list[Sample], tmp_path: Path) -> None:
    others = [replace(sample, tokens=sample.tokens[::-1].copy(), features=None) for sample in featured]
    found = Features(tiny_target.weights, tmp_path).add(others, lambda fraction: None)
    alone = Features(tiny_target.weights, tmp_path / "alone").add(others, lambda fraction: None)
    for one, other in zip(found, alone, strict=True):
        np.testing.assert_array_equal(one.features, other.features)


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\x93NUMPY\x01\x00\x76\x00{'descr': (", None])
def test_damaged_features_are_named(
    tiny_target: Any, tiny_samples: list[Sample], tmp_path: Path, damage: bytes | None
) -> None:
    features = Features(tiny_target.weights, tmp_path)
    features.add(tiny_samples, lambda fraction: None)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-500] if damage is None else damage)
    with pytest.raises(EdgepipeError, match=f"{path.name} is damaged: remove it"):
        features.add(tiny_samples, lambda fraction: None)


def test_a_head_learns_to_continue_features(tiny_target: Any, featured: list[Sample], tmp_path: Path) -> None:
    draft = HeadDraft(tiny_target.weights, AutoConfig.from_pretrained(tiny_target.folder), 1, OUTPUT_IDS)
    settings = TrainingSettings(passes=10, batch_tokens=200, rate=1e-2)
    training = Training(draft, featured, featured[:3], settings, tmp_path / "checkpoint", {})
    batch = collate(featured)
    before = draft.loss(batch).item()
    borrowed = [draft.final_norm.weight.clone(), draft.head.clone(), draft.embeddings.clone()]
    training.run(lambda fraction, line: None)
    assert draft.loss(batch).item() < 0.9 * before
    for kept, now in zip(borrowed, (draft.final_norm.weight, draft.head, draft.embeddings), strict=True):
        assert torch.equal(kept, now)
    assert {"model.fc.weight", "model.embedding_norm.weight", "model.feature_norm.weight"} < set(draft.tensors())
    assert not any("embed_tokens" in name or name.startswith("lm_head") for name in draft.tensors())
