"""TFLite decoders against transformers, and what is in their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import BundleError, EngineError, UnsupportedModel
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.llm.static_shape import FormatReport, StaticShape
from edgepipe.exporters.llm.tflite import write_tflite
from edgepipe.exporters.sources import open_source
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.engines.tflite import InterpreterSession, TFLiteDecoder
from edgepipe.runtimes.llm.kv_cache import KVCache

pytestmark = pytest.mark.slow  # litert-torch takes seconds a piece
SHAPE = StaticShape(widths=(1, 5), chunk=16)


@dataclass(frozen=True)
class Export:
    weights: DecoderWeights
    path: Path
    report: FormatReport

    def reference(self, ids: np.ndarray) -> np.ndarray:
        """Logits ``[S, V]`` of transformers."""
        import torch

        with torch.inference_mode():
            return self.weights.reference_model()(torch.from_numpy(ids[None])).logits[0].numpy()

    def logits(self, ids: np.ndarray, parts: list[int], scored: bool = False) -> np.ndarray:
        """Logits of all tokens, fed in ``parts``; of parts wider than 5, zeros but for the last."""
        decoder = TFLiteDecoder(self.path, self.weights.spec, threads=1, scored=scored)
        return fed(decoder, KVCache(self.weights.spec, 80, 40, scored=scored), ids, parts)


def fed(decoder: TFLiteDecoder, cache: KVCache, ids: np.ndarray, parts: list[int]) -> np.ndarray:
    logits, start = np.zeros((len(ids), decoder.spec.num_logits), np.float32), 0
    for count in parts:
        last_only = count > 5
        stop = start + count
        rows = slice(stop - 1, stop) if last_only else slice(start, stop)
        logits[rows] = decoder.forward(cache, ids[start:stop].tolist(), last_only=last_only)
        cache.commit(count)
        start = stop
    return logits


@pytest.fixture(scope="session")
def export(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Export]:
    """``export(architecture, tied=True, **recipe)``: once a session for the same arguments."""

    @cache
    def build(architecture: str, tied: bool = True, **recipe: Any) -> Export:
        source = tiny_model(architecture, tied)
        weights, folder = open_source(str(source)), tmp_path_factory.mktemp("tflite")
        report = write_tflite(weights, DecoderRecipe(str(source), **recipe), SHAPE, folder)
        return Export(weights, folder / report.paths["plain"], report)

    return build


def test_logits_in_float_are_those_of_transformers(architecture: str, export: Callable[..., Export]) -> None:
    tiny = export(architecture, tied=architecture != "qwen2", precision="fp32")
    ids = np.random.default_rng(0).integers(0, tiny.weights.spec.vocab_size, 40)
    expected = tiny.reference(ids)
    for parts in ([1, 5, 3, 2, 1], [23, 4, 5, 1]):  # 23 tokens take a whole chunk and a padded one
        found = tiny.logits(ids[: sum(parts)], parts)
        known = found.any(axis=1)
        assert known.sum() == sum(count if count <= 5 else 1 for count in parts)
        np.testing.assert_allclose(found[known], expected[: sum(parts)][known], atol=1e-3)


def test_both_runtimes_and_both_variants_agree(export: Callable[..., Export]) -> None:
    from ai_edge_litert.interpreter import Interpreter

    tiny = export("qwen3", precision="fp32")
    ids = np.arange(30) + 9
    parts = [17, 5, 3, 1, 4]
    expected = tiny.logits(ids, parts)
    for scored in (False, True):
        np.testing.assert_allclose(tiny.logits(ids, parts, scored), expected, atol=1e-4)
        decoder = TFLiteDecoder(tiny.path, tiny.weights.spec, threads=1, scored=scored)
        decoder._session = InterpreterSession(Interpreter(str(tiny.path), num_threads=1))
        cache = KVCache(tiny.weights.spec, 33, 17, scored=scored)
        np.testing.assert_allclose(fed(decoder, cache, ids, parts), expected, atol=1e-4)


def test_mass_is_that_of_onnx(export: Callable[..., Export], export_tiny: Any) -> None:
    from edgepipe.runtimes.llm.engines.onnx import OnnxDecoder

    tiny, other = export("qwen3", precision="fp32"), export_tiny("qwen3", precision="fp32")
    spec, ids = tiny.weights.spec, np.arange(30) + 9
    onnx = OnnxDecoder(other.folder / "onnx/model.scored.onnx", spec, threads=1, scored=True)
    caches = []
    for decoder in (TFLiteDecoder(tiny.path, spec, threads=1, scored=True), onnx):
        cache = KVCache(spec, 20, 20, scored=True)
        decoder.forward(cache, ids[:19].tolist(), last_only=True)
        cache.commit(19)
        decoder.forward(cache, ids[19:23].tolist())
        cache.commit(2)  # two of four are rolled back
        cache.evict(np.tile([3, 0, 20, 9], (spec.num_layers, spec.num_kv_heads, 1)))
        decoder.forward(cache, ids[21:24].tolist())
        cache.commit(3)
        caches.append(cache)
    np.testing.assert_allclose(caches[0].mass, caches[1].mass, atol=1e-4)
    np.testing.assert_allclose(caches[0].rows[..., :20, :], caches[1].rows[..., :20, :], atol=1e-4)
    assert caches[0].length == 20


def test_caches_of_any_capacity_take_turns(export: Callable[..., Export]) -> None:
    tiny = export("llama", precision="fp32")
    spec, ids = tiny.weights.spec, np.arange(30) + 5
    expected = tiny.reference(ids)
    decoder = TFLiteDecoder(tiny.path, spec, threads=1)
    caches = [KVCache(spec, budget, 5) for budget in (25, 300, 26)]
    for start in range(0, 25, 5):
        for index in range(3):
            found = decoder.forward(caches[index], ids[start : start + 5].tolist())
            np.testing.assert_allclose(found, expected[start : start + 5], atol=1e-3)
            caches[index].commit(5)
        caches[1] = KVCache(spec, 200 - start, 5)  # the one before it is gone
        fed(decoder, caches[1], ids[: start + 5], [5] * (start // 5 + 1))


@pytest.mark.parametrize(("precision", "worst"), [("int8", 0.02), ("int4", 0.25)])
def test_integer_weights_stay_near(precision: str, worst: float, export: Callable[..., Export]) -> None:
    """Relative to how far apart logits are; a wrong scale, sign or nibble order would leave nothing in common."""
    tiny = export("llama", precision=precision)
    ids = np.random.default_rng(2).integers(0, tiny.weights.spec.vocab_size, 25)
    expected, found = tiny.reference(ids), tiny.logits(ids, [5] * 5)
    error = np.square(found - expected).mean() / expected.var()
    assert error < worst
    assert tiny.report.precision == {"embeddings": "int8", "attention": precision, "mlp": precision, "head": "int8"}


def test_weights_are_in_the_file_once(export: Callable[..., Export]) -> None:
    sizes = {precision: export("llama", precision=precision).report.bytes for precision in ("fp32", "int8", "int4")}
    spec = export("llama", precision="fp32").weights.spec
    hidden, inner = spec.hidden_size, spec.intermediate_size
    rows = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    body = spec.num_layers * hidden * (rows + spec.num_heads * spec.head_dim + 3 * inner)
    table = spec.vocab_size * hidden
    assert abs((sizes["fp32"] - sizes["int8"]) - 3 * (body + table)) < 0.1 * 3 * (body + table)
    assert abs((sizes["int8"] - sizes["int4"]) - body / 2) < 0.2 * body  # the scales of blocks take some of it
    for precision in sizes:
        folder = export("llama", precision=precision).path.parent
        assert [path.name for path in folder.iterdir()] == ["model.tflite"]


def test_what_a_gguf_has_rounded_is_not_rounded_to_4_bits_again(
    tiny_model: Callable[..., Path], blocked_weights: Any, tmp_path: Path
) -> None:
    weights = blocked_weights(open_source(str(tiny_model("llama"))), {"mlp": "Q4_1", "embed": "Q8_0"})
    report = write_tflite(weights, DecoderRecipe("tiny"), StaticShape((1,), 8), tmp_path)
    assert report.precision == {"embeddings": "int8", "attention": "int4", "mlp": "int8", "head": "int8"}
    assert "Q4_1" in report.notes[0]


def test_rows_that_no_block_divides_are_told_of(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    source = str(tiny_model("llama", hidden_size=48, intermediate_size=80))
    report = write_tflite(open_source(source), DecoderRecipe(source, precision="int4"), StaticShape((1,), 8), tmp_path)
    assert report.precision["mlp"] == report.precision["attention"] == "int8"
    (note,) = report.notes
    assert note.endswith("multiples of 32 weights: matrices with rows of 48, 80 are int8")


def test_a_file_of_another_shape_or_none_of_ours_is_refused(export: Callable[..., Export], tmp_path: Path) -> None:
    from dataclasses import replace

    tiny = export("llama", precision="fp32")
    for change in ({"num_layers": 3}, {"num_kv_heads": 4}, {"vocab_size": 77}):
        with pytest.raises(EngineError, match="do not belong together"):
            TFLiteDecoder(tiny.path, replace(tiny.weights.spec, **change))
    damaged = tmp_path / "model.tflite"
    damaged.write_bytes(b"not a model at all" * 9)
    with pytest.raises(BundleError, match="cannot be loaded .*: if there is memory .* export the bundle again"):
        TFLiteDecoder(damaged, tiny.weights.spec)


def test_a_draft_that_reads_features_is_refused_before_anything_is_written(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    weights = open_source(str(tiny_model("llama")))
    weights.kind = "head"
    with pytest.raises(UnsupportedModel, match="--formats onnx"):
        write_tflite(weights, DecoderRecipe("tiny"), SHAPE, tmp_path)
    assert not list(tmp_path.iterdir())
