"""Smoothed weights make an equal decoder, with activations that are easier to quantise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from edgepipe.exporters.llm.smooth import SmoothedWeights
from edgepipe.exporters.llm.torch_decoder import TorchDecoder, load_decoder
from edgepipe.exporters.sources import open_source
from edgepipe.runtimes.llm.rope import cos_sin_tables


def run(decoder: TorchDecoder, ids: np.ndarray, table_factors: np.ndarray | None = None) -> tuple[Tensor, list[Tensor]]:
    """Logits ``[S, V]``, and the inputs of every matrix that reads smoothed channels."""
    spec, count = decoder.spec, len(ids)
    seen: list[Tensor] = []
    for layer in decoder.layers:
        for name in ("qkv", "gate_up", "down"):
            layer.get_submodule(name).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    decoder.head.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    if table_factors is not None:
        decoder.embeddings.register_forward_hook(lambda *given: given[2] * torch.from_numpy(table_factors))
    cos, sin = map(torch.from_numpy, cos_sin_tables(spec, count))
    mask = torch.full((count, count), -1e30).triu(1)
    cache = [torch.zeros(spec.num_kv_heads, 0, spec.head_dim)] * 2 * spec.num_layers
    with torch.inference_mode():
        logits, *_ = decoder(torch.from_numpy(ids), torch.arange(count), cos, sin, mask, *cache)
    return logits, seen


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_decoder_is_the_same(architecture: str, tied: bool, tiny_model: Callable[..., Path]) -> None:
    weights = open_source(str(tiny_model(architecture, tied)))
    smoothed = SmoothedWeights(weights)
    assert (smoothed.table_factors is not None) == tied
    ids = np.random.default_rng(3).integers(0, weights.spec.vocab_size, 20)
    expected, _ = run(load_decoder(weights), ids)
    found, _ = run(load_decoder(smoothed), ids, smoothed.table_factors)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def test_biases_of_the_up_projection_are_divided_as_its_rows(tiny_model: Callable[..., Path]) -> None:
    weights = open_source(str(tiny_model("llama", mlp_bias=True)))
    smoothed = SmoothedWeights(weights)
    ids = np.arange(20)
    expected, _ = run(load_decoder(weights), ids)
    found, _ = run(load_decoder(smoothed), ids, smoothed.table_factors)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def test_large_channels_become_smaller_relative_to_the_others(tiny_model: Callable[..., Path]) -> None:
    """Norm weights that are large in a few channels, as those of trained models are."""
    weights = open_source(str(tiny_model("llama")))
    original = weights.tensor

    def with_outliers(name: str) -> np.ndarray:
        values = original(name)
        if "layernorm" in name:
            values[:3] = 30.0
        return values

    weights.tensor = with_outliers  # type: ignore[method-assign]
    smoothed = SmoothedWeights(weights)
    ids = np.random.default_rng(3).integers(0, weights.spec.vocab_size, 50)

    def crests(decoder: TorchDecoder, factors: np.ndarray | None = None) -> list[float]:
        """Largest channel over the median one, of every matrix' input."""
        peaks = [inputs.abs().amax(0) for inputs in run(decoder, ids, factors)[1]]
        return [float(peak.max() / peak.median()) for peak in peaks]

    before, after = crests(load_decoder(weights)), crests(load_decoder(smoothed), smoothed.table_factors)
    assert all(now < 0.5 * then for then, now in zip(before, after, strict=True) if then > 10)
    assert max(before) > 10
