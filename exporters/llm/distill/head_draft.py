"""A draft that is a head: one layer over the target's features, trained to go on from its own (EAGLE)."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable

import numpy as np

from edgepipe.errors import MissingExtra
from edgepipe.exporters.llm.distill.batches import Batch
from edgepipe.exporters.llm.distill.loss import HARD_SHARE, OutputIds, acceptances, distillation_loss
from edgepipe.exporters.sources.weights import DecoderWeights

try:
    import torch
    from transformers import AutoModel, DynamicCache, PreTrainedConfig
except ImportError as missing:
    raise MissingExtra(missing.name or "transformers", "export") from missing

# Guesses in a row that the head is trained for: the first from the target's features, the others from its own.
UNROLLED_STEPS = 3
# How much the distance to the target's normed features counts beside the distributions.
FEATURE_SHARE = 0.2


class HeadDraft(torch.nn.Module):
    """The head of `edgepipe.exporters.llm.draft_folder`; embeddings, final norm and output rows are the target's.

    EAGLE (Li et al. 2024), trained over unrolled steps as EAGLE-3 (Li et al. 2025) is.
    """

    embeddings: torch.Tensor
    head: torch.Tensor

    def __init__(
        self, weights: DecoderWeights, config: PreTrainedConfig, layer: int, output_token_ids: np.ndarray
    ) -> None:
        """Start from the target's own ``layer``, which at first gets the mean of both of its inputs.

        Args:
            weights: the target's, of which only what is needed is read.
            config: the target's.
            layer: which of the target's layers.
            output_token_ids: int32 ``[V']``.
        """
        super().__init__()
        config = copy.deepcopy(config)
        config.num_hidden_layers = 1
        if getattr(config, "layer_types", None):
            config.layer_types = [config.layer_types[layer]]
        config.vocab_size, config.pad_token_id = 1, None  # embeddings are looked up here
        self.decoder = AutoModel.from_config(config, attn_implementation="sdpa").float()
        self.decoder.embed_tokens.weight.requires_grad_(False)
        # Transformers has renamed it.
        takes = inspect.signature(self.decoder.forward).parameters
        self.cache_name = "cache" if "cache" in takes else "past_key_values"
        norm, hidden = self.decoder.norm, weights.spec.hidden_size
        self.embedding_norm = type(norm)(hidden, weights.spec.rms_norm_eps)
        self.feature_norm = type(norm)(hidden, weights.spec.rms_norm_eps)
        self.fc = torch.nn.Linear(2 * hidden, hidden, bias=False)
        embeddings = _tensor(weights, "model.embed_tokens.weight")
        head = embeddings if weights.spec.tied_embeddings else _tensor(weights, "lm_head.weight")
        with torch.no_grad():
            for name, parameter in self.decoder.layers[0].named_parameters():
                parameter.copy_(_tensor(weights, f"model.layers.{layer}.{name}"))
            self.fc.weight.copy_(torch.eye(hidden).repeat(1, 2) / 2)
            norm.weight.copy_(_tensor(weights, "model.norm.weight"))
        self.final_norm = norm.requires_grad_(False)
        self.decoder.norm = torch.nn.Identity()
        self.register_buffer("head", head[torch.from_numpy(output_token_ids).long()].clone(), persistent=False)
        self.register_buffer("embeddings", embeddings.to(torch.bfloat16), persistent=False)
        self.outputs = OutputIds(output_token_ids, weights.spec.vocab_size)

    def forward(self, tokens: torch.Tensor, features: torch.Tensor, steps: int = UNROLLED_STEPS) -> list[torch.Tensor]:
        """Predicted features, a tensor ``[B, S - 1, hidden]`` for each step; row i of it stands for token i + 1.

        In step 1 row i reads the target's feature of token i, and its attention sees the rows before. In step m it
        reads what step m - 1 predicted for token i, and sees what it would see when drafting: step 1's rows up to
        i - m + 1, whose features the target has computed, then one row of each step in between. The first m - 1 rows
        of step m have no such past and mean nothing.

        Args:
            tokens: int64 ``[B, S]``, padded on the right.
            features: ``[B, S, hidden]`` of the target, before its final norm.
            steps: guesses in a row.
        """
        following = torch.nn.functional.embedding(tokens[:, 1:], self.embeddings).float()
        known = features[:, :-1]
        rows = following.shape[1]
        positions = torch.arange(rows)[None]
        cache = DynamicCache()
        predicted: list[torch.Tensor] = []
        for step in range(1, steps + 1):
            inputs = [self.embedding_norm(following), self.feature_norm(known)]
            output = self.decoder(
                inputs_embeds=self.fc(torch.cat(inputs, -1)),
                attention_mask=unrolled_mask(rows, step),
                position_ids=positions,
                use_cache=True,
                **{self.cache_name: cache},
            )
            predicted.append(output.last_hidden_state)
            known = torch.nn.functional.pad(predicted[-1][:, :-1], (0, 0, 1, 0))
        return predicted

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean over the steps of `distillation_loss` plus the squared distance of normed features."""
        assert batch.features is not None
        total = torch.zeros(())
        teacher = self.outputs.find(batch.teacher_ids)
        for step, predicted in enumerate(self(batch.tokens, batch.features), 1):
            rows, chosen = _with_a_past(batch, step)
            normed = self.final_norm(predicted[rows].float())
            logits = torch.nn.functional.linear(normed, self.head)
            loss = distillation_loss(logits, teacher[chosen], batch.teacher_probabilities[chosen], HARD_SHARE)
            expected = self.final_norm(batch.features[:, 1:][rows].float())
            total = total + loss + FEATURE_SHARE * torch.nn.functional.mse_loss(normed, expected)
        return total / UNROLLED_STEPS

    def acceptances(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the first guess; see `edgepipe.exporters.llm.distill.loss.acceptances`."""
        assert batch.features is not None
        rows, chosen = _with_a_past(batch, 1)
        predicted = self(batch.tokens, batch.features, steps=1)[0]
        logits = torch.nn.functional.linear(self.final_norm(predicted[rows].float()), self.head)
        return acceptances(logits, self.outputs.find(batch.teacher_ids)[chosen], batch.teacher_probabilities[chosen])

    def rates(self) -> list[tuple[Iterable[torch.nn.Parameter], float]]:
        """See `edgepipe.exporters.llm.distill.training.TrainableDraft`."""
        return [(self.parameters(), 1.0)]

    def tensors(self) -> dict[str, np.ndarray]:
        """The trained tensors by the names that a draft folder has, float32."""
        named = {name.removeprefix("decoder."): each for name, each in self.named_parameters() if each.requires_grad}
        return {f"model.{name}": each.detach().numpy() for name, each in named.items()}


def unrolled_mask(rows: int, step: int) -> torch.Tensor:
    """What the rows of a step see, bool ``[1, 1, rows, step * rows]``: keys of step 1, then of step 2, and so on."""
    row = torch.arange(rows)
    seen = [row[:, None] - step + 1 >= row]
    seen += [row[:, None] - (step - other) == row for other in range(2, step + 1)]
    visible = torch.cat(seen, 1)
    visible |= ~visible.any(1, keepdim=True)  # rows without a past: softmax needs something
    return visible[None, None]


def _with_a_past(batch: Batch, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows ``[B, S - 1]`` whose next token the target wrote and which have a past in ``step``; which of ``W``."""
    rows = batch.predicts[:, 1:].clone()
    rows[:, : step - 1] = False
    numbers = torch.full(batch.predicts.shape, -1)
    numbers[batch.predicts] = torch.arange(int(batch.predicts.sum()))
    return rows, numbers[:, 1:][rows]


def _tensor(weights: DecoderWeights, name: str) -> torch.Tensor:
    return torch.from_numpy(weights.tensor(name))
