"""The ExecuTorch engine: scores, rollback and eviction against onnxruntime, caches side by side, and its errors."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgepipe.errors import BundleError, EngineError, MissingExtra
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.llm.static_shape import StaticShape
from edgepipe.exporters.sources import open_source
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.spec import DecoderSpec

pytest.importorskip("executorch")
from edgepipe.runtimes.llm.engines.executorch import ExecuTorchDecoder

pytestmark = pytest.mark.slow  # an export takes ten seconds
RECIPE = DecoderRecipe("tiny", precision="fp32")
IDS = (np.arange(60) * 7 % 300).tolist()


@pytest.fixture(scope="module")
def weights(tiny_model: Callable[..., Path]) -> DecoderWeights:
    return open_source(str(tiny_model("qwen3")))


@pytest.fixture(scope="module")
def spec(weights: DecoderWeights) -> DecoderSpec:
    return weights.spec


@pytest.fixture(scope="module")
def model(weights: DecoderWeights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from edgepipe.exporters.llm.executorch import write_executorch

    folder = tmp_path_factory.mktemp("executorch")
    return folder / write_executorch(weights, RECIPE, StaticShape(), folder).paths["plain"]


def test_scores_rollback_and_eviction_are_those_of_onnx(model: Path, weights: DecoderWeights, tmp_path: Path) -> None:
    from edgepipe.exporters.llm.onnx import SCORED, write_onnx
    from edgepipe.runtimes.llm.engines.onnx import OnnxDecoder

    spec = weights.spec
    write_onnx(weights, RECIPE, tmp_path)
    caches = []
    for decoder in (
        ExecuTorchDecoder(model, spec, scored=True),
        OnnxDecoder(tmp_path / SCORED, spec, threads=1, scored=True),
    ):
        cache = KVCache(spec, 25, 20, scored=True)
        decoder.forward(cache, IDS[:20], last_only=True)
        cache.commit(20)
        decoder.forward(cache, IDS[30:34])
        decoder.forward(cache, IDS[34:36])
        cache.commit(5)  # one of six is rolled back, the second forward's last
        cache.evict(np.tile([3, 0, 24, 9], (spec.num_layers, spec.num_kv_heads, 1)))
        logits = decoder.forward(cache, IDS[36:39]).copy()
        cache.commit(3)
        caches.append((cache, logits))
    (ours, found), (theirs, expected) = caches
    assert ours.length == 24
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(ours.mass, theirs.mass, atol=1e-4)
    np.testing.assert_allclose(ours.rows[..., :24, :], theirs.rows[..., :24, :], atol=1e-4)


def test_caches_take_turns_and_only_their_new_slots_are_written(model: Path, spec: DecoderSpec) -> None:
    decoder = ExecuTorchDecoder(model, spec)
    alone = KVCache(spec, 30, 5)
    expected = []
    for start in range(0, 25, 5):
        expected.append(decoder.forward(alone, IDS[start : start + 5]).copy())
        alone.commit(5)
    caches = [KVCache(spec, budget, 5) for budget in (25, 301)]
    for turn in range(5):
        for cache in caches:
            cache.rows[..., cache.used + 5 :, :] = np.nan  # nothing behind the new slots is read, or written
            np.testing.assert_allclose(decoder.forward(cache, IDS[5 * turn : 5 * turn + 5]), expected[turn], atol=1e-5)
            assert np.isnan(cache.rows[..., cache.used :, :]).all()
            cache.commit(5)


def test_a_cache_must_fit(model: Path, spec: DecoderSpec) -> None:
    decoder = ExecuTorchDecoder(model, spec)
    with pytest.raises(ValueError, match="plain"):
        decoder.forward(KVCache(spec, 10, 5, scored=True), IDS[:3])
    with pytest.raises(EngineError, match="the cache has 70005 slots, and the file takes up to 65664: give a smaller"):
        decoder.forward(KVCache(spec, 70_000, 5), IDS[:3])


def test_a_token_beyond_the_vocabulary_is_an_error(model: Path, spec: DecoderSpec) -> None:
    with pytest.raises(EngineError, match="beyond the model's"):
        ExecuTorchDecoder(model, spec).forward(KVCache(spec, 10, 5), [1, spec.vocab_size])


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("change", [{"num_layers": 3}, {"num_kv_heads": 4}, {"output_vocab_size": 77}], ids=str)
def test_a_file_of_another_shape_is_refused(
    model: Path, spec: DecoderSpec, change: dict[str, int], scored: bool
) -> None:
    with pytest.raises(EngineError, match="do not belong together"):
        ExecuTorchDecoder(model, replace(spec, **change), scored=scored)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"\xff" * len(data),
        lambda data: data[:64] + np.random.default_rng(0).bytes(len(data) - 64),
    ],
    ids=["half", "empty", "no program", "inside"],
)
def test_a_damaged_file_is_named(
    model: Path, spec: DecoderSpec, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    copy = Path(shutil.copy(model, tmp_path))
    copy.write_bytes(damage(copy.read_bytes()))
    with pytest.raises(
        BundleError, match=r"(cannot be loaded \(.*\)|no ExecuTorch program): .*export the bundle again"
    ):
        ExecuTorchDecoder(copy, spec)


def test_a_missing_file_is_named(spec: DecoderSpec, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="model.pte cannot be loaded"):
        ExecuTorchDecoder(tmp_path / "model.pte", spec)


def test_the_program_of_a_vision_model_is_refused(spec: DecoderSpec, tmp_path: Path) -> None:
    import torch
    from executorch.exir import to_edge

    path = tmp_path / "model.pte"
    program = to_edge(torch.export.export(torch.nn.ReLU(), (torch.zeros(2, 2),))).to_executorch()
    with path.open("wb") as file:
        program.write_to_file(file)
    with pytest.raises(BundleError, match="cannot be loaded"):
        ExecuTorchDecoder(path, spec)


def test_executorch_missing_says_what_to_type(model: Path, spec: DecoderSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "executorch.extension.pybindings", None)
    with pytest.raises(MissingExtra, match=r"^executorch\.\S+ is not installed: pip install 'edgepipe\[executorch\]'"):
        ExecuTorchDecoder(model, spec)


@pytest.mark.parametrize("missing", ["torch", "executorch"])
def test_what_is_missing_is_named(missing: str, spec: DecoderSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == missing or name.startswith(f"{missing}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"^{missing}\S* is not installed: pip install 'edgepipe\[executorch\]'"):
        ExecuTorchDecoder(Path("model.pte"), spec)


def test_a_binding_that_does_not_load_is_told_from_none(spec: DecoderSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    import executorch.extension.pybindings as package

    monkeypatch.delattr(package, "_portable_lib", raising=False)
    monkeypatch.delitem(sys.modules, "executorch.extension.pybindings._portable_lib", raising=False)
    monkeypatch.setattr(package, "__path__", [])
    with pytest.raises(EngineError, match=r"^executorch does not load \(cannot import name '_portable_lib'.*reinstall"):
        ExecuTorchDecoder(Path("model.pte"), spec)


def test_missing_operators_are_told_from_a_missing_package(
    model: Path, spec: DecoderSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "executorch.extension.llm.custom_ops", None)
    with pytest.raises(EngineError, match=r"^executorch has no executorch\.extension\.llm\.custom_ops, .*reinstall"):
        ExecuTorchDecoder(model, spec)
