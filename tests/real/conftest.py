"""The real model, loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.session import DecodeOptions, Session


@pytest.fixture(scope="session")
def fp32(smollm2_fp32_bundle: Path) -> Session:
    """SmolLM2-135M in float32, its caches wide enough for gamma 8."""
    return Session(Bundle.open(smollm2_fp32_bundle), DecodeOptions(drafter="model", gamma=8, chunk=128))
