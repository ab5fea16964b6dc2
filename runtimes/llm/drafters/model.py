"""A smaller decoder drafts (Leviathan et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.drafters.drafter import Draft, Drafter
from edgepipe.runtimes.llm.output_vocabulary import OutputVocabulary
from edgepipe.runtimes.llm.sampling import Sampler


class ModelDrafter(Drafter):
    """Drafts with a second decoder, one token at a time.

    Its own guesses stay pending in its cache: the next call commits those that the target accepted.
    """

    name: ClassVar[str] = "model"

    def __init__(
        self,
        draft: CachedDecoder,
        sampler: Sampler,
        vocab_size: int,
        vocabulary: OutputVocabulary | None = None,
        reach: int | None = None,
    ) -> None:
        """``sampler`` is the target's, so that q is transformed as p is; ``vocab_size`` is the target's too.

        ``vocabulary`` belongs to a draft whose head is trimmed: tokens that it cannot guess have probability 0 in q.
        Of text that was added since the last draft, no more than the last ``reach`` tokens are read.
        """
        self.draft = draft
        self.kv_bytes = draft.cache.nbytes
        self.sampler = sampler
        # Models of one family pad their vocabularies differently; ids beyond the target's are never proposed.
        self._vocab_size = min(vocab_size, draft.decoder.spec.vocab_size)
        self.vocabulary = vocabulary
        self.reach = reach
        self._guessed: list[int] = []

    def propose(self, text: Sequence[int], count: int) -> Draft:
        """``count`` greedy guesses, or draws with their distributions when sampling and ``drawn``."""
        logits = self._catch_up(text)
        tokens: list[int] = []
        probabilities = []
        while True:
            if self.vocabulary:
                logits = self.vocabulary.full(logits)
            logits = logits[: self._vocab_size]
            if self.sampler.greedy or not self.drawn:
                token = self.sampler.best(logits, tokens)
            else:
                probabilities.append(self.sampler.distribution(logits, tokens))
                token = self.sampler.draw(probabilities[-1])
            tokens.append(token)
            if len(tokens) == count:
                break
            logits = self._follow(token)
        return Draft(tokens, probabilities or None)

    def reset(self) -> None:
        """Forget all tokens."""
        self.draft.cache.clear()
        self._guessed = []

    def _catch_up(self, text: Sequence[int]) -> np.ndarray:
        """Feed what the text has more than the draft's cache; logits ``[V]`` after its last token."""
        self._commit_accepted(text)
        cache = self.draft.cache
        if self.reach is not None:
            cache.skip(max(0, len(text) - cache.next_position - self.reach))
        return self.draft.prefill(text[cache.next_position :])

    def _follow(self, guess: int) -> np.ndarray:
        """Logits ``[V]`` after a guess."""
        self._guessed.append(guess)
        return self.draft.extend([guess])[-1]

    def _commit_accepted(self, text: Sequence[int]) -> None:
        """Commit the pending guesses that became text.

        The last token of the text is left out even if it was guessed: it is fed anew, since its logits are needed.
        """
        accepted = 0
        for guess, token in zip(self._guessed, text[self.draft.cache.next_position : -1], strict=False):
            if guess != token:
                break
            accepted += 1
        self.draft.commit(accepted)
        self._guessed = []
