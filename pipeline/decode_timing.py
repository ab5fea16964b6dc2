"""One timed generation: the product's own loop with a clock beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from time import perf_counter_ns
from typing import Any

from edgepipe.pipeline.report_schema import Decoding, Speedup
from edgepipe.pipeline.statistics import summarise
from edgepipe.runtimes.llm.rounds import Round, speculation, time_split
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder

Clock = Callable[[], int]


@dataclass(frozen=True)
class Timing:
    """A prompt and the tokens generated after it, on a monotonic clock.

    Attributes:
        prompt_tokens: tokens of the prompt.
        kv_bytes: bytes of keys and values allocated, the draft's included.
        prefill: the round that fed the prompt and chose the first token.
        ttft_ns: nanoseconds from the start of the prefill to the first token.
        rounds: the rounds after it.
        round_ns: nanoseconds of each of them, from token to token.
    """

    prompt_tokens: int
    kv_bytes: int
    prefill: Round
    ttft_ns: int
    rounds: tuple[Round, ...]
    round_ns: tuple[int, ...]

    @cached_property
    def tokens(self) -> list[int]:
        """The generated tokens, N of them."""
        return [token for entry in (self.prefill, *self.rounds) for token in entry.tokens]

    @property
    def ttft_ms(self) -> float:
        """Time to the first token, tokenising apart."""
        return self.ttft_ns / 1e6

    @property
    def prefill_tokens_per_s(self) -> float:
        """Tokens of the prompt, divided by the time that feeding them took."""
        return 1e9 * self.prompt_tokens / self.prefill.verify_ns

    @property
    def tpot_ms(self) -> float:
        """Time per output token: (t_last - t_first) / (N - 1)."""
        return sum(self.round_ns) / 1e6 / (len(self.tokens) - 1)

    @property
    def decode_tokens_per_s(self) -> float:
        """(N - 1) / (t_last - t_first)."""
        return 1e3 / self.tpot_ms

    @property
    def drafted(self) -> int:
        """Guesses that the target checked."""
        return sum(entry.drafted for entry in self.rounds)

    @property
    def accepted(self) -> int:
        """Guesses that became text."""
        return sum(entry.accepted for entry in self.rounds)

    def to_json(self) -> dict[str, Any]:
        """The raw sample: one entry a round in every list."""
        rounds = self.rounds
        return {
            "ttft_ns": self.ttft_ns,
            "prefill_ns": self.prefill.verify_ns,
            "first_token": self.prefill.tokens[0],
            "round_tokens": [entry.tokens for entry in rounds],
            "round_ns": list(self.round_ns),
            "drafter": [entry.drafter for entry in rounds],
            "drafted": [entry.drafted for entry in rounds],
            "accepted": [entry.accepted for entry in rounds],
            "draft_ns": [entry.draft_ns for entry in rounds],
            "verify_ns": [entry.verify_ns for entry in rounds],
            "sample_ns": [entry.sample_ns for entry in rounds],
            "kv_ns": [entry.commit_ns for entry in rounds],
        }


def time_decode(
    decoder: SpeculativeDecoder, prompt: Sequence[int], new_tokens: int, clock: Clock = perf_counter_ns
) -> Timing:
    """Generate exactly ``new_tokens`` (2 or more) after ``prompt`` with a fresh decoder; stop tokens do not stop it."""
    decoder.stop_tokens = frozenset()
    begin = clock()
    prefill = decoder.start(prompt)
    times = [clock()]
    rounds: list[Round] = []
    left = new_tokens - len(prefill.tokens)
    while left > 0:
        rounds.append(decoder.step(left))
        times.append(clock())
        left -= len(rounds[-1].tokens)
    return Timing(
        prompt_tokens=len(prompt),
        kv_bytes=decoder.kv_bytes,
        prefill=prefill,
        ttft_ns=times[0] - begin,
        rounds=tuple(rounds),
        round_ns=tuple(end - start for start, end in pairwise(times)),
    )


def summarise_decoding(warmup: Sequence[Timing], samples: Sequence[Timing]) -> Decoding:
    """What repeated generations after one prompt come to; ``warmup`` is kept, but enters no figure."""
    drafted = sum(timing.drafted for timing in samples)
    rounds = [entry for timing in samples for entry in timing.rounds]
    decode_ns = sum(sum(timing.round_ns) for timing in samples)
    return Decoding(
        kv_bytes=samples[0].kv_bytes,
        warmup=[timing.to_json() for timing in warmup],
        samples=[timing.to_json() for timing in samples],
        ttft_ms=summarise([timing.ttft_ms for timing in samples]),
        prefill_tokens_per_s=summarise([timing.prefill_tokens_per_s for timing in samples]),
        tpot_ms=summarise([timing.tpot_ms for timing in samples]),
        decode_tokens_per_s=summarise([timing.decode_tokens_per_s for timing in samples]),
        round_ms=summarise([time / 1e6 for timing in samples for time in timing.round_ns]),
        acceptance_rate=sum(timing.accepted for timing in samples) / drafted if drafted else None,
        tokens_per_round=sum(len(entry.tokens) for entry in rounds) / len(rounds),
        time_split=time_split(rounds, decode_ns),
        speculation=speculation(rounds),
    )


def summarise_speedup(measured: Sequence[Timing], plain: Sequence[Timing]) -> Speedup:
    """Ratios of generations that were timed in pairs."""
    pairs = list(zip(measured, plain, strict=True))
    return Speedup(
        ttft=summarise([theirs.ttft_ms / ours.ttft_ms for ours, theirs in pairs]),
        decode=summarise([theirs.tpot_ms / ours.tpot_ms for ours, theirs in pairs]),
    )


def predict_speedup(samples: Sequence[Timing], relative_cost: Mapping[int, float], plain_ns: float) -> float | None:
    """Tokens of plain rounds in the time that the cost model gives the rounds that there were.

    A round of gamma guesses is to take t(gamma + 1) / t(1) + c gamma plain rounds, c being the drafter's median time
    for a guess; None if nothing was guessed, or more than the cost curve tells of.

    Args:
        samples: generations after one prompt.
        relative_cost: t(S) / t(1) by S.
        plain_ns: t(1).
    """
    rounds = [entry for timing in samples for entry in timing.rounds]
    if not any(entry.drafted for entry in rounds) or max(entry.drafted for entry in rounds) + 1 not in relative_cost:
        return None
    guess = {
        name: median(entry.draft_ns / entry.drafted for entry in rounds if entry.drafter == name) / plain_ns
        for name in {entry.drafter for entry in rounds if entry.drafter}
    }
    predicted = sum(
        relative_cost[entry.drafted + 1] + (entry.drafted * guess[entry.drafter] if entry.drafter else 0)
        for entry in rounds
    )
    return sum(len(entry.tokens) for entry in rounds) / predicted
