"""Costs are measured once for each device and bundle, and what was measured is what is used."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from edgepipe.pipeline import device_costs, session
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.decode_options import CacheOptions, DecodeOptions
from edgepipe.pipeline.device_costs import measure_acceptance, measured_costs, smoothed, time_costs
from edgepipe.pipeline.prompt_text import QUESTIONS, TEXT, chat_prompts, prompt_tokens
from edgepipe.pipeline.session import Session
from edgepipe.runtimes.llm.chat_template import ChatTemplate
from edgepipe.runtimes.llm.costs import DraftCost, MeasuredCosts
from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.drafters.drafter import Draft, Drafter
from edgepipe.runtimes.llm.drafters.lookup import Lookup
from edgepipe.runtimes.llm.gamma import MOST_GUESSES, AutoGamma, FixedGamma
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.full import Full
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
from edgepipe.runtimes.llm.spec import DecoderSpec, RopeSpec

SPEC = DecoderSpec(
    architecture="llama",
    num_layers=1,
    hidden_size=4,
    intermediate_size=4,
    num_heads=1,
    num_kv_heads=1,
    head_dim=4,
    vocab_size=10,
    context_length=512,
    rms_norm_eps=1e-5,
    rope=RopeSpec(theta=10_000.0),
    tied_embeddings=True,
)


class Slow:
    """A decoder that takes 1 ms, and a quarter of it for each token more, on a clock of its own."""

    spec = SPEC

    def __init__(self, widths: tuple[int, ...] | None = None) -> None:
        self.widths = widths
        self.now = 0
        self.seen: list[tuple[int, int]] = []

    def forward(self, cache: KVCache, tokens: Sequence[int], **options: Any) -> np.ndarray:
        self.seen.append((cache.length, len(tokens)))
        self.now += 750_000 + 250_000 * len(tokens)
        cache.append(len(tokens))
        return np.zeros((len(tokens), SPEC.vocab_size), np.float32)


class SlowDrafter(Drafter):
    """Takes 0.1 ms a guess and 0.01 ms for each token of the text."""

    name = "slow"

    def __init__(self, clock: Slow) -> None:
        self.clock = clock

    def propose(self, text: Sequence[int], count: int) -> Draft:
        self.clock.now += 10_000 * len(text) + 100_000 * count
        return Draft([0] * count)

    def reset(self) -> None:
        pass


def target(clock: Slow, budget: int = 200) -> CachedDecoder:
    return CachedDecoder(clock, KVCache(SPEC, budget, 16), Full(budget), chunk=16)


def test_what_is_measured_is_what_it_takes() -> None:
    clock = Slow()
    decoder = target(clock)
    found = time_costs(decoder, [Lookup(), SlowDrafter(clock)], 128, clock=lambda: clock.now)
    assert found.forward_ns == pytest.approx({width: 750_000 + 250_000 * width for width in (1, 2, 3, 4, 6, 8, 12, 16)})
    assert found.drafters == {"slow": DraftCost(pytest.approx(0.12), pytest.approx(0.1), pytest.approx(0.01))}
    assert {length for length, _ in clock.seen} == {128}, "with as much in the cache as asked for"
    assert (decoder.cache.length, decoder.cache.next_position, decoder.cache.pending) == (0, 0, 0)


def test_the_widths_of_an_engine_are_timed_and_no_other() -> None:
    clock = Slow(widths=(1, 5, 9))
    found = time_costs(target(clock), [], 128, clock=lambda: clock.now)
    assert found.forward_ns == pytest.approx({1: 1_000_000, 5: 2_000_000, 9: 3_000_000})


def test_disturbed_samples_are_drawn_towards_a_line() -> None:
    """By hand: slopes between the samples are 1, 1 and 1 but for those of the disturbed one, so the line is S + 9."""
    found = smoothed({1: [10], 2: [11], 3: [12], 4: [13], 8: [170]})
    assert found == pytest.approx({1: 10, 2: 11, 3: 12, 4: 13, 8: (170 + 2 * 17) / 3})
    many = smoothed({1: [10] * 8, 2: [10] * 8, 3: [20] * 8})
    assert many[3] == pytest.approx((8 * 20 + 2 * (10 + 5 * 3 - 7.5)) / 10, abs=1.0), "steps are kept"


def test_a_slow_device_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_costs, "BUDGET_NS", 5_000_000)
    clock = Slow()
    found = time_costs(target(clock), [], 0, clock=lambda: clock.now)
    assert {1, 2, 4} <= set(found.forward_ns)
    assert clock.now < 10_000_000
    clock.now = 0
    time_costs(target(clock), [SlowDrafter(clock)], 0, clock=lambda: clock.now)
    monkeypatch.setattr(device_costs, "BUDGET_NS", 0)
    fewest, clock.now = clock.now, 0
    time_costs(target(clock), [SlowDrafter(clock)], 0, clock=lambda: clock.now)
    assert clock.now < fewest, "the drafter is timed once at least, and no oftener"


def test_a_small_cache_has_few_widths() -> None:
    clock = Slow()
    found = time_costs(CachedDecoder(clock, KVCache(SPEC, 4, 4), Full(4), 4), [], 100, clock=lambda: clock.now)
    assert set(found.forward_ns) == {1, 2, 3, 4, 6, 8}


def test_a_drafter_that_fails_is_left_to_fail_again() -> None:
    class Broken(SlowDrafter):
        def propose(self, text: Sequence[int], count: int) -> Draft:
            raise ValueError

    clock = Slow()
    assert time_costs(target(clock), [Broken(clock)], 0, clock=lambda: clock.now).drafters == {}


COSTS = MeasuredCosts({1: 5e6, 2: 6.25e6}, {"model": DraftCost(0.2, 0.1, 0.01)}, {"model": 0.5})


@pytest.fixture
def measure() -> Mock:
    """Gives `COSTS`, and counts."""
    return Mock(return_value=COSTS)


def test_costs_are_measured_once_and_read_as_they_were(measure: Mock) -> None:
    facts = {"bundle_id": "a", "threads": None}
    assert measured_costs(facts, measure) == measured_costs(facts, measure) == COSTS
    assert measure.call_count == 1
    measured_costs({**facts, "threads": 1}, measure)
    assert measure.call_count == 2


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "null", '{"forward_ns": {}}', '{"forward_ns": {"1": 5}, "drafters": {}}'),
        '{"forward_ns": {"1": 0}, "drafters": {}, "acceptance": {}}',
        '{"forward_ns": {"1": "x"}, "drafters": {}, "acceptance": {}}',
        '{"forward_ns": {"1": 5}, "drafters": {"model": {"first": 1}}, "acceptance": {}}',
        '{"forward_ns": {"1": 5, "2": Infinity}, "drafters": {}, "acceptance": {}}',
        '{"forward_ns": {"1": 5}, "drafters": {}, "acceptance": {"model": NaN}}',
        '{"forward_ns": {"1": 5}, "drafters": {"model": {"first": 1, "guess": "x", "catch_up": 0}}, "acceptance": {}}',
        '{"forward_ns": {"1": 5}, "drafters": {"a": {"first": 1, "guess": 1, "catch_up": 1e-99}}, "acceptance": {}}',
        *(
            f'{{"forward_ns": {{"1": 5, "{width}": 6}}, "drafters": {{}}, "acceptance": {{}}}}'
            for width in (-1, 0, 10**9)
        ),
        f'{{"forward_ns": {{"1": {10**400}}}, "drafters": {{}}, "acceptance": {{}}}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_measured_again(
    measure: Mock, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path))
    measured_costs({}, measure)
    (file,) = (tmp_path / "costs").iterdir()
    file.write_text(content)
    assert measured_costs({}, measure) == COSTS
    assert measure.call_count == 2
    measured_costs({}, measure)
    assert measure.call_count == 2


def test_a_cache_that_cannot_be_written_is_no_error(
    measure: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path / "file"))
    assert measured_costs({}, measure) == COSTS


class Right(Drafter):
    """Guesses what a text of zeros goes on with, or something else."""

    name = "right"

    def __init__(self, guess: int) -> None:
        self.guess = guess

    def propose(self, text: Sequence[int], count: int) -> Draft:
        return Draft([self.guess] * count)

    def reset(self) -> None:
        pass


@pytest.mark.parametrize("texts", [[[1, 2]], [[1, 2], [1, 3, 4]]])
@pytest.mark.parametrize(("guess", "rate"), [(0, (16 * 3 + 1) / (16 * 3 + 2)), (1, 1 / (16 + 2))])
def test_acceptance_is_measured_to_the_first_wrong_guess(guess: int, rate: float, texts: list[list[int]]) -> None:
    decoder = target(Slow())  # whose every next token is 0
    sampler = Sampler(SamplingParams())
    found = measure_acceptance(decoder, sampler, [Lookup(), Right(guess)], texts, gamma=3)
    assert found == pytest.approx({"right": rate})
    assert (decoder.cache.length, decoder.cache.next_position) == (0, 0)
    assert measure_acceptance(decoder, sampler, [Right(guess)], texts, gamma=0) == {}
    assert measure_acceptance(decoder, sampler, [Right(guess)], [], gamma=3) == {}


def test_a_slow_device_answers_every_question_for_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_costs, "BUDGET_NS", 0)
    clock = Slow()
    sampler = Sampler(SamplingParams())
    found = measure_acceptance(target(clock), sampler, [Right(0)], [[1], [2]], 3, clock=lambda: clock.now)
    assert found == {"right": (2 * 2 * 3 + 1) / (2 * 2 * 3 + 2)}


def test_acceptance_of_a_drafter_that_fails_is_not_known() -> None:
    class Broken(Right):
        def propose(self, text: Sequence[int], count: int) -> Draft:
            raise ValueError

    sampler = Sampler(SamplingParams())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert measure_acceptance(target(Slow()), sampler, [Broken(0)], [[1, 2]], gamma=3) == {}


def opened(bundle: Path, **options: Any) -> Session:
    return Session(Bundle.open(bundle), DecodeOptions(**options))


@pytest.mark.parametrize("policy", ["h2o", "window"])
@pytest.mark.parametrize("budget", [2, 3, 8, 20, 31, 64, 500])
@pytest.mark.parametrize("recent", [None, 1, 6, 16])
def test_gamma_stays_within_the_budgets(tiny_bundle: Path, policy: str, budget: int, recent: int | None) -> None:
    """Twice the newest tokens fit the budget, and H2O's window holds those of the largest round."""
    if recent is not None and (policy == "window" or recent > budget):
        return
    sinks = {"sinks": min(4, budget - 1)} if policy == "window" else {}
    cache = CacheOptions(policy, str(budget), recent, **sinks)
    found = opened(tiny_bundle, drafter="lookup", cache=cache)
    most = found.most_guesses(600)
    assert 0 <= most <= MOST_GUESSES
    assert budget >= 2 * (most + 1)
    if recent is not None:
        assert recent >= most + 1
    decoder = found.decoder(600)
    assert decoder.gamma.most == most
    kept = decoder.target.policy
    assert getattr(kept, "recent", budget) >= most + 1
    if recent is None and budget >= 64:
        assert most == MOST_GUESSES


