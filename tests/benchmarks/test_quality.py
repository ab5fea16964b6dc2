"""What the README says of eviction, on the real model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import edgepipe
from edgepipe.errors import EdgepipeError
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.session import CacheOptions, DecodeOptions, Session

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script ``benchmarks/quality.py``."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("quality", BENCHMARKS / "quality.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "quality", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of SmolLM2-135M in int8."""
    pytest.importorskip("torch")
    recipe = Recipe(DecoderRecipe("smollm2-135m", precision="int8"), None, validate=False)
    try:
        return edgepipe.export(recipe, tmp_path_factory.mktemp("smollm2") / "bundle").folder
    except EdgepipeError as error:
        pytest.skip(f"no SmolLM2-135M: {error}")


@pytest.mark.slow
def test_losses_are_those_of_transformers(quality: ModuleType, smollm2: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from edgepipe.exporters.sources import open_source

    session = Session(Bundle.open(smollm2), DecodeOptions(chunk=32))
    tokens = session.tokenizer.encode(quality.prose(4000))[:300]
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logits = open_source("smollm2-135m").reference_model()(ids).logits[0, :-1]
    expected = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").numpy()
    found = quality.losses(session, CacheOptions(), tokens)
    assert abs(found.mean() - expected.mean()) < 0.02
    assert np.corrcoef(found, expected)[0, 1] > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.1])
def test_h2o_beats_the_window(share: float, quality: ModuleType, smollm2: Path) -> None:
    session = Session(Bundle.open(smollm2), DecodeOptions(chunk=32))
    # The licence is the same text everywhere and refers back to its definitions all the time.
    tokens = session.tokenizer.encode((BENCHMARKS.parent / "LICENSE").read_text(encoding="utf-8"))
    budget = str(int(share * len(tokens)))
    window = quality.losses(session, CacheOptions("window", budget), tokens)
    h2o = quality.losses(session, CacheOptions("h2o", budget), tokens)
    full = quality.losses(session, CacheOptions(), tokens)
    assert full.mean() < h2o.mean() < window.mean()
