"""Speculative decoding: a drafter guesses, the target checks all guesses in one forward (Leviathan et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter_ns

import numpy as np

from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.drafters.chain import Chain, Source
from edgepipe.runtimes.llm.drafters.drafter import Draft, Drafter
from edgepipe.runtimes.llm.gamma import PLAIN, Choice, FixedGamma, Gamma
from edgepipe.runtimes.llm.rounds import Round
from edgepipe.runtimes.llm.sampling import Sampler

# A drafter stalls when it takes this many times as long as the target would for the same guesses, beside the time that
# the target would take for each token that it has to read; on a machine that is busy, at least so many nanoseconds.
STALLED = 10
STALLED_NS = 1_000_000_000


def verify(logits: np.ndarray, draft: Draft, sampler: Sampler) -> tuple[int, int]:
    """Decide how many guesses stand, and what comes after them.

    Algorithm 1 of Leviathan et al. 2022: guess x is accepted with probability min(1, p(x) / q(x)); after the first
    rejection a token is drawn from norm(max(0, p - q)), after none from p. Where q is one-hot, that is to draw from p
    and accept the guess if it is what was drawn: the same seed then gives the text of plain decoding, as greedy
    decoding does, the limit of temperature 0.

    Args:
        logits: float32 ``[len(draft.tokens) + 1, vocab_size]`` of the target; row i follows guess i - 1.
        draft: the guesses.
        sampler: turns logits into p.

    Returns:
        The number of accepted guesses and the token after them.
    """
    for index, guess in enumerate(draft.tokens):
        before = draft.tokens[:index]
        if draft.probabilities is None:
            token = sampler.choose(logits[index], before)
            if token != guess:
                return index, token
            continue
        p, q = sampler.distribution(logits[index], before), draft.probabilities[index]
        if sampler.random.random() * q[guess] < p[guess]:
            continue
        residual = p.copy()
        residual[: q.size] -= q
        np.maximum(residual, 0.0, out=residual)
        # p and q that differ by rounding alone leave no residual; then either may be drawn from.
        return index, sampler.draw(residual if residual.any() else p)
    return len(draft.tokens), sampler.choose(logits[len(draft.tokens)], draft.tokens)


class SpeculativeDecoder:
    """Extends a text round by round.

    The last token of ``text`` is never in the cache: it heads the next forward, so that correcting a wrong guess
    costs no forward of its own. Eviction happens only between rounds and only to committed tokens; where the target
    evicts at certain lengths of the text, the rounds do not decide what the text is.
    """

    def __init__(
        self,
        target: CachedDecoder,
        sampler: Sampler,
        drafters: Drafter | Sequence[Drafter] | None = None,
        gamma: int | Gamma = 0,
        stop_tokens: Collection[int] = (),
    ) -> None:
        """A number as ``gamma`` is the most guesses per round; without a drafter this is plain decoding."""
        self.target = target
        self.sampler = sampler
        given = [drafters] if isinstance(drafters, Drafter) else drafters
        self.chain = Chain(given or (), target.decoder.spec.vocab_size)
        self.gamma = FixedGamma(gamma) if isinstance(gamma, int) else gamma
        self.stop_tokens = frozenset(stop_tokens)
        self.text: list[int] = []
        self._prefill_ns = self._longest_ns = 0

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values allocated, the drafters' included."""
        return self.target.cache.nbytes + self.chain.kv_bytes

    def start(self, text: Sequence[int]) -> Round:
        """Prefill ``text`` and choose the token that follows it.

        What the cache already holds of the text is not fed again (the earlier turns of a chat).

        Raises:
            ContextError: ``text`` is empty or does not fit.
        """
        begin = perf_counter_ns()
        self._keep_common_prefix(text)
        self.sampler.start(text)
        self.text = list(text)
        logits = self.target.prefill(text[self.target.cache.next_position :])
        fed = perf_counter_ns()
        self._prefill_ns = fed - begin
        token = self.sampler.choose(logits)
        self.sampler.observe([token])
        self.text.append(token)
        return Round([token], 0, 0, 0, fed - begin, perf_counter_ns() - fed, 0)

    def step(self, limit: int, kept: Callable[[list[int]], int] = len) -> Round:
        """One round that adds at least one and at most ``limit`` tokens; a stop token ends it early.

        ``kept`` may end it earlier: it is given the tokens, and says how many of them, one at least, belong to the
        text. What follows leaves no trace, so that later texts do not depend on the rounds of this one.
        """
        begin = perf_counter_ns()
        choice, draft = self._draft(limit - 1)
        watched = [(source, self._propose(source, 1)) for source in choice.watched]
        drafted = perf_counter_ns()
        logits = self.target.extend([self.text[-1], *draft.tokens])
        verified = perf_counter_ns()
        accepted, following = verify(logits, draft, self.sampler)
        tokens = [*draft.tokens[:accepted], following]
        for index, token in enumerate(tokens):
            if token in self.stop_tokens:
                tokens = tokens[: index + 1]
                break
        tokens = tokens[: kept(tokens)]
        if draft.probabilities is None:  # else there is no seed, and guesses took draws, too
            self.sampler.forget(accepted + 1 - len(tokens))
        self.sampler.observe(tokens)
        sampled = perf_counter_ns()
        # The rows of the last token of the old text and of all new ones but the last.
        self.target.commit(len(tokens))
        self.text += tokens
        committed = perf_counter_ns()
        self._longest_ns = max(self._longest_ns, verified - drafted)
        for source, guess in watched:
            self.gamma.observe_guesses(source, len(guess.tokens), guess.tokens == tokens[:1])
        if choice.source and draft.tokens:
            self.gamma.observe_guesses(choice.source, len(draft.tokens), accepted)
        self.gamma.observe_round(choice, len(draft.tokens), len(tokens), drafted - begin, committed - drafted)
        return Round(
            tokens,
            len(draft.tokens),
            min(accepted, len(tokens)),
            drafted - begin,
            verified - drafted,
            sampled - verified,
            committed - sampled,
            choice.source.name if choice.source and draft.tokens else None,
        )

    def _draft(self, limit: int) -> tuple[Choice, Draft]:
        """What to do in this round, and the guesses, ``limit`` at most, none beyond the next eviction."""
        limit = min(limit, (self.target.until_eviction or limit + 1) - 1)
        if not self.chain or limit < 1:
            return PLAIN, Draft([])
        choice = self.gamma.choose(self.chain.sources(self.text, only_free=self.gamma.resting), limit)
        return choice, self._propose(choice.source, choice.count) if choice.source else Draft([])

    def _propose(self, source: Source, count: int) -> Draft:
        patience_ns = STALLED * (self._prefill_ns + count * self._longest_ns) + source.behind * self._longest_ns
        return self.chain.propose(source, self.text, count, max(patience_ns, STALLED_NS))

    def _keep_common_prefix(self, text: Sequence[int]) -> None:
        """Rewind the cache to what it shares with ``text``, short of its last token; clear it if it cannot rewind."""
        cache = self.target.cache
        cache.commit(0)  # an interrupted round may have left pending rows
        common = 0
        for old, new in zip(self.text, text[:-1], strict=False):
            if old != new:
                break
            common += 1
        if common < len(self.text):
            self.chain.reset()
        if common < cache.next_position:
            if cache.evicted or cache.mass is not None:
                cache.clear()
            else:
                cache.truncate(common)