def test_the_drafts_budget_counts_too(tiny_bundle: Path) -> None:
    small = CacheOptions("window", "12")
    assert opened(tiny_bundle, drafter="lookup,model", draft_cache=small).most_guesses(100) == 5
    assert opened(tiny_bundle, drafter="lookup", draft_cache=small).most_guesses(100) == MOST_GUESSES
    assert opened(tiny_bundle, drafter="none").most_guesses(100) == 0
    assert opened(tiny_bundle, drafter="model", gamma=7).most_guesses(100) == 7


def test_a_session_chooses_as_it_is_told(tiny_bundle: Path) -> None:
    decoder = opened(tiny_bundle, drafter="lookup,model").decoder(100)
    assert isinstance(decoder.gamma, AutoGamma)
    assert decoder.chain.names == ["lookup", "model"]
    fixed = opened(tiny_bundle, drafter="lookup", gamma=3).decoder(100)
    assert isinstance(fixed.gamma, FixedGamma)
    assert fixed.gamma.most == 3


@pytest.mark.parametrize("cache", [CacheOptions("h2o", "40"), CacheOptions("window", "40"), CacheOptions()])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_does_not_depend_on_what_was_measured(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, cache: CacheOptions, temperature: float
) -> None:
    """Whether drafts look cheap or dear, or nobody drafts; and measuring takes no draws from the seed."""
    figures = iter(
        [
            (MeasuredCosts({1: 1.0, 16: 1.5}, {"model": DraftCost(0.01, 0.01, 0.0)}), 0.9),
            (MeasuredCosts({1: 1.0, 16: 9.0}, {"model": DraftCost(0.2, 0.2, 0.1)}), 0.6),
        ]
    )

    def measured(facts: Any, measure: Any) -> MeasuredCosts:
        measure()
        costs, acceptance = next(figures)
        return replace(costs, acceptance={"model": acceptance})

    monkeypatch.setattr(session, "measured_costs", measured)
    sampling = SamplingParams(temperature, seed=5)
    texts, histograms = [], []
    for drafter in ("lookup,model", "lookup,model", "none"):
        decoder = opened(tiny_bundle, drafter=drafter, cache=cache, sampling=sampling).decoder(120)
        decoder.start(list(range(20, 60)))
        rounds = []
        while len(decoder.text) < 120:
            rounds.append(decoder.step(120 - len(decoder.text)))
        texts.append(decoder.text)
        histograms.append([entry.drafted for entry in rounds])
    assert texts[0] == texts[1] == texts[2]
    assert histograms[0] != histograms[1], "the rounds do"
    assert any(histograms[0])


