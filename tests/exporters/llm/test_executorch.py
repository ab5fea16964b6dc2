"""ExecuTorch decoders against transformers, against the same codes in torch, and what is in their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.llm.static_shape import FormatReport, StaticShape
from edgepipe.exporters.sources import open_source
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.kv_cache import KVCache

pytest.importorskip("executorch")
import torch

from edgepipe.exporters.llm.executorch import decoder_parts, write_executorch
from edgepipe.exporters.llm.smooth import SmoothedWeights
from edgepipe.exporters.llm.xnnpack_layers import Embeddings
from edgepipe.exporters.llm.xnnpack_modules import BeforeAttention, Head
from edgepipe.exporters.llm.xnnpack_weights import MatrixPrecision, Precisions, quantize_rows
from edgepipe.runtimes.llm.engines.executorch import ExecuTorchDecoder
from edgepipe.runtimes.llm.rope import cos_sin_tables

pytestmark = pytest.mark.slow  # an export takes ten seconds


@dataclass(frozen=True)
class Export:
    weights: DecoderWeights
    recipe: DecoderRecipe
    path: Path
    report: FormatReport

    def ids(self, count: int) -> list[int]:
        return np.random.default_rng(0).integers(0, self.weights.spec.vocab_size, count).tolist()

    def reference(self, ids: list[int]) -> np.ndarray:
        """Logits ``[S, V]`` of transformers."""
        with torch.inference_mode():
            return self.weights.reference_model()(torch.tensor([ids])).logits[0].numpy()

    def logits(self, ids: list[int], parts: list[int], scored: bool = False) -> np.ndarray:
        """Logits ``[S, V]``, of tokens fed in ``parts``."""
        decoder = ExecuTorchDecoder(self.path, self.weights.spec, scored=scored)
        cache = KVCache(self.weights.spec, len(ids), max(parts), scored=scored)
        found, start = [], 0
        for count in parts:
            found.append(decoder.forward(cache, ids[start : start + count]).copy())
            cache.commit(count)
            start += count
        return np.concatenate(found)


@pytest.fixture(scope="session")
def export(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Export]:
    """``export(architecture, tied=True, **recipe)``: once a session for the same arguments."""

    @cache
    def build(architecture: str, tied: bool = True, **recipe: Any) -> Export:
        source = tiny_model(architecture, tied)
        weights, folder = open_source(str(source)), tmp_path_factory.mktemp("executorch")
        asked = DecoderRecipe(str(source), **recipe)
        report = write_executorch(weights, asked, StaticShape(), folder)
        return Export(weights, asked, folder / report.paths["plain"], report)

    return build


def test_logits_in_float_are_those_of_transformers(architecture: str, export: Callable[..., Export]) -> None:
    tiny = export(architecture, tied=architecture != "qwen2", precision="fp32")
    ids = tiny.ids(150)
    expected = tiny.reference(ids)
    # All at once is more than one run takes, in tokens and in rows of logits.
    for parts in ([1, 5, 3, 40, 2, 1], [150]):
        for scored in (False, True):
            found = tiny.logits(ids[: sum(parts)], parts, scored)
            np.testing.assert_allclose(found, expected[: sum(parts)], atol=1e-3)
    decoder = ExecuTorchDecoder(tiny.path, tiny.weights.spec)
    last = decoder.forward(KVCache(tiny.weights.spec, 0, 150), ids, last_only=True)
    np.testing.assert_allclose(last, expected[-1:], atol=1e-3)


# One with biases, and one with norms of heads.
@pytest.mark.parametrize(("family", "precision"), [("qwen2", "int4"), ("qwen3", "int8")])
def test_integer_products_are_those_of_torch(family: str, precision: str, export: Callable[..., Export]) -> None:
    """The same codes and scales, multiplied by torch in float32: whatever XNNPACK does otherwise would show."""
    tiny = export(family, precision=precision)
    ids = tiny.ids(30)
    with torch.inference_mode():
        np.testing.assert_allclose(tiny.logits(ids, [30]), in_torch(tiny, ids), atol=2e-2)


def in_torch(tiny: Export, ids: list[int]) -> np.ndarray:
    """Logits of the modules that are lowered, with torch's attention between them."""
    weights = SmoothedWeights(tiny.weights)
    spec, precisions = weights.spec, Precisions(weights, tiny.recipe)
    embeddings = Embeddings(spec, precisions)
    embeddings.load(weights)
    cos, sin = (torch.from_numpy(np.concatenate([half, half], 1))[:, None] for half in cos_sin_tables(spec, len(ids)))
    hidden, attended = embeddings(torch.tensor(ids)), None
    for part in decoder_parts(spec, precisions):
        part.load(weights)
        if isinstance(part, Head):
            return part(hidden)[0].numpy()
        if isinstance(part, BeforeAttention):
            heads = part(hidden, cos, sin)
        else:
            angles = (cos, sin) if hasattr(part, "before") else ()
            hidden, *heads = part(hidden, attended, *angles)
        if heads:
            query, key, value = (head.transpose(1, 2) for head in heads)  # [Hkv, G or 1, S, D]
            attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            attended = attended.transpose(1, 2)
    raise AssertionError("there is no head")


