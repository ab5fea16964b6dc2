"""Weights of a draft of kind head: one layer that reads its target's features (EAGLE, Li et al. 2024)."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra, UnsupportedModel
from edgepipe.exporters.llm.draft_folder import DraftFolder
from edgepipe.exporters.sources.draft import EMBEDDINGS, HEAD, DraftWeights
from edgepipe.exporters.sources.weights import DecoderWeights

try:
    import torch
    from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutputWithPast
except ImportError as missing:
    raise MissingExtra(missing.name or "transformers", "export") from missing

NORM = "model.norm.weight"


class HeadWeights(DraftWeights):
    """A head from a draft folder; final norm and head are its target's, like the embeddings."""

    def __init__(self, draft: DraftFolder, target: DecoderWeights, name: str | None = None) -> None:
        """As `DraftWeights`."""
        super().__init__(draft, target, name)
        hidden = self.spec.hidden_size
        expected = {"fc": (hidden, 2 * hidden), "embedding_norm": (hidden,), "feature_norm": (hidden,)}
        for part, shape in expected.items():
            if (found := draft.shapes.get(f"model.{part}.weight")) != shape:
                raise UnsupportedModel(
                    f"{self._name}: model.{part}.weight is {found or 'missing'}, expected {shape}: distil it again"
                )

    def _borrowed(self) -> dict[str, tuple[int, ...]]:
        hidden = self.spec.hidden_size
        return {**super()._borrowed(), NORM: (hidden,), HEAD: (self.spec.num_logits, hidden)}

    def tensor(self, name: str) -> np.ndarray:
        if name != HEAD:
            return super().tensor(name)
        return self._target.tensor(EMBEDDINGS if self._target.spec.tied_embeddings else HEAD)[self.output_token_ids]

    def reference_model(self) -> HeadModel:
        model = HeadModel(self._config, self.spec.num_logits)
        model.load_state_dict(self._torch_tensors(), strict=False, assign=True)  # what more is stored is not read
        return model.eval()

    def reference_features(self, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
        target = self._target.reference_model()
        features: list[np.ndarray] = []
        target.get_decoder().norm.register_forward_pre_hook(lambda norm, rows: features.append(rows[0][0].numpy()))
        with torch.inference_mode():
            for ids in sequences:
                target.get_decoder()(input_ids=torch.tensor([list(ids)]), use_cache=False)
        del target
        gc.collect()
        return features


class HeadModel(PreTrainedModel):
    """The head of `edgepipe.exporters.llm.draft_folder` over layers of transformers, with its tensors' names."""

    def __init__(self, config: PreTrainedConfig, output_vocab_size: int) -> None:
        super().__init__(config)
        self.model: Any = AutoModel.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
        norm, hidden = self.model.norm, config.hidden_size
        self.model.embedding_norm = type(norm)(hidden, config.rms_norm_eps)
        self.model.feature_norm = type(norm)(hidden, config.rms_norm_eps)
        self.model.fc = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.lm_head = torch.nn.Linear(hidden, output_vocab_size, bias=False)

    def forward(self, input_ids: torch.Tensor, features: torch.Tensor, use_cache: bool) -> BaseModelOutputWithPast:
        """Rows of the final norm for ids ``[B, S]`` and features ``[B, S, hidden]``."""
        model = self.model
        rows = [model.embedding_norm(model.embed_tokens(input_ids)), model.feature_norm(features)]
        output: BaseModelOutputWithPast = model(inputs_embeds=model.fc(torch.cat(rows, -1)), use_cache=use_cache)
        return output

    def get_decoder(self) -> HeadModel:
        """As of a model of transformers."""
        return self

    def get_output_embeddings(self) -> torch.nn.Linear:
        """As of a model of transformers."""
        return self.lm_head