def test_who_waits_is_told_what_for_and_only_once(tiny_bundle: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path))
    told: list[str] = []
    for _ in range(2):
        found = Session(Bundle.open(tiny_bundle), DecodeOptions(drafter="lookup"), told.append)
        assert not told[1:]
        found.decoder(100)
    assert told == ["measuring, this once, what guesses cost on this device"]


def test_costs_are_shared_by_texts_of_about_the_same_length(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(tiny_bundle, drafter="lookup")
    one, other = found.decoder(100).gamma, found.decoder(500).gamma
    assert isinstance(one, AutoGamma)
    assert isinstance(other, AutoGamma)
    assert one.costs is other.costs
    assert one.acceptance is not other.acceptance
    assert session._LENGTHS[0] >= 500


def test_drafters_are_judged_by_what_users_ask(tiny_bundle: Path) -> None:
    """In the model's chat template; where there is none, or it refuses a question alone, by prose."""
    found = opened(tiny_bundle)
    assert found.template is not None
    texts = chat_prompts(found.tokenizer, found.template)
    rendered = [found.template.render([{"role": "user", "content": question}]) for question in QUESTIONS]
    assert texts == [found.tokenizer.encode(text, add_special_tokens=False) for text in rendered]
    assert all(question in text for question, text in zip(QUESTIONS, rendered, strict=True))
    prose = [prompt_tokens(found.tokenizer, TEXT, 32)]
    assert chat_prompts(found.tokenizer, None) == prose
    assert chat_prompts(found.tokenizer, ChatTemplate("{{ raise_exception('no system message') }}", {})) == prose
