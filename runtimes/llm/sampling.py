"""From logits to the next token: greedy, or a draw from a transformed distribution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edgepipe.errors import RecipeError


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches it (Holtzman et al. 2020).
        min_p: drop tokens less probable than this share of the most probable one (Nguyen et al. 2024).
        repetition_penalty: logits of tokens already in the text are divided by it if positive, multiplied if
            negative (Keskar et al. 2019, section 4.1); 0.01 to 100.
        seed: of the random generator; None draws a fresh one.

    Raises:
        RecipeError: a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, fits, expected in (
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p < 1, "at least 0 and below 1"),
            ("repetition_penalty", 0.01 <= self.repetition_penalty <= 100, "0.01 to 100 (1 is off)"),
            ("seed", self.seed is None or self.seed >= 0, "0 or more"),
        ):
            if not fits:
                raise RecipeError(f"{name} is {getattr(self, name)}: expected {expected}")


class Sampler:
    """Chooses tokens by ``params``; remembers the text for the repetition penalty."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.greedy = params.temperature == 0
        self._bits = np.random.PCG64(params.seed)
        self.random = np.random.Generator(self._bits)
        self._seen: set[int] = set()

    def start(self, text: Iterable[int]) -> None:
        """A new text begins with these tokens."""
        self._seen.clear()
        self.observe(text)

    def observe(self, tokens: Iterable[int]) -> None:
        """Tokens that now belong to the text."""
        if self.params.repetition_penalty != 1:
            self._seen.update(tokens)

    def forget(self, count: int) -> None:
        """Take back the last ``count`` draws, so that what is drawn next does not depend on them."""
        if not self.greedy:
            self._bits.advance(-count)

    def best(self, logits: np.ndarray, after: Sequence[int] = ()) -> int:
        """The greedy choice for ``logits`` ``[vocab_size]``, the text being followed by ``after``."""
        return int(np.argmax(self._penalised(logits, after)))

    def distribution(self, logits: np.ndarray, after: Sequence[int] = ()) -> np.ndarray:
        """The distribution that the next token is drawn from.

        Transforms in the order of Hugging Face's logits processors: repetition penalty, temperature, top-k,
        top-p, min-p.

        Args:
            logits: float32 ``[vocab_size]``.
            after: drafted tokens that follow the text.

        Returns:
            float64 ``[vocab_size]``, sums to 1.
        """
        params = self.params
        scores = self._penalised(logits, after)
        kept = np.flatnonzero(scores > -np.inf)  # a trimmed head cannot guess the others
        if 0 < params.top_k < kept.size:
            kept = kept[np.argpartition(scores[kept], -params.top_k)[-params.top_k :]]
        weights = scores[kept].astype(np.float64)
        with np.errstate(over="ignore"):  # a temperature next to 0 sends all but the best to minus infinity
            weights = np.exp((weights - weights.max()) / params.temperature)
        weights /= weights.sum()
        if params.top_p < 1:
            # What is below this, all of it together, is less than 1 - top_p: only the rest need be sorted.
            likely = np.flatnonzero(weights >= (1 - params.top_p) / weights.size)
            kept, weights = kept[likely], weights[likely]
            order = np.argsort(-weights, kind="stable")
            before = np.cumsum(weights[order]) - weights[order]
            weights[order[before >= params.top_p]] = 0.0
        if params.min_p > 0:
            weights[weights < params.min_p * weights.max()] = 0.0
        probabilities = np.zeros(scores.size)
        probabilities[kept] = weights / weights.sum()
        return probabilities

    def draw(self, probabilities: np.ndarray) -> int:
        """A token drawn from ``probabilities`` (non-negative, any positive sum)."""
        cumulative = np.cumsum(probabilities)
        # The right side skips tokens of probability 0; a draw is always below the total.
        return int(np.searchsorted(cumulative, self.random.random() * cumulative[-1], side="right"))

    def choose(self, logits: np.ndarray, after: Sequence[int] = ()) -> int:
        """The next token for ``logits`` ``[vocab_size]``, the text being followed by ``after``."""
        return self.best(logits, after) if self.greedy else self.draw(self.distribution(logits, after))

    def _penalised(self, logits: np.ndarray, after: Sequence[int]) -> np.ndarray:
        penalty = self.params.repetition_penalty
        if penalty == 1:
            return logits
        seen = np.fromiter(self._seen.union(after), np.int64)
        scores = logits.copy()
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
        return scores
