"""Keep the first tokens and the most recent ones (StreamingLLM, Xiao et al. 2023, section 3.2)."""

from __future__ import annotations

import numpy as np

from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.policy import Policy, lowest


class Window(Policy):
    """Attention sinks and a sliding window; the oldest token that is not a sink goes first."""

    def __init__(self, budget: int, sinks: int = 4) -> None:
        """``sinks`` first tokens are never evicted; ``budget - sinks`` recent ones stay beside them."""
        super().__init__(budget)
        self.sinks = sinks

    def victims(self, cache: KVCache, count: int) -> np.ndarray:
        """The ``count`` oldest slots whose position is not a sink's."""
        positions = cache.positions[:, :, : cache.length]
        never = np.iinfo(np.int64).max
        return lowest(np.where(positions < self.sinks, never, positions), count)
