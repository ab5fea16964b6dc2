"""What an engine must do, and the loop that feeds tokens to one while a policy keeps its cache on a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from edgepipe.errors import ContextError, EngineError
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.policy import Policy
from edgepipe.runtimes.llm.spec import DecoderSpec


class Decoder(Protocol):
    """A model loaded into an inference engine."""

    spec: DecoderSpec

    def forward(self, cache: KVCache, tokens: Sequence[int], *, last_only: bool = False) -> np.ndarray:
        """Run ``S`` tokens at the positions that follow the cache's last one.

        Writes ``S`` new key and value rows (and their attention mass if the cache is scored) and appends them as
        pending.

        Returns:
            float32 logits ``[S, V]``, or ``[1, V]`` of the last token if ``last_only``, V being the spec's
            ``num_logits``. The array is overwritten by the next call.
        """
        ...


class CachedDecoder:
    """One decoder, its cache, and the policy that keeps the cache within its budget."""

    def __init__(self, decoder: Decoder, cache: KVCache, policy: Policy, chunk: int) -> None:
        """``chunk`` is the number of prompt tokens that go through the model at once."""
        self.decoder = decoder
        self.cache = cache
        self.policy = policy
        self.chunk = chunk

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Feed and commit ``tokens`` in chunks, evicting between chunks.

        Memory is ``O(chunk * (budget + chunk))`` however many tokens there are.

        Returns:
            float32 ``[num_logits]``, the logits that follow the last token.

        Raises:
            ContextError: ``tokens`` is empty.
        """
        if not tokens:
            raise ContextError("the prompt has no tokens: give at least one")
        for start in range(0, len(tokens), self.chunk):
            chunk = tokens[start : start + self.chunk]
            logits = self.extend(chunk, last_only=True)
            self.commit(len(chunk))
        return logits[-1]

    def extend(self, tokens: Sequence[int], *, last_only: bool = False) -> np.ndarray:
        """Feed ``tokens`` without committing them; logits as from `Decoder.forward`.

        Raises:
            ContextError: the cache is full and its policy never evicts.
            EngineError: the model returned a logit that is not a number.
        """
        if self.cache.used + len(tokens) > self.cache.capacity:
            raise ContextError(
                f"{self.cache.used + len(tokens)} tokens do not fit a cache of {self.cache.capacity}: "
                "shorten the prompt, or set --policy h2o or window with a --budget"
            )
        logits = self.decoder.forward(self.cache, tokens, last_only=last_only)
        if not np.isfinite(logits.max()):
            raise EngineError(
                "the model returned logits that are not finite: the weights are damaged or overflow; export again"
            )
        return logits

    def commit(self, count: int) -> None:
        """Commit ``count`` pending tokens, then evict down to the policy's budget."""
        self.cache.commit(count)
        excess = self.cache.length - self.policy.budget
        if excess > 0:
            self.cache.evict(self.policy.victims(self.cache, excess))
