"""The target's features of samples: the rows that its last layer gives to its final norm."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from edgepipe.errors import EdgepipeError
from edgepipe.exporters.llm.distill.samples import Sample
from edgepipe.exporters.llm.distill.training import low_precision
from edgepipe.exporters.sources.weights import DecoderWeights


class Features:
    """Computes features through transformers, and keeps them in files, float16 ``[tokens, hidden]`` for a shard."""

    def __init__(self, weights: DecoderWeights, folder: Path) -> None:
        self.weights = weights
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._model: torch.nn.Module | None = None

    def add(self, name: str, samples: Sequence[Sample], progress: Callable[[float], None]) -> list[Sample]:
        """The samples with their features, mapped from the disk; ``name`` is the file's.

        Raises:
            EdgepipeError: the file is of other samples.
        """
        path = self.folder / f"{name}.npy"
        total = sum(sample.tokens.size for sample in samples)
        if not path.is_file():
            self._write(path, samples, total, progress)
        rows = np.load(path, mmap_mode="r")
        if rows.shape != (total, self.weights.spec.hidden_size):
            raise EdgepipeError(f"{path} has {rows.shape[0]} rows, expected {total}: remove it")
        ends = np.cumsum([sample.tokens.size for sample in samples])
        return [
            replace(sample, features=rows[end - sample.tokens.size : end])
            for sample, end in zip(samples, ends, strict=True)
        ]

    def close(self) -> None:
        """Let the target go."""
        self._model = None
        gc.collect()

    def _write(self, path: Path, samples: Sequence[Sample], total: int, progress: Callable[[float], None]) -> None:
        partial = path.with_name(f".{path.name}.partial")
        shape = (total, self.weights.spec.hidden_size)
        rows = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float16, shape=shape)
        done = 0
        for sample in samples:
            rows[done : done + sample.tokens.size] = self._compute(sample.tokens)
            done += sample.tokens.size
            progress(done / total)
        rows.flush()
        del rows
        os.replace(partial, path)

    def _compute(self, tokens: np.ndarray) -> np.ndarray:
        if self._model is None:
            model = self.weights.reference_model().get_decoder()
            model.norm = torch.nn.Identity()
            self._model = model
        with torch.inference_mode(), low_precision():
            output = self._model(input_ids=torch.from_numpy(tokens).long()[None], use_cache=False)
        found: np.ndarray = output.last_hidden_state[0].float().clamp(-65504, 65504).numpy()
        return found
