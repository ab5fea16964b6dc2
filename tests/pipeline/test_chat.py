"""A conversation: what is said in it does not depend on how its rounds fall."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.run import Conversation
from edgepipe.pipeline.session import CacheOptions, DecodeOptions, Session
from edgepipe.runtimes.llm.sampling import SamplingParams

CACHES = {
    "full": CacheOptions(),
    "window": CacheOptions("window", "40"),
    "h2o": CacheOptions("h2o", "33"),
    "summed": CacheOptions("h2o", "33", normalise=False),
}
PROMPTS = ["a", "Hello", "The quick brown fox jumps over the lazy dog.", "def add(a, b):\n    return a + b", "東京 x"]


@pytest.fixture(scope="module")
def bundle(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A target, and itself as a draft, whose guesses are seldom wrong."""
    pytest.importorskip("onnx")
    from edgepipe.exporters.llm.recipe import DecoderRecipe
    from edgepipe.pipeline.export import export
    from edgepipe.pipeline.recipe import Recipe

    recipe = DecoderRecipe(source=str(tiny_model("llama")), precision="fp32")
    return export(Recipe(target=recipe, draft=recipe, validate=False), tmp_path_factory.mktemp("chat") / "bundle")


def answers(
    session: Session, turns: list[str], stops: list[str], stop_tokens: list[str], raw: bool
) -> list[tuple[str, str, list[int]]]:
    """Text, end and tokens of each."""
    conversation = Conversation(session, 30, stops, stop_tokens, raw=raw)
    found = []
    for turn in turns:
        text = "".join(conversation.say(turn))
        found.append((text, conversation.generation.finish_reason, conversation.generation.tokens))
    return found


@pytest.mark.parametrize(
    ("cache", "drafter"), [("full", "sparse"), *itertools.product(CACHES, ["lookup", "model", "lookup,model"])]
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    turns=st.lists(st.sampled_from(PROMPTS), min_size=2, max_size=3),
    stops=st.lists(st.sampled_from("aehnqtP "), max_size=4, unique=True),
    stop_tokens=st.lists(st.integers(40, 90).map(str), max_size=20, unique=True),
    raw=st.booleans(),
    chunk=st.sampled_from([4, 16]),
    gamma=st.sampled_from(["auto", 3, 8]),
    sampling=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.3, 0.8]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        seed=st.integers(0, 20),
    ),
)
def test_every_answer_is_that_of_plain_decoding(
    bundle: Bundle,
    cache: str,
    drafter: str,
    turns: list[str],
    stops: list[str],
    stop_tokens: list[str],
    raw: bool,
    chunk: int,
    gamma: str | int,
    sampling: SamplingParams,
) -> None:
    """Also after answers that a stop ended in the middle of a round."""
    options = DecodeOptions(chunk=chunk, drafter=drafter, gamma=gamma, cache=CACHES[cache], sampling=sampling)
    plain = DecodeOptions(chunk=chunk, drafter="none", gamma=gamma, cache=CACHES[cache], sampling=sampling)
    expected = answers(Session(bundle, plain), turns, stops, stop_tokens, raw)
    assert answers(Session(bundle, options), turns, stops, stop_tokens, raw) == expected
