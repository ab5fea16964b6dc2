"""A trimmed output vocabulary: a draft's head has rows for frequent tokens only (FR-Spec, Zhao et al. 2025)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgepipe.errors import BundleError
from edgepipe.runtimes.llm.spec import DecoderSpec

# The file of a bundle's component that has the ids.
TOKEN_IDS = "output_token_ids.npy"


class OutputVocabulary:
    """Which token each logit belongs to. ``ids`` is int32 ``[output_vocab_size]``, ascending."""

    def __init__(self, ids: np.ndarray, vocab_size: int) -> None:
        self.ids = ids
        self._full = np.full(vocab_size, -np.inf, np.float32)

    @classmethod
    def read(cls, path: Path, spec: DecoderSpec) -> OutputVocabulary:
        """Read ``output_token_ids.npy`` of a decoder of this shape.

        Raises:
            BundleError: the file is damaged, or another decoder's.
        """
        try:
            with path.open("rb") as file:
                ids = np.lib.format.read_array(file, allow_pickle=False)
        except (OSError, ValueError, EOFError, MemoryError) as error:
            raise BundleError(f"{path} is damaged: it is no array of numpy; export the bundle again") from error
        if ids.dtype != np.int32 or ids.shape != (spec.num_logits,):
            raise BundleError(
                f"{path} is {ids.dtype} {list(ids.shape)}, the draft's head has {spec.num_logits} tokens: expected "
                f"int32 [{spec.num_logits}]; the bundle's files do not belong together, export it again"
            )
        if ids[0] < 0 or ids[-1] >= spec.vocab_size or (np.diff(ids) <= 0).any():
            raise BundleError(
                f"{path} is damaged: expected ascending token ids from 0 to {spec.vocab_size - 1}; "
                "export the bundle again"
            )
        return cls(ids, spec.vocab_size)

    def full(self, logits: np.ndarray) -> np.ndarray:
        """``[output_vocab_size]`` to ``[vocab_size]``; the other tokens have minus infinity, so probability 0.

        The array is overwritten by the next call.
        """
        self._full[self.ids] = logits
        return self._full