@pytest.mark.parametrize(("family", "precision", "worst"), [("qwen3", "int8", 0.02), ("qwen2", "int4", 0.25)])
def test_integer_weights_stay_near(family: str, precision: str, worst: float, export: Callable[..., Export]) -> None:
    """Relative to how far apart logits are; a wrong scale, sign or nibble order would leave nothing in common."""
    tiny = export(family, precision=precision)
    ids = tiny.ids(25)
    expected = tiny.reference(ids)
    error = np.square(tiny.logits(ids, [25]) - expected).mean() / expected.var()
    assert error < worst
    assert tiny.report.precision == {"embeddings": "int8", "attention": precision, "mlp": precision, "head": "int8"}


@pytest.mark.parametrize(("family", "precision"), [("llama", "fp32"), ("qwen3", "int8"), ("qwen2", "int4")])
def test_both_methods_have_one_set_of_weights(family: str, precision: str, export: Callable[..., Export]) -> None:
    tiny = export(family, tied=True, precision=precision)
    spec = tiny.weights.spec
    rows = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    body = spec.num_layers * spec.hidden_size * (rows + spec.num_heads * spec.head_dim + 3 * spec.intermediate_size)
    table = 2 * spec.vocab_size * spec.hidden_size  # embeddings, and head
    weight_bytes = {"fp32": 4 * (body + table), "int8": body + table, "int4": body * 9 // 16 + table}[precision]
    graphs = tiny.report.bytes - weight_bytes
    assert 0 < graphs < weight_bytes
    assert graphs < 100_000
    assert [path.name for path in tiny.path.parent.iterdir()] == ["model.pte"]


def test_what_a_gguf_has_rounded_is_not_rounded_to_4_bits_again(
    tiny_model: Callable[..., Path], blocked_weights: Any
) -> None:
    weights = blocked_weights(open_source(str(tiny_model("llama"))), {"mlp": "Q4_1", "embed": "Q8_0"})
    precisions = Precisions(weights, DecoderRecipe("tiny"))
    assert precisions.of("mlp", ["model.layers.0.mlp.up_proj.weight"], 64).bits == 8
    assert precisions.of("attention", ["model.layers.0.self_attn.q_proj.weight"], 64) == MatrixPrecision(4, 32)
    assert (
        precisions.of("attention", ["model.layers.0.self_attn.o_proj.weight"], 80).bits == 8
    )  # blocks of 16 are too short
    assert precisions.report() == {"mlp": "int8", "attention": "int4+int8"}
    assert "Q4_1" in precisions.notes()[0]
    assert precisions.notes()[1].endswith("multiples of 32 weights: matrices with rows of 80 are int8")


def test_codes_are_exact_with_the_scales_that_xnnpack_holds() -> None:
    values = np.random.default_rng(1).normal(size=(40, 64)).astype(np.float32)
    values[3] = 0
    codes, scales = quantize_rows(values, MatrixPrecision(4, 32))
    as_held = torch.from_numpy(scales).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(as_held, scales)
    assert -8 <= codes.min() <= codes.max() <= 7
    assert not codes[3].any()
    assert (scales > 0).all()
    errors = np.abs(codes.reshape(40, 2, 32) * scales[..., None] - values.reshape(40, 2, 32)).max(-1)
    # Codes outside of the range are cut, which the search for scales allows where it pays: not by much.
    assert (errors <= 1.5 * np.abs(values.reshape(40, 2, 32)).max(-1) / 7).all()
    codes, scales = quantize_rows(values, MatrixPrecision(8, 64))
    assert codes.min() >= -127
    assert scales.shape == (40, 1)


def test_a_draft_that_reads_features_is_refused_before_anything_is_written(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    weights = open_source(str(tiny_model("llama")))
    weights.kind = "head"
    with pytest.raises(UnsupportedModel, match="--formats onnx"):
        write_executorch(weights, DecoderRecipe("tiny"), StaticShape(), tmp_path)
    assert not list(tmp_path.iterdir())
