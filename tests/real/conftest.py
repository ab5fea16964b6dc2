"""The real model, loaded once by each engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.session import DecodeOptions, Session


@pytest.fixture(scope="session")
def fp32(smollm2_fp32_bundle: Path) -> Session:
    """SmolLM2-135M in float32, its caches wide enough for gamma 8."""
    return Session(Bundle.open(smollm2_fp32_bundle), DecodeOptions(gamma=8, chunk=128))


@pytest.fixture(scope="session")
def quantised(smollm2_bundle: Path) -> dict[str, Session]:
    """SmolLM2-135M in ``auto``: a session for each drafter."""
    bundle = Bundle.open(smollm2_bundle)
    return {drafter: Session(bundle, DecodeOptions(drafter=drafter)) for drafter in ("none", "lookup", "model")}


@pytest.fixture(scope="session")
def transformers_choices(smollm2_fp32_bundle: Path) -> Callable[[Sequence[int]], list[int]]:
    """``transformers_choices(tokens)`` → the token that transformers, in float32, likes best after each of them."""
    import torch

    from edgepipe.exporters.sources import open_source

    model = open_source("smollm2-135m").reference_model()

    def choices(tokens: Sequence[int]) -> list[int]:
        with torch.inference_mode():
            found: list[int] = model(torch.tensor([list(tokens)])).logits[0].argmax(dim=1).tolist()
        return found

    return choices
