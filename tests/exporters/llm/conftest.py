"""Tiny decoders exported to ONNX, shared by the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from edgepipe.exporters.llm.onnx import OnnxReport, write_onnx
from edgepipe.exporters.llm.quantize import QuantizedMatrix, quantize
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.sources import open_source
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.spec import DecoderSpec


class OnnxSession:
    """One sequence over one graph, bound by hand, not by the product's engine.

    Keys and values are written in place into a buffer of ``capacity`` slots.

    ``spec`` is read from the graph's metadata. ``length`` is the number of tokens fed so far; set it back to forget
    the last ones.
    """

    def __init__(self, model: Path, capacity: int, threads: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # the default inputs draw a warning each
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.spec = spec = DecoderSpec.from_json(json.loads(metadata["edgepipe.spec"]))
        self._binding = self._session.io_binding()
        self._outputs = [output.name for output in self._session.get_outputs() if "present" not in output.name]
        # The binding keeps no reference to the arrays it reads.
        self._bound: dict[str, np.ndarray] = {}
        self._ones = np.ones((1, capacity), np.int64)
        self.length = 0
        for index in range(spec.num_layers):
            for part in ("key", "value"):
                buffer = np.zeros((1, spec.num_kv_heads, capacity, spec.head_dim), np.float32)
                past = self._bind(f"past_key_values.{index}.{part}", buffer)
                self._binding.bind_ortvalue_output(f"present.{index}.{part}", past)

    def forward(
        self, ids: Sequence[int], positions: Sequence[int] | None = None, logits_from: int = 0, **tables: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Feed ``ids``; returns the graph's outputs without the cache: ``logits`` ``[1, S - logits_from, V]``, ....

        ``positions`` are the tokens' own (their slots unless given); ``tables`` replaces ``cos_cache``, ``sin_cache``.
        """
        total = self.length + len(ids)
        self._bind("input_ids", np.array([ids], np.int64))
        self._bind("attention_mask", self._ones[:, :total])
        self._bind("position_ids", np.array([range(self.length, total) if positions is None else positions], np.int64))
        self._bind("logits_from", np.array([logits_from], np.int64))
        for name, table in tables.items():
            self._bind(name, table)
        for name in self._outputs:
            self._binding.bind_output(name)  # anew each time: its shape changes
        self._session.run_with_iobinding(self._binding)
        self.length = total
        values = self._binding.get_outputs()[-len(self._outputs) :]
        return {name: value.numpy() for name, value in zip(self._outputs, values, strict=True)}

    def chunks(self, ids: Sequence[int], chunk: int) -> Iterator[np.ndarray]:
        """Logits ``[<= chunk, V]`` of a whole sequence, fed from the start a chunk at a time."""
        self.length = 0
        for start in range(0, len(ids), chunk):
            yield self.forward(ids[start : start + chunk])["logits"][0]

    def logits(self, ids: Sequence[int], chunk: int) -> np.ndarray:
        """Logits ``[S, V]`` of a whole sequence."""
        return np.concatenate(list(self.chunks(ids, chunk)))

    def _bind(self, name: str, array: np.ndarray) -> object:
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        self._bound[name] = array
        self._binding.bind_ortvalue_input(name, value)
        return value


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


@pytest.fixture(scope="session")
def onnx_session() -> type[OnnxSession]:
    return OnnxSession
