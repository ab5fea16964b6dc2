"""Weights of a draft folder over its target: layers and trimmed head are the draft's, embeddings the target's."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra, UnsupportedModel
from edgepipe.exporters.llm.draft_folder import CONFIG, TENSORS, DraftFolder
from edgepipe.exporters.llm.quantize import QuantizedMatrix
from edgepipe.exporters.sources.hugging_face import read_config
from edgepipe.exporters.sources.licence import model_card_licence
from edgepipe.exporters.sources.quiet import no_progress_bars
from edgepipe.exporters.sources.spec_from_config import check_tensors, spec_from_config
from edgepipe.exporters.sources.weights import DecoderWeights, SourceInfo, file_sha256, require_finite

try:
    import torch
    import transformers
    from transformers import PreTrainedModel
except ImportError as missing:
    raise MissingExtra(missing.name or "transformers", "export") from missing

EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class DraftWeights(DecoderWeights):
    """A decoder from a draft folder (`edgepipe.exporters.llm.draft_folder`)."""

    output_token_ids: np.ndarray

    def __init__(self, draft: DraftFolder, target: DecoderWeights, name: str | None = None) -> None:
        """Check that ``target`` is one that the draft can guess for.

        ``name`` is what the bundle calls the draft; by default the folder's name.

        Raises:
            UnsupportedModel: it is not, or the draft's files do not fit its configuration.
        """
        self._draft = draft
        self._target = target
        self._name = name or draft.folder.resolve().name
        self._config, architecture = read_config(draft.folder, self._name)
        spec, notes = spec_from_config(self._config, architecture, self._name, target.spec.eos_token_ids)
        if not isinstance(self._config, getattr(transformers, architecture).config_class):
            raise UnsupportedModel(
                f"{draft.folder / CONFIG} is damaged: model_type is {self._config.model_type}, architectures is "
                f"{architecture}; distil the draft again"
            )
        for size in ("vocab_size", "hidden_size"):
            found, expected = getattr(spec, size), getattr(target.spec, size)
            if found != expected:
                raise UnsupportedModel(
                    f"{self._name} was distilled from {draft.target}, of {size} {found}, but the target "
                    f"{target.info.name} has {expected}: distil a draft from this target"
                )
        self.kind = draft.kind
        self.output_token_ids = draft.output_token_ids
        self.spec = replace(spec, tied_embeddings=False, output_vocab_size=len(self.output_token_ids))
        check_tensors(self.spec, {**self._borrowed(), **draft.shapes}, self._name)
        notes = (*notes, f"distilled from {draft.target}, it guesses {self.spec.num_logits} of its tokens")
        self.info = SourceInfo("draft", self._name, None, model_card_licence(draft.folder / "README.md"), notes=notes)

    @cached_property
    def identity(self) -> str:
        hashes = [file_sha256(self._draft.folder / name) for name in (CONFIG, TENSORS)]
        return f"{self._name} sha256:{','.join(hashes)} over {self._target.identity}"

    def _borrowed(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors that are the target's."""
        return {EMBEDDINGS: (self.spec.vocab_size, self.spec.hidden_size)}

    @property
    def facts(self) -> dict[str, Any]:
        """What its configuration says of how it was made."""
        facts: dict[str, Any] = self._draft.config["edgepipe"]
        return facts

    def tensor(self, name: str) -> np.ndarray:
        if name in self._borrowed():
            return self._target.tensor(name)
        values = self._draft.tensor(name)
        require_finite(values, name, self._name)
        return values

    def gguf_type(self, name: str) -> str | None:
        return self._target.gguf_type(name) if name == EMBEDDINGS else None

    def quantized(self, name: str) -> QuantizedMatrix | None:
        return self._target.quantized(name) if name == EMBEDDINGS else None

    def save_tokenizer(self, folder: Path) -> None:
        self._target.save_tokenizer(folder)
        (folder / CONFIG).write_text(json.dumps(self._draft.config, indent=2) + "\n", encoding="utf-8")

    def reference_model(self) -> PreTrainedModel:
        tensors = self._torch_tensors()
        head = torch.nn.Linear(self.spec.hidden_size, self.spec.num_logits, bias=False)
        head.weight = torch.nn.Parameter(tensors.pop(HEAD))
        config = type(self._config).from_dict({**self._config.to_dict(), "tie_word_embeddings": True})
        model_class: type[PreTrainedModel] = getattr(transformers, self.spec.architecture)
        with no_progress_bars():
            model = model_class.from_pretrained(
                None, config=config, state_dict=tensors, dtype=torch.float32, attn_implementation="sdpa"
            )
        model.set_output_embeddings(head)  # transformers would make one of vocab_size rows
        return model.eval()

    def _torch_tensors(self) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(self.tensor(name)) for name in (*self._borrowed(), *self._draft.shapes)}
