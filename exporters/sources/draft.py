"""Weights of a draft folder over its target: layers and trimmed head are the draft's, embeddings the target's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgepipe.errors import MissingExtra, UnsupportedModel
from edgepipe.exporters.llm.draft_folder import CONFIG, read_draft
from edgepipe.exporters.llm.quantize import QuantizedMatrix
from edgepipe.exporters.sources.hugging_face import read_config
from edgepipe.exporters.sources.licence import model_card_licence
from edgepipe.exporters.sources.quiet import no_progress_bars
from edgepipe.exporters.sources.spec_from_config import check_tensors, spec_from_config
from edgepipe.exporters.sources.weights import DecoderWeights, SourceInfo, require_finite

try:
    import torch
    import transformers
    from transformers import PreTrainedModel
except ImportError as missing:
    raise MissingExtra(missing.name or "transformers", "export") from missing

EMBEDDINGS = "model.embed_tokens.weight"


class DraftWeights(DecoderWeights):
    """A decoder from a draft folder (`edgepipe.exporters.llm.draft_folder`)."""

    def __init__(self, folder: Path, target: DecoderWeights, name: str | None = None) -> None:
        """Read configuration and headers.

        ``name`` is what the bundle calls the draft; by default the folder's name.

        Raises:
            EdgepipeError: there is no such folder.
            UnsupportedModel: its files are damaged, or ``target`` is not one that it can guess for.
        """
        self._draft = read_draft(folder)
        self._target = target
        self._name = name or folder.resolve().name
        self._config, architecture = read_config(folder, self._name)
        spec, notes = spec_from_config(self._config, architecture, self._name, target.spec.eos_token_ids)
        for size in ("vocab_size", "hidden_size"):
            found, expected = getattr(spec, size), getattr(target.spec, size)
            if found != expected:
                raise UnsupportedModel(
                    f"{self._name} was distilled from {self._draft.target}, of {size} {found}, but the target "
                    f"{target.info.name} has {expected}: distil a draft from this target"
                )
        self.output_token_ids = self._draft.output_token_ids
        self.spec = replace(spec, tied_embeddings=False, output_vocab_size=len(self.output_token_ids))
        shapes = {EMBEDDINGS: (spec.vocab_size, spec.hidden_size), **self._draft.shapes}
        check_tensors(self.spec, shapes, self._name)
        notes = (*notes, f"distilled from {self._draft.target}, it guesses {self.spec.num_logits} of its tokens")
        self.info = SourceInfo("draft", self._name, None, model_card_licence(folder / "README.md"), notes=notes)

    def tensor(self, name: str) -> np.ndarray:
        if name == EMBEDDINGS:
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
        tensors = {name: torch.from_numpy(self.tensor(name)) for name in (EMBEDDINGS, *self._draft.shapes)}
        head = torch.nn.Linear(self.spec.hidden_size, self.spec.num_logits, bias=False)
        head.weight = torch.nn.Parameter(tensors.pop("lm_head.weight"))
        config = type(self._config).from_dict({**self._config.to_dict(), "tie_word_embeddings": True})
        model_class: type[PreTrainedModel] = getattr(transformers, self.spec.architecture)
        with no_progress_bars():
            model = model_class.from_pretrained(
                None, config=config, state_dict=tensors, dtype=torch.float32, attn_implementation="sdpa"
            )
        model.set_output_embeddings(head)  # transformers would make one of vocab_size rows
        return model.eval()
