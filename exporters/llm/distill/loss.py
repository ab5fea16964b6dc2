"""What a draft is trained to: the target's distribution, as far as it is known and the draft can express it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

# Of the loss, what the target's best token counts alone: that is what greedy decoding accepts.
HARD_SHARE = 0.5


class OutputIds:
    """Looks up where the target's tokens are among the draft's outputs."""

    def __init__(self, output_token_ids: np.ndarray, vocab_size: int) -> None:
        self.size = len(output_token_ids)
        self.slots = torch.full((vocab_size,), -1)
        self.slots[torch.from_numpy(output_token_ids).long()] = torch.arange(self.size)

    def find(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The output of each token, -1 for those that the draft cannot guess."""
        return self.slots[token_ids]


def distillation_loss(
    logits: torch.Tensor, teacher: torch.Tensor, probabilities: torch.Tensor, hard_share: float
) -> torch.Tensor:
    """Mean cross-entropy of the draft's distribution q with soft and hard labels.

        soft = - sum_i p_i log q_i   over the target's K most likely tokens; those beyond the draft's outputs count 0,
                                     so that a step counts as much as the draft can have of it
        hard = - log q_best          of the target's best token, where the draft has it

    Args:
        logits: ``[W, V']`` of the draft.
        teacher: int64 ``[W, K]``, outputs of the target's most likely tokens, -1 where there is none.
        probabilities: ``[W, K]``, theirs.
        hard_share: how much the hard label counts, 0 to 1; the soft ones count the rest.
    """
    known = teacher >= 0
    log_q = logits.float().log_softmax(-1).gather(-1, teacher.clamp(min=0))
    soft = -(log_q * probabilities * known).sum(-1)
    hard = -log_q[:, 0] * known[:, 0]
    return ((1 - hard_share) * soft + hard_share * hard).mean()


@dataclass(frozen=True)
class Acceptance:
    """How much of a draft's guesses the target would accept.

    ``greedy`` is the share of tokens whose best guess is the target's own; ``sampled`` is the mean of
    sum_i min(p_i, q_i) at temperature 1 over the target's K most likely tokens, which bounds the acceptance of a drawn
    guess from below (Leviathan et al. 2023, corollary 3.6).
    """

    greedy: float
    sampled: float


def acceptances(
    logits: torch.Tensor, teacher: torch.Tensor, probabilities: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both terms of `Acceptance` for every step, ``[W]`` each; arguments as of `distillation_loss`."""
    greedy = (logits.argmax(-1) == teacher[:, 0]).float()
    q = logits.float().softmax(-1).gather(-1, teacher.clamp(min=0)) * (teacher >= 0)
    return greedy, torch.minimum(probabilities, q).sum(-1)
