"""Keep every token."""

from __future__ import annotations

import numpy as np

from edgepipe.errors import ContextError
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.policy import Policy


class Full(Policy):
    """No eviction: the budget is the longest text that the run may reach."""

    def victims(self, cache: KVCache, count: int) -> np.ndarray:
        """Raises `ContextError`: a full cache gives nothing up."""
        raise ContextError(
            f"the text is {count} tokens longer than the cache of {self.budget}: "
            "raise the limit, or set --policy h2o or window with a --budget"
        )
