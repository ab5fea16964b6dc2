"""``--drafter sparse`` through the session: conversations, sampling, memory, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgepipe.errors import RecipeError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.decode_options import CacheOptions, DecodeOptions
from edgepipe.pipeline.run import Conversation
from edgepipe.pipeline.session import Session
from edgepipe.runtimes.llm.sampling import SamplingParams

WINDOW = CacheOptions("window", "24")
TURNS = ["The quick brown fox jumps over the lazy dog. Why?", "And then?", "Say the first thing again."]


def talk(bundle: Path, options: DecodeOptions, turns: list[str], *, forget: bool = False) -> list[list[int]]:
    """The answers' tokens; with ``forget`` the middle turn is taken back before the last is said."""
    conversation = Conversation(Session(Bundle.open(bundle), options), 30)
    answers = []
    for number, turn in enumerate(turns):
        if forget and number == len(turns) - 1:
            del conversation._messages[-2:]
        list(conversation.say(turn))
        answers.append(conversation.generation.tokens)
    return answers


@pytest.mark.parametrize("drafter", ["sparse", "lookup,sparse"])
@pytest.mark.parametrize("gamma", [4, "auto"])
@pytest.mark.parametrize("forget", [False, True])
def test_a_conversation_is_what_it_is_without(tiny_bundle: Path, drafter: str, gamma: int, forget: bool) -> None:
    options = DecodeOptions(drafter=drafter, gamma=gamma, draft_cache=CacheOptions("window", "32"), chunk=16)
    expected = talk(tiny_bundle, DecodeOptions(chunk=16), TURNS, forget=forget)
    assert talk(tiny_bundle, options, TURNS, forget=forget) == expected


@pytest.mark.parametrize("drafter", ["sparse", "model", "lookup,model"])
@pytest.mark.parametrize("gamma", [1, 4, "auto"])
def test_a_seed_gives_the_text_of_plain_decoding(tiny_bundle: Path, drafter: str, gamma: int) -> None:
    """Whatever guesses cost when they were measured, and however many are made."""
    sampling = SamplingParams(0.8, seed=11)
    options = DecodeOptions(drafter=drafter, gamma=gamma, chunk=16, sampling=sampling)
    assert talk(tiny_bundle, options, TURNS) == talk(tiny_bundle, DecodeOptions(chunk=16, sampling=sampling), TURNS)


def test_keys_and_values_are_those_of_the_text_and_of_the_window(tiny_bundle: Path) -> None:
    session = Session(Bundle.open(tiny_bundle), DecodeOptions(drafter="sparse", gamma=4, draft_cache=WINDOW))
    plain = Session(Bundle.open(tiny_bundle), DecodeOptions(gamma=4))
    more = session.decoder(200).kv_bytes - plain.decoder(200).kv_bytes
    assert more == (24 + 4) * session.spec.kv_bytes_per_token


def test_the_window_is_never_larger_than_the_text(tiny_bundle: Path) -> None:
    session = Session(Bundle.open(tiny_bundle), DecodeOptions(drafter="sparse", gamma=4))
    decoder = session.decoder(60)
    assert (
        decoder.kv_bytes == (60 + 5 + 60 + 4) * session.spec.kv_bytes_per_token
    )  # a round has 5 tokens, 4 of them guesses


@pytest.mark.parametrize(
    ("cache", "draft_cache", "reason"),
    [
        (CacheOptions("h2o", "64"), None, "the policy is h2o: leave out --policy"),
        (CacheOptions("window", "64"), None, "the policy is window: leave out --policy"),
        (CacheOptions(), CacheOptions("h2o", "64"), "the draft's policy is h2o: leave out --draft-policy"),
        (CacheOptions(), CacheOptions(), "the draft's policy is full"),
    ],
)
def test_what_does_not_go_together_is_refused(cache: CacheOptions, draft_cache: CacheOptions, reason: str) -> None:
    with pytest.raises(RecipeError, match=reason):
        DecodeOptions(drafter="lookup,sparse", cache=cache, draft_cache=draft_cache)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"gamma": 8, "draft_cache": CacheOptions("window", "10")}, "is 10 tokens: at gamma 8 give .* 18 or more"),
        ({"gamma": 600}, "is 512 tokens: at gamma 600 give --draft-policy window --draft-budget 1202 or more"),
        (
            {"drafter": "model", "gamma": 8, "draft_cache": CacheOptions("h2o", "10")},
            "is 10 tokens: at gamma 8 give --draft-policy h2o --draft-budget 18 or more",
        ),
        (
            {"drafter": "model", "gamma": 8, "cache": CacheOptions("window", "10")},
            "is 10 tokens: at gamma 8 give --budget 18 or more",
        ),
    ],
)
def test_too_small_a_budget_is_refused(tiny_bundle: Path, options: dict[str, Any], reason: str) -> None:
    session = Session(Bundle.open(tiny_bundle), DecodeOptions(**{"drafter": "sparse", **options}))
    with pytest.raises(RecipeError, match=f"the budget {reason}"):
        session.decoder(100)


def test_gamma_stays_within_the_window(tiny_bundle: Path) -> None:
    session = Session(
        Bundle.open(tiny_bundle), DecodeOptions(drafter="sparse", draft_cache=CacheOptions("window", "10"))
    )
    assert session.most_guesses(100) == session.decoder(100).gamma.most == 4
