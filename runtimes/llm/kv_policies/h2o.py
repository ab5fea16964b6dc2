"""Keep heavy hitters and the most recent tokens (H2O, Zhang et al. 2023, algorithm 1)."""

from __future__ import annotations

import numpy as np

from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.policy import Policy, lowest


class H2O(Policy):
    """Evicts, outside the recent window, the slot with the least accumulated attention.

    Scores are kept per layer and KV head (the query heads of a group are summed). The paper's plain sum favours
    old tokens, which more queries have seen; by default it is divided by the number of queries that could see the
    slot, as kvpress's ObservedAttention does.
    """

    needs_scores = True

    def __init__(self, budget: int, recent: int | None = None, *, normalise: bool = True) -> None:
        """``recent`` last tokens are never evicted (default: half the budget, as in the paper)."""
        super().__init__(budget)
        self.recent = budget // 2 if recent is None else recent
        self.normalise = normalise

    def victims(self, cache: KVCache, count: int) -> np.ndarray:
        """The ``count`` slots of least attention that lie before the recent window."""
        assert cache.mass is not None
        positions = cache.positions[:, :, : cache.length]
        scores = cache.mass[:, :, : cache.length]
        if self.normalise:
            scores = scores / (cache.next_position - positions)
        return lowest(np.where(positions >= cache.next_position - self.recent, np.inf, scores), count)
