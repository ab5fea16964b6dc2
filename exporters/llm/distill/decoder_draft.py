"""A draft that is a small decoder: some of the target's layers, trained, over the target's frozen embeddings."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import numpy as np

from edgepipe.errors import MissingExtra
from edgepipe.exporters.llm.distill.batches import Batch
from edgepipe.exporters.llm.distill.loss import HARD_SHARE, OutputIds, acceptances, distillation_loss
from edgepipe.exporters.sources.weights import DecoderWeights

try:
    import torch
    from transformers import AutoModel, PreTrainedConfig
except ImportError as missing:
    raise MissingExtra(missing.name or "transformers", "export") from missing

# Cut layers give the final norm other features than it was made for. At a third of its size the first logits are about
# as wide as the target's, and the first steps do not have to mend that.
NORM_SCALE = 0.3
# A step of AdamW moves every element alike, and a logit sums over a whole row of the head.
HEAD_RATE = 0.15


class DecoderDraft(torch.nn.Module):
    """Layers and final norm as transformers computes them, and a head of ``output_token_ids``' rows."""

    embeddings: torch.Tensor

    def __init__(
        self, weights: DecoderWeights, config: PreTrainedConfig, layers: Sequence[int], output_token_ids: np.ndarray
    ) -> None:
        """Start from the target's own ``layers``, norm and head.

        Args:
            weights: the target's, of which only what is needed is read.
            config: the target's.
            layers: which of the target's layers, in their order.
            output_token_ids: int32 ``[V']``.
        """
        super().__init__()
        config = copy.deepcopy(config)
        config.num_hidden_layers = len(layers)
        if getattr(config, "layer_types", None):
            config.layer_types = [config.layer_types[layer] for layer in layers]
        config.vocab_size, config.pad_token_id = 1, None  # embeddings are looked up here
        self.decoder = AutoModel.from_config(config, attn_implementation="sdpa").float()
        self.decoder.embed_tokens.weight.requires_grad_(False)
        with torch.no_grad():
            for index, layer in enumerate(layers):
                for name, parameter in self.decoder.layers[index].named_parameters():
                    parameter.copy_(_tensor(weights, f"model.layers.{layer}.{name}"))
            self.decoder.norm.weight.copy_(_tensor(weights, "model.norm.weight") * NORM_SCALE)
        embeddings = _tensor(weights, "model.embed_tokens.weight")
        head = embeddings if weights.spec.tied_embeddings else _tensor(weights, "lm_head.weight")
        self.head = torch.nn.Parameter(head[torch.from_numpy(output_token_ids).long()].clone())
        self.register_buffer("embeddings", embeddings.to(torch.bfloat16), persistent=False)
        self.outputs = OutputIds(output_token_ids, weights.spec.vocab_size)

    def forward(self, tokens: torch.Tensor, predicts: torch.Tensor) -> torch.Tensor:
        """Logits ``[W, V']`` after those of ``tokens`` ``[B, S]`` where ``predicts`` ``[B, S]`` is true."""
        embedded = torch.nn.functional.embedding(tokens, self.embeddings).float()
        hidden = self.decoder(inputs_embeds=embedded, use_cache=False).last_hidden_state
        return torch.nn.functional.linear(hidden[predicts], self.head)

    def loss(self, batch: Batch) -> torch.Tensor:
        """See `distillation_loss`."""
        logits = self(batch.tokens, batch.predicts)
        return distillation_loss(logits, self.outputs.find(batch.teacher_ids), batch.teacher_probabilities, HARD_SHARE)

    def acceptances(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """See `edgepipe.exporters.llm.distill.loss.acceptances`."""
        logits = self(batch.tokens, batch.predicts)
        return acceptances(logits, self.outputs.find(batch.teacher_ids), batch.teacher_probabilities)

    def rates(self) -> list[tuple[Iterable[torch.nn.Parameter], float]]:
        """See `edgepipe.exporters.llm.distill.training.TrainableDraft`."""
        return [(self.decoder.parameters(), 1.0), ([self.head], HEAD_RATE)]

    def tensors(self) -> dict[str, np.ndarray]:
        """The trained tensors by the names that a draft folder has, float32."""
        named = {f"model.{name}": each for name, each in self.decoder.named_parameters() if each.requires_grad}
        return {name: each.detach().numpy() for name, each in {**named, "lm_head.weight": self.head}.items()}


def _tensor(weights: DecoderWeights, name: str) -> torch.Tensor:
    return torch.from_numpy(weights.tensor(name))
