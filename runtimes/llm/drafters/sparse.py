"""The target drafts for itself, looking at few of its keys and values (TriForce, Sun et al. 2024, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.drafters.model import ModelDrafter
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.full import Full
from edgepipe.runtimes.llm.kv_policies.window import Window
from edgepipe.runtimes.llm.sampling import Sampler


class SparseDrafter(ModelDrafter):
    """Drafts with the target's own weights and session over a small cache of attention sinks and recent tokens.

    The small cache holds rows of the target's cache itself, which cost a copy and no forward; the rows of the
    drafter's own guesses are forgotten after every round. Drafting gets cheaper than decoding as soon as reading
    keys and values takes a good part of the target's time, which is in long texts.
    """

    name: ClassVar[str] = "sparse"

    def __init__(self, target: CachedDecoder, window: Window, gamma: int, sampler: Sampler) -> None:
        """``target`` must never evict; ``window`` says what of its cache is seen, up to ``gamma`` guesses apart."""
        decoder = target.decoder
        cache = KVCache(decoder.spec, window.budget, gamma)
        super().__init__(CachedDecoder(decoder, cache, Full(cache.capacity), chunk=1), sampler, decoder.spec.vocab_size)
        self.target = target
        self.window = window

    def _catch_up(self, text: Sequence[int]) -> np.ndarray:
        self.draft.cache.follow(self.target.cache, self.window.sinks, self.window.budget)
        return self.draft.extend(text[-1:])[-1]
