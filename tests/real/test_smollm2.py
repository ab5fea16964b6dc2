"""SmolLM2-135M as a user gets it: what holds for tiny random models holds for a real one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.exporters.llm.recipe import Thresholds
from edgepipe.exporters.llm.validate import validate
from edgepipe.exporters.sources import open_source
from edgepipe.pipeline.prompt_text import TEXT
from edgepipe.pipeline.run import Conversation
from edgepipe.pipeline.session import CacheOptions, DecodeOptions, Session
from edgepipe.runtimes.llm.drafters.drafter import Drafter
from edgepipe.runtimes.llm.drafters.lookup import Lookup
from edgepipe.runtimes.llm.drafters.model import ModelDrafter
from edgepipe.runtimes.llm.engines.onnx import OnnxDecoder
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder

pytestmark = pytest.mark.slow

GREEDY = Sampler(SamplingParams())
NEW_TOKENS = 120
PROMPTS = {
    "prose": "Once upon a time, in a village between two rivers, there lived a clockmaker who",
    "code": 'class Stack:\n    """A last-in, first-out container."""\n\n    def __init__(self):\n',
    "copy": f"{TEXT[:700]}\n\nThe same text once more, word for word:\n\n{TEXT[:60]}",
}
ANSWERS = {
    "List the days of the week.": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "List the months of the year.": ("January", "February", "May", "August", "October", "December"),
    "What is the chemical symbol for water?": ("H2O",),
    "What is the opposite of hot?": ("cold",),
    "What is the capital city of Japan?": ("Tokyo",),
}

Choices = Callable[[Sequence[int]], list[int]]


@pytest.fixture(scope="module")
def make_drafter(quantised: dict[str, Session]) -> Callable[[str, int], Drafter]:
    """``make_drafter(kind, total_tokens)``; the model is the draft of the quantised bundle."""

    def make(kind: str, total: int) -> Drafter:
        if kind == "lookup":
            return Lookup()
        session = quantised["model"]
        return ModelDrafter(session.cached("draft", CacheOptions(), total), GREEDY, session.spec.vocab_size)

    return make


@pytest.fixture(scope="module")
def greedy_text(fp32: Session, transformers_choices: Choices) -> Callable[[str], tuple[list[int], list[int]]]:
    """``greedy_text(prompt)`` → its tokens, and the same with what follows them in plain decoding."""
    done: dict[str, tuple[list[int], list[int]]] = {}

    def decode(name: str) -> tuple[list[int], list[int]]:
        if name not in done:
            prompt = fp32.tokenizer.encode(PROMPTS[name])
            decoder = SpeculativeDecoder(fp32.cached("target", CacheOptions(), len(prompt) + NEW_TOKENS), GREEDY)
            decoder.start(prompt)
            while len(decoder.text) < len(prompt) + NEW_TOKENS:
                decoder.step(1)
            assert decoder.text[len(prompt) :] == transformers_choices(decoder.text)[len(prompt) - 1 : -1]
            done[name] = prompt, decoder.text
        return done[name]

    return decode


@pytest.mark.parametrize(("kind", "gamma"), [("lookup", 1), ("lookup", 4), ("lookup", 8), ("model", 1), ("model", 4)])
@pytest.mark.parametrize("name", PROMPTS)
def test_greedy_speculative_text_is_greedy_plain_text(
    fp32: Session,
    greedy_text: Callable[[str], tuple[list[int], list[int]]],
    make_drafter: Callable[[str, int], Drafter],
    name: str,
    kind: str,
    gamma: int,
) -> None:
    prompt, expected = greedy_text(name)
    target = fp32.cached("target", CacheOptions(), len(expected))
    decoder = SpeculativeDecoder(target, GREEDY, make_drafter(kind, len(expected)), gamma)
    rounds = [decoder.start(prompt)]
    while (left := len(expected) - len(decoder.text)) > 0:
        rounds.append(decoder.step(left))
    assert decoder.text == expected
    drafted, accepted = sum(entry.drafted for entry in rounds), sum(entry.accepted for entry in rounds)
    assert 0 < accepted < drafted or name == "copy"
    if name == "copy":
        assert accepted > drafted / 2


@pytest.mark.parametrize("kind", ["lookup", "model"])
def test_rejected_guesses_leave_no_trace_under_h2o(
    fp32: Session, make_drafter: Callable[[str, int], Drafter], kind: str
) -> None:
    """Against a loop that feeds, round by round, only the tokens that became text, and evicts at the same points."""
    prompt = fp32.tokenizer.encode(TEXT)
    total = len(prompt) + NEW_TOKENS
    options = CacheOptions("h2o", "192")
    decoder = SpeculativeDecoder(fp32.cached("target", options, total), GREEDY, make_drafter(kind, total), 4)
    reference = fp32.cached("target", options, total)
    decoder.start(prompt)
    assert decoder.text[-1] == reference.prefill(prompt).argmax()
    rejected = 0
    while len(decoder.text) < total:
        pending = decoder.text[-1]
        entry = decoder.step(total - len(decoder.text))
        rejected += entry.drafted - entry.accepted
        logits = reference.extend([pending, *entry.tokens[:-1]])
        assert logits.argmax(axis=1).tolist() == entry.tokens
        reference.commit(len(entry.tokens))
        ours, theirs = by_position(decoder.target.cache), by_position(reference.cache)
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-3, atol=1e-4)
    assert rejected > 0
    assert decoder.target.cache.evicted


def by_position(cache: Any) -> tuple[np.ndarray, np.ndarray]:
    """Positions that are alive, ascending, and their mass: ``[num_layers, num_kv_heads, length]`` each."""
    positions = cache.positions[:, :, : cache.length]
    order = positions.argsort(axis=2)
    return np.take_along_axis(positions, order, 2), np.take_along_axis(cache.mass, order, 2)


def test_quantised_blocks_of_the_source_stay_close_to_it(smollm2_bundle: Path) -> None:
    """The blocks are the source's own: only the activations of the products are rounded, to 8 bits."""
    limits = Thresholds(min_top1_agreement=0.9, max_mean_kl=0.01, max_perplexity_ratio=1.01)
    files = {"onnx": {"plain": "onnx/model.onnx", "scored": "onnx/model.scored.onnx"}}
    validate(open_source("smollm2-135m"), smollm2_bundle / "target", files, limits)


