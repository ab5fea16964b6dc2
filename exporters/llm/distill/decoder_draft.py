"""A draft that is a small decoder: some of the target's layers, trained, over the target's frozen embeddings."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from transformers import AutoModel, PreTrainedConfig

from edgepipe.exporters.sources.weights import DecoderWeights


class DecoderDraft(torch.nn.Module):
    """Layers and final norm as transformers computes them, and a head of ``output_token_ids``' rows."""

    def __init__(
        self,
        weights: DecoderWeights,
        config: PreTrainedConfig,
        layers: Sequence[int],
        output_token_ids: np.ndarray,
        dtype: torch.dtype,
    ) -> None:
        """Start from the target's own ``layers``, norm and head.

        Args:
            weights: the target's, of which only what is needed is read.
            config: the target's.
            layers: which of the target's layers, in their order.
            output_token_ids: int32 ``[V']``.
            dtype: of the frozen embeddings.
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
            self.decoder.norm.weight.copy_(_tensor(weights, "model.norm.weight"))
        embeddings = _tensor(weights, "model.embed_tokens.weight")
        head = embeddings if weights.spec.tied_embeddings else _tensor(weights, "lm_head.weight")
        self.head = torch.nn.Parameter(head[torch.from_numpy(output_token_ids).long()].clone())
        self.register_buffer("embeddings", embeddings.to(dtype), persistent=False)

    def forward(self, tokens: torch.Tensor, predicts: torch.Tensor) -> torch.Tensor:
        """Logits ``[W, V']`` after those of ``tokens`` ``[B, S]`` where ``predicts`` ``[B, S]`` is true."""
        embedded = torch.nn.functional.embedding(tokens, self.embeddings)
        hidden = self.decoder(inputs_embeds=embedded, use_cache=False).last_hidden_state
        return torch.nn.functional.linear(hidden[predicts], self.head)

    def tensors(self) -> dict[str, np.ndarray]:
        """The trained tensors by the names that a draft folder has, float32."""
        named = {f"model.{name}": value for name, value in self.decoder.named_parameters() if "embed" not in name}
        return {name: value.detach().numpy() for name, value in {**named, "lm_head.weight": self.head}.items()}


def _tensor(weights: DecoderWeights, name: str) -> torch.Tensor:
    return torch.from_numpy(weights.tensor(name))
