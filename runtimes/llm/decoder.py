"""What an engine must do, and the loop that feeds tokens to one while a policy keeps its cache on a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from edgepipe.errors import ContextError, EngineError
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.policy import Policy
from edgepipe.runtimes.llm.spec import DecoderSpec


class Decoder(Protocol):
    """A model loaded into an inference engine.

    ``features`` are the float32 ``[S, hidden_size]`` rows that the last layer gave to the final norm in the last
    forward; None where the model has no such output. A head ``reads_features``, too.

    Where a file has forwards of certain widths only, ``widths``, ascending, are those that give all logits: no more
    tokens than the last, and fewer than one take as long as that one. None where any number will do.
    """

    spec: DecoderSpec
    widths: tuple[int, ...] | None
    features: np.ndarray | None
    reads_features: bool

    def forward(
        self, cache: KVCache, tokens: Sequence[int], *, last_only: bool = False, features: np.ndarray | None = None
    ) -> np.ndarray:
        """Run ``S`` tokens at the positions that follow the cache's last one.

        ``features`` float32 ``[S, hidden_size]`` are what a head reads beside the tokens, and no other model.

        Writes ``S`` new key and value rows (and their attention mass if the cache is scored) and appends them as
        pending.

        Returns:
            float32 logits ``[S, V]``, or ``[1, V]`` of the last token if ``last_only``, V being the spec's
            ``num_logits``. The array is overwritten by the next call.
        """
        ...


def check_tokens(tokens: Sequence[int], spec: DecoderSpec) -> None:
    """Refuse tokens that the model does not know; its table does not check, and would read whatever lies behind it.

    Raises:
        EngineError: there is one.
    """
    if not 0 <= min(tokens) <= max(tokens) < spec.vocab_size:
        raise EngineError(
            f"the text has a token beyond the model's {spec.vocab_size}: the bundle's tokenizer is not the model's, "
            "export it again"
        )


class CachedDecoder:
    """One decoder, its cache, and the policy that keeps the cache within its budget.

    ``observer`` is told of all tokens that are committed: the position of the first, the tokens, and their features,
    float32 ``[count, hidden_size]``. The decoder must have such an output.
    """

    def __init__(
        self, decoder: Decoder, cache: KVCache, policy: Policy, chunk: int, evict_every: int | None = None
    ) -> None:
        """``chunk`` is the number of prompt tokens that go through the model at once.

        After a prompt the cache is evicted whenever the text's length passes a multiple of ``evict_every``: a text
        is then the same in whatever rounds it comes, if none goes beyond `until_eviction`. None evicts after every
        commit.
        """
        self.decoder = decoder
        self.cache = cache
        self.policy = policy
        self.chunk = chunk
        self.evict_every = evict_every
        self.observer: Callable[[int, list[int], np.ndarray], None] | None = None
        self._pending: list[tuple[Sequence[int], np.ndarray]] = []

    @property
    def until_eviction(self) -> int | None:
        """Tokens that are to be committed before the next eviction; None if each commit evicts."""
        return self.evict_every and self.evict_every - self.cache.next_position % self.evict_every

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
        self._evict()
        for start in range(0, len(tokens), self.chunk):
            chunk = tokens[start : start + self.chunk]
            logits = self.extend(chunk, last_only=True)
            self.commit(len(chunk))
            self._evict()
        return logits[-1]

    def extend(
        self, tokens: Sequence[int], *, last_only: bool = False, features: np.ndarray | None = None
    ) -> np.ndarray:
        """Feed ``tokens`` without committing them; ``features`` and logits as of `Decoder.forward`.

        Raises:
            ContextError: the cache is full and its policy never evicts.
            EngineError: the model returned a logit that is not a number.
        """
        if self.cache.used + len(tokens) > self.cache.capacity:
            raise ContextError(
                f"{self.cache.used + len(tokens)} tokens do not fit a cache of {self.cache.capacity}: "
                "shorten the prompt, or set --policy h2o or window with a --budget"
            )
        if self.cache.pending == 0:
            self._pending.clear()
        logits = self.decoder.forward(self.cache, tokens, last_only=last_only, features=features)
        if self.observer is not None and self.decoder.features is not None:
            self._pending.append((tokens, self.decoder.features))
        if not np.isfinite(logits.max()):
            raise EngineError(
                "the model returned logits that are not finite: the weights are damaged or overflow; export again"
            )
        return logits

    def commit(self, count: int) -> None:
        """Commit ``count`` pending tokens, tell the observer, then evict down to the policy's budget if it is time."""
        first = self.cache.next_position
        self.cache.commit(count)
        if self.observer is not None and self._pending and count > 0:
            tokens = [token for part, _ in self._pending for token in part]
            features = np.concatenate([rows for _, rows in self._pending])
            self.observer(first, tokens[:count], features[:count])
        self._pending.clear()
        if self.evict_every is None or first // self.evict_every < self.cache.next_position // self.evict_every:
            self._evict()

    def _evict(self) -> None:
        excess = self.cache.length - self.policy.budget
        if excess > 0:
            self.cache.evict(self.policy.victims(self.cache, excess))
