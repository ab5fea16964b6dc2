"""Tiny decoders exported to ONNX, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.exporters.llm.onnx import OnnxReport, write_onnx
from edgepipe.exporters.llm.onnx_session import OnnxSession
from edgepipe.exporters.llm.quantize import QuantizedMatrix, quantize
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.sources import open_source
from edgepipe.exporters.sources.weights import DecoderWeights


@dataclass(frozen=True)
class Export:
    """One exported tiny decoder."""

    weights: DecoderWeights
    folder: Path
    report: OnnxReport

    def session(self, scored: bool = False, capacity: int = 160) -> OnnxSession:
        name = "model.scored.onnx" if scored else "model.onnx"
        return OnnxSession(self.folder / "onnx" / name, capacity, threads=1)

    @cached_property
    def model(self) -> Any:
        """The source in transformers."""
        return self.weights.reference_model()

    def reference(self, ids: np.ndarray) -> np.ndarray:
        """Logits ``[S, V]`` of transformers."""
        import torch

        with torch.inference_mode():
            logits: np.ndarray = self.model(torch.tensor(ids[None])).logits[0].numpy()
        return logits

    def ids(self, count: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, self.weights.spec.vocab_size, count)


ExportTiny = Callable[..., Export]


@pytest.fixture(scope="session")
def export_tiny(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> ExportTiny:
    """``export_tiny(architecture, tied=True, model={...}, **recipe)``: once a session for the same arguments."""
    done: dict[str, Export] = {}

    def export(architecture: str, tied: bool = True, model: dict[str, Any] | None = None, **recipe: Any) -> Export:
        key = repr((architecture, tied, model, sorted(recipe.items())))
        if key not in done:
            source = tiny_model(architecture, tied, **(model or {}))
            weights = open_source(str(source))
            folder = tmp_path_factory.mktemp(f"export_{architecture}")
            report = write_onnx(weights, DecoderRecipe(str(source), **recipe), folder)
            done[key] = Export(weights, folder, report)
        return done[key]

    return export


class BlockedWeights(DecoderWeights):
    """Real weights, some of which pretend to come from a GGUF: ``types`` maps parts of names to Q4_0, Q8_0, ...."""

    def __init__(self, weights: DecoderWeights, types: dict[str, str]) -> None:
        self.spec, self.info = weights.spec, weights.info
        self._weights, self._types = weights, types

    def tensor(self, name: str) -> np.ndarray:
        blocks = self.quantized(name)
        return self._weights.tensor(name) if blocks is None else blocks.dequantize()

    def gguf_type(self, name: str) -> str | None:
        return next((kind for part, kind in self._types.items() if part in name), "F16")

    def quantized(self, name: str) -> QuantizedMatrix | None:
        kind = self.gguf_type(name) or ""
        bits = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}.get(kind)
        if bits is None or "norm" in name or name.endswith("bias"):
            return None
        matrix = quantize(self._weights.tensor(name), bits, 32, symmetric=True)
        if kind != "Q4_1":
            return matrix
        offsets = np.random.default_rng(0).normal(size=matrix.scales.shape).astype(np.float32) * matrix.scales
        return replace(matrix, offsets=offsets)

    def save_tokenizer(self, folder: Path) -> None:
        self._weights.save_tokenizer(folder)

    def reference_model(self) -> Any:
        return self._weights.reference_model()


@pytest.fixture(scope="session")
def blocked_weights() -> type[BlockedWeights]:
    return BlockedWeights
