"""The torch decoder against transformers: every architecture, with a cache, its padding and its slots in any order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.llm.torch_decoder import TorchDecoder, load_decoder
from edgepipe.exporters.sources import open_source
from edgepipe.runtimes.llm.rope import cos_sin_tables

SLOTS = 40
HIDDEN = -1e30


def feed(
    decoder: TorchDecoder, ids: np.ndarray, parts: list[int], slots: np.ndarray, positions: np.ndarray | None = None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits of all tokens, fed in ``parts``, and each part's mass; token i is put into slot ``slots[i]``."""
    spec = decoder.spec
    positions = np.arange(len(ids)) if positions is None else positions
    cos, sin = map(torch.from_numpy, cos_sin_tables(spec, int(positions.max()) + 1))
    cache = [torch.randn(spec.num_kv_heads, SLOTS, spec.head_dim) for _ in range(2 * spec.num_layers)]
    logits, masses, start = [], [], 0
    for width in parts:
        now = slice(start, start + width)
        live = torch.zeros(SLOTS, dtype=torch.bool)
        live[slots[:start]] = True
        seen = torch.cat([torch.ones(width, width, dtype=torch.bool).tril(), live.expand(width, -1)], dim=1)
        mask = torch.where(seen, 0.0, HIDDEN)
        rows = torch.arange(width)
        found, new_rows, *mass = decoder(
            torch.from_numpy(ids[now]), rows, cos[positions[now]], sin[positions[now]], mask, *cache
        )
        for tensor, new in zip(cache, new_rows.flatten(0, 1), strict=True):
            tensor[:, slots[now]] = new
        logits.append(found)
        masses += mass
        start += width
    return torch.cat(logits), masses


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_logits_are_those_of_transformers(architecture: str, tied: bool, tiny_model: Callable[..., Path]) -> None:
    _compare(tiny_model(architecture, tied))


@pytest.mark.parametrize("changes", [{"attention_bias": True}, {"mlp_bias": True}, {"num_key_value_heads": 4}], ids=str)
def test_biases_and_as_many_kv_heads_as_query_heads(changes: dict[str, Any], tiny_model: Callable[..., Path]) -> None:
    _compare(tiny_model("llama", **changes))


def _compare(source: Path) -> None:
    weights = open_source(str(source))
    model, decoder = weights.reference_model(), load_decoder(weights)
    rng = np.random.default_rng(0)
    ids, slots = rng.integers(0, weights.spec.vocab_size, 30), rng.permutation(SLOTS)
    with torch.inference_mode():
        expected = model(torch.from_numpy(ids[None])).logits[0]
        for parts in ([30], [13, 1, 5, 11]):
            found, _ = feed(decoder, ids, parts, slots)
            torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def test_positions_may_lie_beyond_the_slots(architecture: str, tiny_model: Callable[..., Path]) -> None:
    weights = open_source(str(tiny_model(architecture)))
    model, decoder = weights.reference_model(), load_decoder(weights)
    ids, positions = np.arange(12) + 7, np.arange(300, 312)
    with torch.inference_mode():
        expected = model(torch.from_numpy(ids[None]), position_ids=torch.from_numpy(positions[None])).logits[0]
        found, _ = feed(decoder, ids, [7, 5], np.arange(12), positions)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def test_mass_is_the_probability_summed_over_the_heads_of_a_group(
    architecture: str, tiny_model: Callable[..., Path]
) -> None:
    weights = open_source(str(tiny_model(architecture)))
    spec = weights.spec
    model = weights.reference_model()
    model.set_attn_implementation("eager")
    ids, slots = np.arange(20) + 5, np.random.default_rng(1).permutation(SLOTS)
    with torch.inference_mode():
        attentions = model(torch.from_numpy(ids[None]), output_attentions=True).attentions
        _, (first, second) = feed(load_decoder(weights, scored=True), ids, [12, 8], slots)
    expected = torch.stack([layer[0] for layer in attentions])  # [L, H, S, T]
    expected = expected.unflatten(1, (spec.num_kv_heads, -1)).sum(2)
    torch.testing.assert_close(first[..., :12], expected[:, :, :12, :12], atol=1e-4, rtol=0)
    assert not first[..., 12:].any()
    torch.testing.assert_close(second[..., 8 + slots[:12]], expected[:, :, 12:, :12], atol=1e-4, rtol=0)
    torch.testing.assert_close(second[..., :8], expected[:, :, 12:, 12:], atol=1e-4, rtol=0)


def test_a_draft_that_reads_features_is_refused(tiny_model: Callable[..., Path]) -> None:
    weights = open_source(str(tiny_model("llama")))
    weights.kind = "head"
    with pytest.raises(UnsupportedModel, match="--formats onnx"):
        load_decoder(weights)
