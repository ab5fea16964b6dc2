"""What the tests of the pipeline share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edgepipe.runtimes.llm.spec import DecoderSpec, RopeSpec

if TYPE_CHECKING:
    from edgepipe.pipeline.distillation import Distillation


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or fills the user's cache."""
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def manifest() -> dict[str, Any]:
    """What an exporter puts into a draft of a bundle with one decoder; nothing in it is true of any model."""
    spec = DecoderSpec(
        architecture="llama",
        num_layers=2,
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=300,
        context_length=512,
        rms_norm_eps=1e-5,
        rope=RopeSpec(theta=10_000.0),
        tied_embeddings=True,
    )
    component = {
        "kind": "decoder",
        "source": {"kind": "hugging_face", "name": "someone/model", "revision": "abc", "licence": "Apache-2.0"},
        "spec": spec.to_json(),
        "precision": {"mlp": "int4"},
        "formats": {"onnx": {"plain": "README.md", "scored": "README.md"}},
        "tokenizer": "README.md",
    }
    return {
        "created": "2026-01-01T00:00:00+00:00",
        "edgepipe_version": "0.1.0",
        "licence": "Apache-2.0",
        "components": {"target": component},
        "validation": {"target": {"plain": {"mean_kl": 0.01}}},
    }


@pytest.fixture
def tiny_distillation(tiny_model: Callable[..., Path]) -> Distillation:
    """Takes a second or so."""
    from edgepipe.exporters.llm.distill.training import TrainingSettings
    from edgepipe.pipeline.distillation import Distillation

    return Distillation(
        target=str(tiny_model("llama")),
        layers=(1,),
        output_vocab_size=120,
        sample_tokens=100,
        max_answer=8,
        shard_size=6,
        held_out=4,
        training=TrainingSettings(passes=2, batch_tokens=200),
    )
