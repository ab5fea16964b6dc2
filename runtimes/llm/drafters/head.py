"""One layer over the target's own features drafts (EAGLE, Li et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgepipe.errors import EngineError
from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.drafters.drafter import Draft
from edgepipe.runtimes.llm.drafters.model import ModelDrafter
from edgepipe.runtimes.llm.output_vocabulary import OutputVocabulary
from edgepipe.runtimes.llm.sampling import Sampler


class HeadDrafter(ModelDrafter):
    """Drafts with a head that the draft's graph holds, from features that the target computed anyway.

    Row i of the head takes the target's feature of token i and the embedding of token i + 1, and predicts the feature
    of token i + 1, hence token i + 2. For guesses the head's own features stand in for the target's. Once the target
    has committed a token its true feature is known, so the head's cache keeps rows of committed tokens only: those
    of guesses, and the one of the newest token, whose feature the target has not computed yet, are rolled back.
    """

    def __init__(
        self, head: CachedDecoder, target: CachedDecoder, sampler: Sampler, vocabulary: OutputVocabulary | None = None
    ) -> None:
        """``target`` is observed from here on; ``vocabulary`` belongs to a trimmed head.

        Raises:
            EngineError: the target does not give features, or the head does not read and give them.
        """
        if target.decoder.features is None or head.decoder.features is None or not head.decoder.reads_features:
            raise EngineError(
                "the draft is a head, but target and draft do not share features: the bundle's files do not belong "
                "together, export it again"
            )
        super().__init__(head, sampler, target.decoder.spec.vocab_size, vocabulary)
        self.target = target
        self._failure: Exception | None = None
        self.reset()
        target.observer = self.observe

    def reset(self) -> None:
        """Forget all tokens."""
        self._next_row = 0
        # Of rows that are still to be fed: the target's features, and the token after each but the last.
        self._features = np.empty((0, self.draft.decoder.spec.hidden_size), np.float32)
        self._following: list[int] = []
        super().reset()

    def close(self) -> None:
        """Observe the target no longer."""
        self.target.observer = None

    def observe(self, first: int, tokens: Sequence[int], features: np.ndarray) -> None:
        """Take note of tokens that the target committed, the first at position ``first``, and their features.

        A prompt's rows are fed as they come, so that no more than a chunk of features is held. A failure is kept for
        `propose` to raise: the target can do without a drafter.
        """
        if self._failure is not None:
            return
        if first != self._next_row + len(self._features):
            self.reset()  # another text, whose beginning the target had in its cache
            self._next_row = first
        self._following += tokens[0 if len(self._features) else 1 :]
        self._features = np.concatenate([self._features, features])
        try:
            while len(self._following) >= self.draft.chunk:
                self._feed(self.draft.chunk)
        except Exception as error:  # whatever it is
            self._failure = error

    def propose(self, text: Sequence[int], count: int) -> Draft:
        """``count`` greedy guesses, or draws with their distributions when sampling."""
        if self._failure is not None:
            raise self._failure
        if len(text) < 2:
            return Draft([])
        # Where the target was not observed, as when a draft's cost is measured, features count as zero.
        unknown = len(text) - 1 - self._next_row - len(self._features)
        self._following += text[self._next_row + 1 + len(self._following) : -1]
        self._features = np.pad(self._features, ((0, unknown), (0, 0)))
        while len(self._following) + count > self.draft.chunk and self._following:
            self._feed(min(len(self._following), self.draft.chunk))
        try:
            return super().propose(text, count)
        finally:
            known = len(self._following)
            self._settle(known if self.draft.cache.pending > known else 0)

    def _catch_up(self, text: Sequence[int]) -> np.ndarray:
        return self.draft.extend([*self._following, text[-1]], last_only=True, features=self._features)[-1]

    def _follow(self, guess: int) -> np.ndarray:
        predicted = self.draft.decoder.features
        assert predicted is not None
        return self.draft.extend([guess], features=predicted[-1:])[-1]

    def _feed(self, count: int) -> None:
        """Feed and commit the next ``count`` rows."""
        self.draft.extend(self._following[:count], last_only=True, features=self._features[:count])
        self._settle(count)

    def _settle(self, count: int) -> None:
        """Commit the first ``count`` rows that were fed, roll the others back."""
        self.draft.commit(count)
        self._next_row += count
        self._following = self._following[count:]
        self._features = self._features[count:]
