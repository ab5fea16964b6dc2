"""The choice of gamma: by arithmetic, and in a made-up world where what a round costs and what is right is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepipe.runtimes.llm.costs import Costs, DraftCost, MeasuredCosts
from edgepipe.runtimes.llm.drafters.chain import Source
from edgepipe.runtimes.llm.gamma import AutoGamma, Choice, FixedGamma

# Of a forward of S tokens against one, on a CPU.
CURVE = {1: 1.0, 2: 1.25, 3: 1.5, 4: 1.8, 6: 2.4, 8: 3.0, 16: 5.2}


def costs(curve: Mapping[int, float] = CURVE, guess: float = 0.1, catch_up: float = 0.01, **options: Any) -> Costs:
    forward_ns = {width: 5e6 * cost for width, cost in curve.items()}
    return Costs(MeasuredCosts(forward_ns, {"model": DraftCost(guess, guess, catch_up)}), **options)


def world(
    gamma: AutoGamma, acceptance: float, tokens: int, free: bool = False, true: Costs | None = None, seed: int = 0
) -> float:
    """Plain rounds that it takes to decode so many tokens with a drafter whose guesses are right so often."""
    true, random = true or costs(), np.random.default_rng(seed)
    elapsed, made, read = 0.0, 0, 0
    while made < tokens:
        source = Source("lookup" if free else "model", 2 if free else 0, free, made + 50 - read)
        choice = gamma.choose([source], tokens - made - 1)
        guesses = choice.count if choice.source else 0
        right = random.random(15) < acceptance
        accepted = int(np.argmin([*right[:guesses], False]))
        drafting = 0.0
        if guesses:
            read = made + 50
            if not free:
                cost = true.drafter("model")
                drafting = cost.draft(guesses) + max(0, source.behind - guesses - 1) * cost.catch_up
            gamma.observe_guesses(source, guesses, accepted)
        for watched in choice.watched:
            gamma.observe_guesses(watched, 1, int(right[0]))
        forward = true.forward(guesses + 1)
        gamma.observe_round(choice, guesses, accepted + 1, int(5e6 * drafting), int(5e6 * forward))
        elapsed += drafting + forward
        made += accepted + 1
    return elapsed


def speedup(acceptance: float, guess: float) -> float:
    """The best that any fixed gamma reaches (Leviathan et al. 2022, theorem 3.8)."""
    reached = [sum(acceptance**i for i in range(gamma + 1)) for gamma in range(16)]
    true = costs()
    return max(reached[gamma] / (true.forward(gamma + 1) + gamma * guess) for gamma in range(16))


@given(
    rates=st.lists(st.floats(0.05, 0.99), min_size=15, max_size=15),
    guess=st.floats(0, 0.6),
    limit=st.integers(1, 15),
    rises=st.lists(st.floats(0.03, 0.8), min_size=15, max_size=15),
)
def test_the_count_is_the_best_of_all(rates: list[float], guess: float, limit: int, rises: list[float]) -> None:
    curve = dict(enumerate(np.cumsum([1.0, *rises]).tolist(), start=1))
    gamma = AutoGamma(costs(curve, guess, catch_up=0.0))
    gamma.acceptance.rate = lambda source, position, before: rates[position]  # type: ignore[method-assign]
    gamma._purse = 100.0
    values = [sum(np.cumprod(rates[:count]), 1.0) / (curve[count + 1] + count * guess) for count in range(1, limit + 1)]
    choice = gamma.choose([Source("model")], limit)
    if max(values) > gamma.GAIN:
        assert values[choice.count - 1] == pytest.approx(max(values))
    else:
        assert choice.count in (0, 1), "plain, or a trial"


def test_only_widths_that_the_engine_has() -> None:
    gamma = AutoGamma(costs(widths=(1, 3, 9)))
    gamma.acceptance.observe(Source("model"), 15, 15)
    for limit, counts in ((1, {0, 1}), (2, {2}), (7, {2, 7}), (15, {2, 8})):
        assert gamma.choose([Source("model")], limit).count in counts


def test_before_the_end_of_a_text_a_wide_forward_is_filled_as_far_as_it_goes() -> None:
    gamma = AutoGamma(costs({1: 1.0, 5: 1.3}, guess=0.0, widths=(1, 5)), most=4)
    gamma.acceptance.observe(Source("model"), 15, 15)
    assert [gamma.choose([Source("model")], limit).count for limit in (0, 1, 2, 3, 4, 9)] == [0, 1, 2, 3, 4, 4]


def test_a_drafter_that_is_never_right_costs_no_more_than_the_purse() -> None:
    for tokens in (64, 256, 2048):
        purse = AutoGamma.PURSE[0] + AutoGamma.ALLOWANCE * tokens
        assert world(AutoGamma(costs()), 0.0, tokens) <= tokens + purse + 1
        assert world(AutoGamma(costs()), 0.0, tokens, free=True) <= tokens + purse + 1


@pytest.mark.parametrize("wrong", [{1: 1.0, 2: 1.08, 16: 2.2}, {1: 1.0, 2: 1.0, 4: 1.0, 16: 1.0}])
@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.4])
def test_wrong_costs_do_not_cost(wrong: dict[int, float], acceptance: float) -> None:
    """A curve measured on a disturbed machine promises that guessing is cheap, or free."""
    elapsed = [world(AutoGamma(costs(wrong, 0.05)), acceptance, 1024, seed=seed) for seed in range(9)]
    assert np.median(elapsed) <= 1024 * 1.02


@pytest.mark.parametrize("acceptance", [0.7, 0.8, 0.9])
def test_a_good_drafter_comes_near_the_best_fixed_gamma(acceptance: float) -> None:
    reached = [512 / world(AutoGamma(costs()), acceptance, 512, seed=seed) for seed in range(9)]
    assert np.median(reached) >= 0.93 * speedup(acceptance, 0.1)


@pytest.mark.parametrize("acceptance", [0.8, 0.9])
def test_bad_luck_does_not_end_guessing(acceptance: float) -> None:
    """Nine texts in ten come near the best fixed gamma, whatever went wrong at first."""
    reached = [384 / world(AutoGamma(costs()), acceptance, 384, seed=seed) for seed in range(60)]
    assert np.quantile(reached, 0.1) >= 0.85 * speedup(acceptance, 0.1)


def test_no_round_costs_more_than_the_purse_holds() -> None:
    gamma, true = AutoGamma(costs(guess=0.3)), costs(guess=0.3)
    choose, prices = gamma.choose, []

    def spy(sources: Sequence[Source], limit: int) -> Choice:
        choice, held = choose(sources, limit), gamma._purse
        if choice.source:
            prices.append((true.forward(choice.count + 1) - 1 + true.drafter("model").draft(choice.count), held))
        return choice

    gamma.choose = spy  # type: ignore[method-assign]
    world(gamma, 0.85, 512, true=true)
    assert max(price for price, _ in prices) > 1
    assert all(price <= held for price, held in prices)


def test_what_the_first_guess_costs_more_is_told_apart() -> None:
    """After a wide round the draft reads two tokens before it guesses: a long draft makes up for that."""
    found = Costs(MeasuredCosts({1: 1.0, 2: 1.2, 16: 4.0}, {"model": DraftCost(0.5, 0.2, 0.0)}))
    for _ in range(30):
        found.observe_draft(Source("model", behind=2), 1, 0.5, 1.2)
    assert found.drafter("model").first == pytest.approx(0.5)
    assert found.drafter("model").guess == pytest.approx(0.2)
    assert found.drafter("model").draft(4) == pytest.approx(1.1)


def test_free_guesses_are_watched_while_they_are_not_worth_checking() -> None:
    gamma = AutoGamma(costs())
    lookup = Source("lookup", 2, free=True)
    gamma.acceptance.observe(lookup, 1, 0)
    for _ in range(20):
        gamma.observe_guesses(lookup, 1, 0)
    assert gamma.choose([lookup], 8).source is None
    assert gamma.choose([lookup], 8).watched == (lookup,)
    for _ in range(20):
        gamma.observe_guesses(lookup, 1, 1)
    assert gamma.choose([lookup], 8).source == lookup


def test_the_drafter_that_promises_more_is_asked() -> None:
    gamma = AutoGamma(costs())
    lookup, model = Source("lookup", 2, free=True), Source("model")
    for _ in range(30):
        gamma.observe_guesses(lookup, 1, 0)
        gamma.observe_guesses(model, 4, 4)
    assert gamma.choose([lookup, model], 8).source == model
    for _ in range(60):
        for evidence in range(2, 12):
            gamma.observe_guesses(Source("lookup", evidence, free=True), 1, 1)
        gamma.observe_guesses(model, 1, 0)
    assert gamma.choose([lookup, model], 8).source == lookup


def test_acceptance_is_tracked_by_position_and_drafter() -> None:
    acceptance = AutoGamma(costs()).acceptance
    model, other = Source("model"), Source("other")
    for _ in range(100):
        acceptance.observe(model, 3, 1)  # the first is right, the second wrong, the third not tested
    assert acceptance.rate(model, 0) > 0.9
    assert acceptance.rate(model, 1, 0.9) < 0.3
    assert acceptance.rate(model, 2, 0.375) == 0.375, "nothing is known: as the one before"
    assert acceptance.rate(other, 0) == 0.5


def test_what_was_measured_is_believed_at_first() -> None:
    """A good drafter is asked though it has more to read than the purse pays for, a bad one not tried for a while."""
    forward_ns, cost = {width: 5e6 * cost for width, cost in CURVE.items()}, {"model": DraftCost(0.1, 0.1, 0.05)}
    model = Source("model", behind=64)
    good = AutoGamma(Costs(MeasuredCosts(forward_ns, cost, {"model": 0.9})))
    assert good.choose([model], 99).source == model
    assert good.acceptance.rate(model, 0) == 0.9
    assert AutoGamma(Costs(MeasuredCosts(forward_ns, cost))).choose([model], 99).source is None
    bad = AutoGamma(Costs(MeasuredCosts(forward_ns, cost, {"model": 0.1})))
    trial = considered = 0
    while (choice := bad.choose([] if bad.resting else [Source("model")], 99)).source is None:
        considered += not bad.resting
        bad.observe_round(choice, 0, 1, 0, 5_000_000)
        trial += 1
    # A wider forward and a guess cost 0.25 + 0.1 plain rounds, of which each round saves a hundredth.
    assert (trial, choice.count) == (35, 1)
    assert considered <= 35 / 7, "thinking costs, too"
    # As far as four plain rounds read, or one.
    assert (good.costs.reach("model"), bad.costs.reach("model"), costs(catch_up=0.0).reach("model")) == (80, 20, None)
    for _ in range(99):
        bad.observe_guesses(model, 1, 1)
    assert bad.acceptance.rate(model, 0) > 0.85, "what is seen counts more"


def test_a_fixed_gamma_asks_the_first() -> None:
    gamma = FixedGamma(4)
    sources = [Source("lookup", 2, free=True), Source("model")]
    assert (gamma.choose(sources, 9).source, gamma.choose(sources, 9).count) == (sources[0], 4)
    assert gamma.choose(sources, 3).count == 3
    assert gamma.choose([], 9).source is None
    assert FixedGamma(0).choose(sources, 9).source is None


def test_a_curve_is_interpolated_and_goes_on() -> None:
    found = costs({1: 1.0, 2: 1.2, 4: 1.8, 8: 1.6, 16: 3.48})
    widths = (1, 2, 3, 4, 8, 12, 16, 18)
    # From 4 to 8 it was measured to fall: each of those tokens is taken to add 0.02.
    assert [found.forward(width) for width in widths] == pytest.approx([1, 1.2, 1.5, 1.8, 1.88, 2.68, 3.48, 3.88])


def test_a_forward_between_the_widths_of_an_engine_costs_as_much_as_the_next() -> None:
    found = costs({1: 1.0, 5: 1.5, 9: 1.9}, widths=(1, 5, 9))
    assert [found.forward(width) for width in (1, 2, 5, 6, 9)] == pytest.approx([1, 1.5, 1.5, 1.9, 1.9])
    for _ in range(60):  # three guesses a round were made, and a forward of five tokens was seen to take twice as long
        found.observe(4, 5e6 * 2)
        found.observe(1, 5e6)
    assert found.forward(5) == pytest.approx(2, rel=0.01)


def test_costs_are_learnt_from_neighbours_whatever_slows_both() -> None:
    found = costs()
    for load in np.linspace(1.0, 5.0, 60):  # the machine gets five times slower meanwhile
        found.observe(4, 5e6 * load * (1 + 2 * 0.8))  # twice the rise that was measured
        found.observe(1, 5e6 * load)
    assert found.forward(4) == pytest.approx(1 + 2 * 0.8, rel=0.05)
    assert 1 + 1.3 * 2.0 < found.forward(8) < 1 + 2 * 2.0, "a width that is like it rises, too"
    assert found.forward(1) == 1


def test_a_wide_forward_never_comes_to_cost_nothing() -> None:
    found = costs()
    for _ in range(2000):
        found.observe(4, 5e6)
        found.observe(1, 5e6)
    assert [found.forward(width) for width in (1, 2, 4)] == pytest.approx([1, 1.02, 1.06])
    for _ in range(60):
        found.observe(4, 1.8 * 5e6)
        found.observe(1, 5e6)
    assert found.forward(4) == pytest.approx(1.8, rel=0.01)


def test_an_outlier_moves_little() -> None:
    found = costs()
    for _ in range(50):
        found.observe(1, 5e6)
        found.observe(4, 1.8 * 5e6)
    found.observe(1, 5e6)
    found.observe(8, 5e9)
    assert 3.0 <= found.forward(8) <= 1 + 2.0 * 1.21


def test_a_drafters_cost_is_learnt() -> None:
    found = costs(guess=0.1)
    for _ in range(60):
        found.observe_draft(Source("model", behind=3), 4, 4 * 0.3 * 5e6, 2.1 * 5e6)
        found.observe_draft(Source("new", behind=1), 2, 2 * 0.2 * 5e6, 1.5 * 5e6)
    assert found.drafter("model").guess == pytest.approx(0.3, rel=0.05)
    assert found.drafter("new").guess == pytest.approx(0.2, rel=0.05)
    for _ in range(60):
        found.observe_draft(Source("model", behind=101), 1, (0.3 + 101 * 0.05) * 5e6, 1.25 * 5e6)
    assert found.drafter("model").catch_up == pytest.approx(0.05, rel=0.05)
