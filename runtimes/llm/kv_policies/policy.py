"""What a KV eviction policy decides: which slots go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from edgepipe.runtimes.llm.kv_cache import KVCache


class Policy(ABC):
    """Chooses victims, nothing else.

    Attributes:
        budget: most tokens kept per layer and KV head after each round.
        needs_scores: whether the cache must keep attention mass.
    """

    needs_scores: ClassVar[bool] = False

    def __init__(self, budget: int) -> None:
        self.budget = budget

    @abstractmethod
    def victims(self, cache: KVCache, count: int) -> np.ndarray:
        """Slots to evict: int ``[num_layers, num_kv_heads, count]``, distinct in each row."""


def lowest(scores: np.ndarray, count: int) -> np.ndarray:
    """Indices of the ``count`` smallest entries along the last axis, in no particular order.

    Args:
        scores: float ``[num_layers, num_kv_heads, slots]``.
        count: at least 1, at most ``slots``.

    Returns:
        int ``[num_layers, num_kv_heads, count]``.
    """
    if count == 1:
        return np.argmin(scores, axis=-1, keepdims=True)
    return np.argpartition(scores, count - 1, axis=-1)[..., :count]
