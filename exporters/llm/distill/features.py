"""The target's features of samples: the rows that its last layer gives to its final norm."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from edgepipe.errors import EdgepipeError
from edgepipe.exporters.llm.distill.samples import Sample, replaced
from edgepipe.exporters.llm.distill.training import low_precision
from edgepipe.exporters.sources.weights import DecoderWeights


class Features:
    """Computes features through transformers, and keeps them in files, float16 ``[tokens, hidden]`` for a shard."""

    def __init__(self, weights: DecoderWeights, folder: Path) -> None:
        self.weights = weights
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._model: torch.nn.Module | None = None

    def add(self, samples: Sequence[Sample], progress: Callable[[float], None]) -> list[Sample]:
        """The samples with their features, mapped from the disk.

        Raises:
            EdgepipeError: the file is damaged.
        """
        path = self.folder / f"{self._digest(samples)}.npy"
        total = sum(sample.tokens.size for sample in samples)
        if not path.is_file():
            self._write(path, samples, total, progress)
        try:
            rows = np.lib.format.open_memmap(path, mode="r")
        except Exception as error:  # a damaged header may be anything
            raise _damaged(path) from error
        if rows.shape != (total, self.weights.spec.hidden_size) or rows.dtype != np.float16:
            raise _damaged(path)
        ends = np.cumsum([sample.tokens.size for sample in samples])
        return [
            replace(sample, features=rows[end - sample.tokens.size : end])
            for sample, end in zip(samples, ends, strict=True)
        ]

    def close(self) -> None:
        """Let the target go."""
        self._model = None
        gc.collect()

    def _digest(self, samples: Sequence[Sample]) -> str:
        """What the features depend on."""
        digest = hashlib.sha256(self.weights.identity.encode())
        for sample in samples:
            digest.update(np.array([sample.tokens.size, *sample.tokens], np.int64).tobytes())
        return digest.hexdigest()[:16]

    def _write(self, path: Path, samples: Sequence[Sample], total: int, progress: Callable[[float], None]) -> None:
        shape = (total, self.weights.spec.hidden_size)
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float16)), "fortran_order": False, "shape": shape}
        done = 0
        with replaced(path) as partial, partial.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for sample in samples:  # not through a memory map: a full disk would be a bus error
                file.write(self._compute(sample.tokens).astype(np.float16).tobytes())
                done += sample.tokens.size
                progress(done / total)

    def _compute(self, tokens: np.ndarray) -> np.ndarray:
        if self._model is None:
            model = self.weights.reference_model().get_decoder()
            model.norm = torch.nn.Identity()
            self._model = model
        with torch.inference_mode(), low_precision():
            output = self._model(input_ids=torch.from_numpy(tokens).long()[None], use_cache=False)
        found: np.ndarray = output.last_hidden_state[0].float().clamp(-65504, 65504).numpy()
        return found


def _damaged(path: Path) -> EdgepipeError:
    return EdgepipeError(f"{path} is damaged: remove it, and it will be computed again")