@pytest.mark.parametrize("question", ANSWERS)
def test_the_quantised_model_answers_as_the_real_one(
    quantised: dict[str, Session], fp32: Session, transformers_choices: Choices, question: str
) -> None:
    words = ANSWERS[question]
    assert fp32.template is not None
    rendered = fp32.template.render([{"role": "user", "content": question}])
    prompt = fp32.tokenizer.encode(rendered, add_special_tokens=False)
    conversation = Conversation(fp32, 48, turns=1)
    answer = "".join(conversation.say(question))
    tokens = conversation.generation.tokens
    assert tokens == transformers_choices([*prompt, *tokens])[len(prompt) - 1 : -1]
    assert [word for word in words if word not in answer] == []
    for drafter, session in quantised.items():
        answer = "".join(Conversation(session, 64, turns=1).say(question))
        assert [word for word in words if word not in answer] == [], drafter


def edgepipe(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "edgepipe", *arguments], capture_output=True, text=True)


def test_the_verb_verifies_and_answers(smollm2_bundle: Path, smollm2_fp32_bundle: Path) -> None:
    for bundle, components in ((smollm2_bundle, "target and draft"), (smollm2_fp32_bundle, "target")):
        done = edgepipe("run", str(bundle), "--verify")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"verified {components} with onnx: ")
    done = edgepipe("run", str(smollm2_bundle), "List the days of the week.", "-n", "64")
    assert done.returncode == 0, done.stderr
    assert "Wednesday" in done.stdout


@pytest.mark.parametrize("cache", [CacheOptions(), CacheOptions("h2o", "48")], ids=["full", "h2o"])
def test_a_second_turn_feeds_only_what_is_new(
    fp32: Session, cache: CacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(fp32.bundle, DecodeOptions(cache=cache, chunk=32))
    fed: list[int] = []
    forward = OnnxDecoder.forward

    def counting(decoder: OnnxDecoder, cache: Any, tokens: Sequence[int], **options: Any) -> np.ndarray:
        fed.extend(tokens)
        return forward(decoder, cache, tokens, **options)

    monkeypatch.setattr(OnnxDecoder, "forward", counting)
    conversation = Conversation(session, 40)
    assert "Tokyo" in "".join(conversation.say("What is the capital city of Japan?"))
    earlier = conversation.generation
    assert earlier.finish_reason == "stop_token"
    history = list(fed)
    assert len(history) == earlier.prompt_tokens + len(earlier.tokens) - 1

    fed.clear()
    list(conversation.say("List the days of the week."))
    later = conversation.generation
    new = session.tokenizer.encode(
        "<|im_end|>\n<|im_start|>user\nList the days of the week.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert fed == [*new, *later.tokens[:-1]]
    assert later.prompt_tokens == len(history) + len(new)
    if cache.policy == "full":
        fresh = session.decoder(500)
        fresh.start([*history, *new])
        while len(fresh.text) < later.prompt_tokens + len(later.tokens):
            fresh.step(1)
        assert fresh.text[later.prompt_tokens :] == later.tokens
