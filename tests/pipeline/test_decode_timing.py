"""Formulas by arithmetic: the real loop over a made-up model, with a clock that ticks as the test says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgepipe.pipeline.cost_curve import time_widths
from edgepipe.pipeline.decode_timing import (
    Timing,
    predict_speedup,
    summarise_decoding,
    summarise_speedup,
    time_decode,
)
from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.drafters.drafter import Draft, Drafter
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.full import Full
from edgepipe.runtimes.llm.rounds import Round
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
from edgepipe.runtimes.llm.spec import DecoderSpec, RopeSpec
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder

VOCABULARY = 10
EOS = 7
SPEC = DecoderSpec(
    architecture="llama",
    num_layers=1,
    hidden_size=4,
    intermediate_size=4,
    num_heads=1,
    num_kv_heads=1,
    head_dim=4,
    vocab_size=VOCABULARY,
    context_length=64,
    rms_norm_eps=1e-5,
    rope=RopeSpec(theta=10_000.0),
    tied_embeddings=True,
    eos_token_ids=(EOS,),
)


class Counting:
    """A decoder whose next token is always the last one plus 1, around the vocabulary."""

    spec = SPEC
    features = None
    reads_features = False
    widths = None

    def __init__(self) -> None:
        self.fed: list[list[int]] = []

    def forward(
        self, cache: KVCache, tokens: Sequence[int], *, last_only: bool = False, features: np.ndarray | None = None
    ) -> np.ndarray:
        self.fed.append(list(tokens))
        logits = np.zeros((len(tokens), VOCABULARY), np.float32)
        logits[np.arange(len(tokens)), (np.asarray(tokens) + 1) % VOCABULARY] = 1.0
        cache.append(len(tokens))
        return logits[-1:] if last_only else logits


class HalfRight(Drafter):
    """The first guess is right, the others are wrong."""

    def propose(self, text: Sequence[int], count: int) -> Draft:
        return Draft([(text[-1] + 1) % VOCABULARY, *[0] * (count - 1)])

    def reset(self) -> None:
        pass


def target(budget: int = 40) -> CachedDecoder:
    return CachedDecoder(Counting(), KVCache(SPEC, budget, 8), Full(budget), chunk=8)


def decoder(drafter: Drafter | None = None, gamma: int = 0) -> SpeculativeDecoder:
    return SpeculativeDecoder(target(), Sampler(SamplingParams()), drafter, gamma, SPEC.eos_token_ids)


class FakeClock:
    """Nanoseconds as given, one reading after another."""

    def __init__(self, *readings: int) -> None:
        self.readings = list(readings)

    def __call__(self) -> int:
        return self.readings.pop(0)


def test_plain_decoding_by_arithmetic() -> None:
    clock = FakeClock(1_000_000, 9_000_000, 11_000_000, 14_000_000, 18_000_000)
    timing = time_decode(decoder(), [1, 2, 3], 4, clock)
    assert not clock.readings, "the clock is read once a round and twice for the prefill"
    assert timing.tokens == [4, 5, 6, 7]
    assert timing.ttft_ms == 8.0
    assert timing.round_ns == (2_000_000, 3_000_000, 4_000_000)
    assert timing.tpot_ms == pytest.approx((18 - 9) / 3)  # (t_last - t_first) / (N - 1)
    assert timing.decode_tokens_per_s == pytest.approx(3 / 9e-3)


def test_tokens_that_come_in_bursts_share_their_round() -> None:
    # A round brings the right guess and the token after it: 1 + 2 + 2 tokens, and the last round's limit is 1.
    clock = FakeClock(0, 5_000_000, 15_000_000, 27_000_000, 30_000_000)
    timing = time_decode(decoder(HalfRight(), gamma=3), [1], 6, clock)
    assert timing.tokens == [2, 3, 4, 5, 6, 7]
    assert [len(entry.tokens) for entry in timing.rounds] == [2, 2, 1]
    assert timing.tpot_ms == pytest.approx((30 - 5) / 5)
    assert (timing.drafted, timing.accepted) == (3 + 2, 2)


def test_stop_tokens_do_not_stop() -> None:
    timing = time_decode(decoder(), [EOS - 2], 5)
    assert timing.tokens == [EOS - 1, EOS, EOS + 1, EOS + 2, 0]


@pytest.mark.parametrize("new_tokens", range(2, 12))
def test_the_number_of_tokens_is_exact(new_tokens: int) -> None:
    assert len(time_decode(decoder(HalfRight(), gamma=4), [1, 2], new_tokens).tokens) == new_tokens


def round_of(tokens: list[int], drafted: int, accepted: int, *times: int) -> Round:
    return Round(tokens, drafted, accepted, *times)


def timing(ttft: int, rounds: list[Round], round_ns: tuple[int, ...]) -> Timing:
    return Timing(100, 4096, round_of([1], 0, 0, 0, ttft // 2, 0, 0), ttft, tuple(rounds), round_ns)


def test_summary_by_arithmetic() -> None:
    one = timing(10_000_000, [round_of([1, 2, 3], 4, 2, 100, 700, 100, 50)], (1000,))
    two = timing(
        20_000_000, [round_of([1], 4, 0, 100, 500, 200, 50), round_of([2, 3], 2, 1, 0, 900, 50, 0)], (1000, 2000)
    )
    warm = timing(90_000_000, [round_of([1], 4, 4, 1, 1, 1, 1)], (9999,))
    decoding = summarise_decoding([warm], [one, two])
    assert decoding["kv_bytes"] == 4096
    assert decoding["ttft_ms"]["p50"] == 15.0
    # 100 tokens in 5 ms and in 10 ms
    assert decoding["prefill_tokens_per_s"]["p50"] == pytest.approx((20_000 + 10_000) / 2)
    assert decoding["tpot_ms"]["min"] == pytest.approx(1e-3 / 3)
    assert decoding["tpot_ms"]["max"] == pytest.approx(1e-3)
    assert decoding["round_ms"]["count"] == 3
    assert decoding["round_ms"]["mean"] == pytest.approx(4e-3 / 3)
    assert decoding["acceptance_rate"] == pytest.approx(3 / 10)
    assert decoding["tokens_per_round"] == pytest.approx(6 / 3)
    # of 4000 ns: draft 200, verify 2100, sample 350, kv 100, and the rest
    split = {"draft": 0.05, "verify": 0.525, "sample": 0.0875, "kv": 0.025, "other": 0.3125}
    assert decoding["time_split"] == pytest.approx(split)
    assert len(decoding["warmup"]) == 1
    assert len(decoding["samples"]) == 2
    assert decoding["samples"][1]["round_ns"] == [1000, 2000]
    assert decoding["samples"][1]["verify_ns"] == [500, 900]
    assert decoding["warmup"][0]["round_tokens"] == [[1]]


def test_nothing_drafted_has_no_acceptance_rate() -> None:
    plain = timing(10, [round_of([1], 0, 0, 0, 1, 0, 0)], (1,))
    assert summarise_decoding([], [plain])["acceptance_rate"] is None


def test_speedup_is_pairwise() -> None:
    single = [round_of([1], 0, 0, 0, 1, 0, 0)]
    ours = [timing(10, single, (1000,)), timing(20, single, (4000,))]
    theirs = [timing(20, single, (2000,)), timing(10, single, (2000,))]
    speedup = summarise_speedup(ours, theirs)
    assert (speedup["ttft"]["min"], speedup["ttft"]["max"]) == (0.5, 2.0)
    assert (speedup["decode"]["min"], speedup["decode"]["max"]) == (0.5, 2.0)
    assert speedup["decode"]["p50"] == 1.25


def test_speedup_is_predicted_from_curve_draft_and_acceptance() -> None:
    rounds = [
        Round([1, 2, 3], 2, 2, 400, 900, 0, 0, "model"),  # 200 a guess
        Round([4], 2, 0, 800, 900, 0, 0, "model"),  # 400 a guess: the median is 300
        Round([5], 0, 0, 0, 900, 0, 0),
        Round([6, 7], 1, 1, 0, 900, 0, 0, "lookup"),
    ]
    # t(3) / t(1) + 2 * 0.3 twice, then 1, then t(2) / t(1)
    expected = (3 + 1 + 1 + 2) / (2 * (1.5 + 2 * 0.3) + 1 + 1.25)
    found = predict_speedup([timing(10, rounds, (1, 1, 1, 1))], {1: 1.0, 2: 1.25, 3: 1.5}, plain_ns=1000.0)
    assert found == pytest.approx(expected)
    assert predict_speedup([timing(10, rounds, (1, 1, 1, 1))], {1: 1.0, 2: 1.25}, plain_ns=1000.0) is None
    assert predict_speedup([timing(10, rounds[2:3], (1,))], {1: 1.0}, plain_ns=1000.0) is None


def test_cost_curve_leaves_the_cache_as_it_was() -> None:
    cached = target()
    engine = cached.decoder
    assert isinstance(engine, Counting)
    following = [3, 1, 4, 1, 5]
    (times,) = time_widths([cached], [1, 2, 3], following, warmup=1, repeats=3)
    assert set(times) == {1, 2, 3, 4, 5}
    assert all(len(taken) == 4 for taken in times.values())
    assert (cached.cache.length, cached.cache.pending, cached.cache.next_position) == (3, 0, 3)
    forwards = engine.fed[1:]
    assert all(tokens == following[: len(tokens)] for tokens in forwards)
    repetitions = [[len(tokens) for tokens in forwards[start : start + 5]] for start in range(0, 20, 5)]
    assert all(sorted(order) == [1, 2, 3, 4, 5] for order in repetitions)
    assert len({tuple(order) for order in repetitions}) > 1, "the order does not change"


def test_cost_curve_times_the_forward_alone() -> None:
    clock = FakeClock(*range(0, 300, 3), *range(1000, 2000))
    (times,) = time_widths([target()], [1, 2], [3, 4, 5], warmup=0, repeats=2, clock=clock)
    assert times == {1: [3, 3], 2: [3, 3], 3: [3, 3]}


def test_targets_take_turns_as_far_as_each_is_wide() -> None:
    whole, narrow = target(), target()
    narrow.decoder.widths = (1, 3)
    turns: list[tuple[str, int]] = []
    for name, each in (("whole", whole), ("narrow", narrow)):
        forward = each.decoder.forward
        each.decoder.forward = lambda cache, tokens, name=name, forward=forward, **options: (  # type: ignore[method-assign]
            turns.append((name, len(tokens))) or forward(cache, tokens, **options)
        )
    times = time_widths([whole, narrow], [1, 2], [3, 4, 5, 6], warmup=0, repeats=2)
    assert [set(found) for found in times] == [{1, 2, 3, 4}, {1, 2, 3}]
    for index, (name, width) in enumerate(turns[2:], start=2):
        if name == "whole" and width < 4:
            assert turns[index + 1] == ("narrow", width)
