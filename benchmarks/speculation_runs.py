"""Answers decoded with and without guesses, in turns: what both tables of `speculation.py` are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter_ns
from typing import Any

from edgepipe.pipeline.decode_options import CacheOptions
from edgepipe.pipeline.session import Session
from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.drafters.model import ModelDrafter
from edgepipe.runtimes.llm.sampling import Sampler
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder


@dataclass(frozen=True)
class Decoded:
    """An answer: nanoseconds from its first token to its last, and of each round the guesses and the tokens added."""

    ns: int
    drafted: list[int]
    tokens: list[int]

    @property
    def ns_per_token(self) -> float:
        """Time per output token after the first."""
        return self.ns / sum(self.tokens)

    @property
    def gammas(self) -> dict[int, int]:
        """How many rounds had so many guesses."""
        return dict(sorted(Counter(self.drafted).items()))


def decode(decoder: SpeculativeDecoder, prompt: Sequence[int], count: int) -> Decoded:
    """At most ``count`` tokens after the first one, or up to a stop token."""
    decoder.start(prompt)
    drafted, tokens = [], []
    begin = perf_counter_ns()
    while (left := count - sum(tokens)) > 0 and decoder.text[-1] not in decoder.stop_tokens:
        entry = decoder.step(left)
        drafted.append(entry.drafted)
        tokens.append(len(entry.tokens))
    return Decoded(perf_counter_ns() - begin, drafted, tokens)


def decoder_of(session: Session, total: int, gamma: int | str) -> SpeculativeDecoder:
    """The session's own for ``auto``; 0 is plain, and another number fixes the guesses of its draft model."""
    if gamma == "auto":
        return session.decoder(total)
    sampler = Sampler(session.options.sampling)
    target, stops = session.cached("target", CacheOptions(), total), session.spec.eos_token_ids
    if gamma == 0:
        return SpeculativeDecoder(target, sampler, stop_tokens=stops)
    draft = session.cached("draft", CacheOptions(), total)
    return SpeculativeDecoder(target, sampler, ModelDrafter(draft, sampler, session.spec.vocab_size), int(gamma), stops)


class Probe:
    """Times single forwards of target and draft after what is in their caches, and rolls them back."""

    def __init__(self, target: CachedDecoder, draft: CachedDecoder, widths: Sequence[int]) -> None:
        self.target, self.draft, self.widths = target, draft, widths

    def __call__(self, repeats: int = 3) -> tuple[dict[int, float], float]:
        """Nanoseconds of the target's forward by width, and of the draft's of one token."""
        forwards: dict[int, list[int]] = {width: [] for width in self.widths}
        guesses = []
        for _ in range(repeats):
            for width in self.widths:
                forwards[width].append(self._time(self.target, width))
                guesses.append(self._time(self.draft, 1))
        return {width: median(times) for width, times in forwards.items()}, median(guesses)

    def _time(self, decoder: CachedDecoder, width: int) -> int:
        begin = perf_counter_ns()
        decoder.extend([0] * width)
        decoder.commit(0)
        return perf_counter_ns() - begin


def take_turns(turns: dict[Any, Callable[[], Any]], number: int) -> dict[Any, Any]:
    """Call every entry, forwards in even rounds and backwards in odd ones."""
    names = list(turns)[:: 1 if number % 2 else -1]
    taken = {name: turns[name]() for name in names}
    return {name: taken[name] for name in turns}


def spread(ratios: list[float]) -> str:
    """The median, and the range in brackets."""
    return f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"


def raw(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry that holds what took turns under ``decoded``, ready for JSON."""
    decoded = {str(name): {**asdict(run), "rounds_by_gamma": run.gammas} for name, run in entry["decoded"].items()}
    return {**entry, "decoded": decoded}
