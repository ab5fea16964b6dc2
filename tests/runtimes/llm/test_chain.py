"""Drafters that break their contract in every way there is: the text stays what it would be, and decoding goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from edgepipe.errors import EdgepipeWarning
from edgepipe.runtimes.llm.drafters.chain import Chain, Source
from edgepipe.runtimes.llm.drafters.drafter import Draft, Drafter
from edgepipe.runtimes.llm.drafters.lookup import Lookup
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder

VOCABULARY = 305  # of the tiny models


def broken(what: str) -> Any:
    raise ZeroDivisionError(what)


def rows(*rows: Any) -> list[np.ndarray]:
    return [np.asarray(row, np.float64) for row in rows]


def flat(size: int, token: int, value: float) -> np.ndarray:
    row = np.full(size, 1 / size)
    row[token] = value
    return row


# What a draft for three tokens may be, and what the warning says of it.
BAD_DRAFTS: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (lambda: broken("no\nreason"), "raised ZeroDivisionError: no reason"),
    "nothing": (lambda: None, "raised AttributeError"),
    "negative": (lambda: Draft([1, -1]), "token -1"),
    "beyond": (lambda: Draft([VOCABULARY]), f"token {VOCABULARY}"),
    "huge": (lambda: Draft([2**70]), "the target has"),
    "fraction": (lambda: Draft([1.5]), "raised TypeError"),  # type: ignore[list-item]
    "text": (lambda: Draft(["a"]), "raised TypeError"),  # type: ignore[list-item]
    "too many": (lambda: Draft([1, 2, 3, 4]), "4 tokens, asked for 3"),
    "endless": (lambda: Draft([1] * 10**6), "asked for 3"),
    "too few rows": (lambda: Draft([1, 2], rows(np.ones(4) / 4)), "1 distributions for 2 tokens"),
    "no rows": (lambda: Draft([1], []), "0 distributions for 1 tokens"),
    "wide row": (lambda: Draft([1], rows(np.ones(999) / 999)), "shape [999]"),
    "narrow row": (lambda: Draft([9], rows(np.ones(9) / 9)), "shape [9]"),
    "square row": (lambda: Draft([1], rows(np.ones((2, 2)))), "shape [2, 2]"),
    "negative row": (lambda: Draft([1], rows([-1, 2])), "no distribution"),
    "row of NaN": (lambda: Draft([1], rows(np.full(4, np.nan))), "no distribution"),
    "infinite row": (lambda: Draft([1], rows([0, np.inf])), "no distribution"),
    "row that does not sum to one": (lambda: Draft([1], rows(flat(8, 1, 0.9))), "no distribution"),
    "row without the token": (lambda: Draft([1], rows([1, 0, 0])), "no distribution"),
    "logits for rows": (lambda: Draft([1], rows(np.linspace(-3, 9, 300))), "no distribution"),
}


class Bad(Drafter):
    """Behaves for some calls, then does what it must not."""

    name: ClassVar[str] = "bad"

    def __init__(self, draft: Callable[[], Any], good: int = 2) -> None:
        self.draft, self.good = draft, good

    def propose(self, text: Sequence[int], count: int) -> Draft:
        self.good -= 1
        return Draft([1] * count) if self.good >= 0 else self.draft()

    def reset(self) -> None:
        pass


def decode(target: Any, drafters: Sequence[Drafter], sampler: Sampler) -> SpeculativeDecoder:
    return run(SpeculativeDecoder(target, sampler, drafters, gamma=3), [5, 6, 7, 5, 6, 7, 5])


def run(decoder: SpeculativeDecoder, *prompts: list[int]) -> SpeculativeDecoder:
    """40 tokens after each prompt."""
    for prompt in prompts:
        decoder.start(prompt)
        while (left := len(prompt) + 40 - len(decoder.text)) > 0:
            decoder.step(left)
    return decoder


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("bad", BAD_DRAFTS)
def test_a_bad_draft_drops_the_drafter_and_nothing_else(
    cached: Callable[..., Any], bad: str, temperature: float
) -> None:
    """Guesses that were not drawn leave even sampled text as plain decoding has it, so that a trace would show."""
    draft, said = BAD_DRAFTS[bad]
    params = SamplingParams(temperature, seed=3)
    expected = decode(cached("llama"), (), Sampler(params)).text
    with pytest.warns(EdgepipeWarning) as caught:
        decoder = decode(cached("llama"), [Bad(draft)], Sampler(params))
    assert decoder.text == expected
    assert decoder.chain.names == []
    (warning,) = caught
    message = str(warning.message)
    assert message.startswith("drafter bad ")
    assert said in message
    assert "dropped" in message
    assert "\n" not in message


def test_the_others_go_on(cached: Callable[..., Any]) -> None:
    expected = decode(cached("llama"), (), Sampler(SamplingParams())).text
    with pytest.warns(EdgepipeWarning, match="drafter bad raised"):
        decoder = decode(cached("llama"), [Bad(lambda: broken("")), Lookup(shortest=1)], Sampler(SamplingParams()))
    assert decoder.text == expected
    assert decoder.chain.names == ["lookup"]


@pytest.mark.parametrize("method", ["evidence", "reset"])
def test_every_method_is_guarded(cached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(Bad, method, lambda *arguments: broken("there"))
    decoder = SpeculativeDecoder(cached("llama"), Sampler(SamplingParams()), Bad(lambda: Draft([])), gamma=3)
    with pytest.warns(EdgepipeWarning, match="ZeroDivisionError: there"):
        run(decoder, [1, 2, 3], [4, 5])
    assert not decoder.chain


def test_one_that_stalls_twice_in_a_row_is_dropped_when_it_comes_back() -> None:
    taken = [900, 1100, 900, 1100, 1100]
    times = iter([time for taken_ns in taken for time in (0, taken_ns)])
    chain = Chain([Bad(lambda: Draft([]), good=9)], VOCABULARY, clock=lambda: next(times))
    for _ in taken[:-1]:
        assert chain.propose(Source("bad"), [1], 2, limit_ns=1000).tokens == [1, 1]
    with pytest.warns(EdgepipeWarning, match="took 0 ms, more than 0 ms, twice in a row"):
        assert chain.propose(Source("bad"), [1], 2, limit_ns=1000).tokens == []
    assert chain.names == []


def test_a_loop_notices_one_that_stalls(cached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock jumps by an hour while the drafter is at work."""
    late = 0

    def stall() -> Draft:
        nonlocal late
        late += 3600 * 10**9
        return Draft([1])

    decoder = SpeculativeDecoder(cached("llama"), Sampler(SamplingParams()), Bad(stall), gamma=3)
    clock = decoder.chain._clock
    decoder.chain._clock = lambda: clock() + late
    expected = decode(cached("llama"), (), Sampler(SamplingParams())).text
    with pytest.warns(EdgepipeWarning, match=r"took 36\d{5} ms, more than"):
        run(decoder, [5, 6, 7, 5, 6, 7, 5])
    assert decoder.text == expected
    assert not decoder.chain


def test_one_with_much_to_read_is_given_time(cached: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a long chat was rewound: the target has its text in the cache, the drafter begins anew."""
    limits = {}
    decoder = SpeculativeDecoder(cached("llama"), Sampler(SamplingParams()), Bad(lambda: Draft([]), good=999), gamma=3)
    propose = decoder.chain.propose

    def spy(source: Source, text: Sequence[int], count: int, limit_ns: float) -> Draft:
        limits.setdefault(source.behind, limit_ns)
        return propose(source, text, count, limit_ns)

    monkeypatch.setattr(decoder.chain, "propose", spy)
    run(decoder, [5, 6, 7] * 9)
    decoder._prefill_ns, decoder._longest_ns = 0, 10**8
    decoder.chain.reset()
    decoder.step(4)
    behind = max(limits)
    assert behind >= 67, "all of the text"
    assert limits[behind] >= (behind + 3 * 10) * 10**8


def test_ctrl_c_is_no_fault_of_the_drafter() -> None:
    def interrupt() -> Draft:
        raise KeyboardInterrupt

    chain = Chain([Bad(interrupt, good=0)], VOCABULARY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyboardInterrupt):
            chain.propose(Source("bad"), [1], 2, limit_ns=1e9)
    assert chain.names == ["bad"]


def test_sources_come_in_order_with_what_they_have_not_read() -> None:
    chain = Chain([Lookup(), Bad(lambda: Draft([]), good=9)], VOCABULARY)
    text = [1, 2, 3, 4, 1, 2]
    assert [(source.name, source.evidence, source.behind) for source in chain.sources(text)] == [
        ("lookup", 2, 6),
        ("bad", 0, 6),
    ]
    chain.propose(chain.sources(text)[1], text, 1, limit_ns=1e9)
    assert [source.behind for source in chain.sources([*text, 9])] == [1], "nothing follows 2, 9"
    chain._drafters["bad"].reach = 4
    chain.reset()
    assert [source.behind for source in chain.sources([*text, 9])] == [4]


def test_tokens_of_any_integer_type_become_plain_ones() -> None:
    chain = Chain([Bad(lambda: Draft([np.int64(7)]), good=0)], VOCABULARY)
    (token,) = chain.propose(Source("bad"), [1], 2, limit_ns=1e9).tokens
    assert type(token) is int


def test_evidence_of_lookup_is_the_length_of_the_match() -> None:
    for shared in range(2, 30):
        text = [1000, *range(shared), 50, 60, 1001, *range(shared)]
        assert Lookup().evidence(text) == min(shared, 16)
    assert Lookup().evidence([1, 2, 3, 4, 3]) is None
    assert Lookup().evidence([]) is None
    assert Lookup().evidence([1, 2, 1, 2, 1, 2]) == 4, "as far as there is text before the match"
