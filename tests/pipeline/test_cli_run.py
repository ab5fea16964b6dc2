"""`edgepipe run` as a user meets it: prompts from everywhere, chats, limits, mistakes, Ctrl-C."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepipe.errors import BundleError, ContextError, EngineError, RecipeError, ValidationFailed
from edgepipe.pipeline import cli
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.run import Conversation, run
from edgepipe.pipeline.session import CacheOptions, DecodeOptions, Session
from edgepipe.pipeline.verify import verify_reference
from edgepipe.runtimes.llm.drafters.lookup import Lookup
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder

PROMPT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on."


@pytest.fixture
def edgepipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `edgepipe run`; gives exit code, stdout and stderr."""

    def call(*arguments: str | Path, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        with pytest.raises(SystemExit) as caught:
            cli.main(["run", *map(str, arguments)])
        assert isinstance(caught.value.code, int)
        return caught.value.code, *capsys.readouterr()

    return call


def greedy(tiny_model: Callable[..., Path], bundle: Path, prompt: str, count: int) -> tuple[int, list[int], str]:
    """The answer of transformers to a raw prompt: the prompt's length, the answer's tokens, and their text."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    tokenizer = Tokenizer.from_file(str(bundle / "target" / "tokenizer.json"))
    ids = tokenizer.encode(prompt).ids
    length = len(ids)
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama")).eval()
    for _ in range(count):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == model.config.eos_token_id:
            break
    return length, ids[length:], tokenizer.decode(ids[length:])


@pytest.mark.parametrize("gamma", ["4", "auto"])
@pytest.mark.parametrize("drafter", ["none", "lookup", "model", "lookup,model", "auto"])
def test_answers_as_transformers_does(
    edgepipe: Any, tiny_bundle: Path, tiny_model: Callable[..., Path], drafter: str, gamma: str
) -> None:
    length, tokens, text = greedy(tiny_model, tiny_bundle, PROMPT, 30)
    flags = ("--raw", "-n", 30, "--drafter", drafter, "--gamma", gamma, "--json")
    code, out, _ = edgepipe(tiny_bundle, PROMPT, *flags)
    answer = json.loads(out)
    assert code == 0
    assert answer["tokens"] == tokens
    assert answer["text"] == text
    assert (answer["finish_reason"], answer["prompt_tokens"]) == ("length", length)
    assert sum(answer["time_split"].values()) == pytest.approx(1)
    guessed = answer["speculation"]
    assert sum(guessed["gamma_histogram"].values()) + sum(g["accepted"] for g in guessed["by_position"]) == 29
    if drafter != "lookup" and gamma != "auto":  # which may have found nothing to copy, or not worth it
        assert (answer["acceptance_rate"] is None) == (drafter == "none")


def test_streams_to_stdout_and_figures_to_stderr(
    edgepipe: Any, tiny_bundle: Path, tiny_model: Callable[..., Path]
) -> None:
    code, out, err = edgepipe(tiny_bundle, PROMPT, "--raw", "-n", 12, "--gamma", 4)
    assert code == 0
    assert out == greedy(tiny_model, tiny_bundle, PROMPT, 12)[2] + "\n"
    assert err.startswith("12 tokens (length) · first after ")
    assert all(figure in err for figure in ("tokens/s", "tokens per round", "acceptance", "KV "))
    assert len(err.splitlines()) == 1


def test_the_prompt_may_come_from_stdin_or_a_file(edgepipe: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT, encoding="utf-8")
    expected = edgepipe(tiny_bundle, PROMPT, "-n", 8)[1]
    assert edgepipe(tiny_bundle, "-n", 8, stdin=PROMPT)[1] == expected
    assert edgepipe(tiny_bundle, "-n", 8, "--file", file)[1] == expected
    assert edgepipe(tiny_bundle, "-n", 8, "--file", "-", stdin=PROMPT)[1] == expected


def test_a_chat_feeds_only_what_is_new(edgepipe: Any, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[tuple[int, int]] = []
    start = SpeculativeDecoder.start

    def spy(self: SpeculativeDecoder, text: list[int]) -> Any:
        kept = self.target.cache.next_position
        entry = start(self, text)
        starts.append((kept, len(text)))
        return entry

    monkeypatch.setattr(SpeculativeDecoder, "start", spy)
    code, _, err = edgepipe(tiny_bundle, "--chat", "-n", 40, "--drafter", "lookup", stdin="Hello\n\n  \nAgain\n")
    assert code == 0
    assert len(err.splitlines()) == 2, "one line of figures for each prompt that is not blank"
    (_, first), (kept, second) = starts
    assert kept == first + 40 - 1
    assert second > first + 40


@pytest.mark.parametrize("drafter", ["none", "lookup", "model"])
def test_a_stop_string_and_a_stop_token_end_the_answer(edgepipe: Any, tiny_bundle: Path, drafter: str) -> None:
    flags = (tiny_bundle, PROMPT, "--raw", "-n", 40, "--drafter", drafter, "--json")
    whole = json.loads(edgepipe(*flags)[1])
    stop = whole["text"][10:13]
    answer = json.loads(edgepipe(*flags, "--stop", stop)[1])
    assert answer["text"] == whole["text"][: whole["text"].index(stop)]
    assert answer["finish_reason"] == "stop_string"
    token = whole["tokens"][20]
    answer = json.loads(edgepipe(*flags, "--stop-token", token)[1])
    assert answer["tokens"] == whole["tokens"][: whole["tokens"].index(token) + 1]
    assert answer["finish_reason"] == "stop_token"


def test_the_same_seed_draws_the_same_text(edgepipe: Any, tiny_bundle: Path) -> None:
    flags = (tiny_bundle, PROMPT, "--temperature", 1.5, "--top-k", 40, "-n", 30, "--json")
    one, same, other = (json.loads(edgepipe(*flags, "--seed", seed)[1])["tokens"] for seed in (1, 1, 2))
    assert one == same != other


def test_a_text_beyond_the_context_needs_a_policy(edgepipe: Any, tiny_bundle: Path) -> None:
    long = "dog " * 600
    code, out, err = edgepipe(tiny_bundle, long, "--raw")
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert all(hint in err for hint in ("context of 512", "--policy h2o or window"))
    for policy in ("h2o", "window"):
        code, _, err = edgepipe(tiny_bundle, long, "--raw", "--policy", policy, "--budget", 64, "--draft-policy",
                                "window", "--draft-budget", 64, "-n", 9)  # fmt: skip
        assert code == 0, err


@pytest.mark.parametrize("budget", ["999GiB", "1000000000", "200%", "999999999999%"])
@pytest.mark.parametrize("policy", ["h2o", "window"])
def test_a_budget_that_the_text_cannot_fill_is_the_full_cache(
    edgepipe: Any, tiny_bundle: Path, policy: str, budget: str
) -> None:
    flags = (tiny_bundle, PROMPT, "-n", 20, "--json")
    full = json.loads(edgepipe(*flags)[1])
    assert json.loads(edgepipe(*flags, "--policy", policy, "--budget", budget)[1])["tokens"] == full["tokens"]


@pytest.mark.parametrize("policy", ["h2o", "window"])
@pytest.mark.parametrize("drafter", ["lookup", "model"])
def test_under_a_budget_no_cache_grows_with_the_text(
    edgepipe: Any, tiny_bundle: Path, policy: str, drafter: str
) -> None:
    flags = ("--raw", "--policy", policy, "--budget", 64, "--drafter", drafter, "-n", 20, "--json")
    short, long = (json.loads(edgepipe(tiny_bundle, "dog " * count, *flags)[1]) for count in (400, 4000))
    assert long["prompt_tokens"] > 8 * short["prompt_tokens"]
    assert long["kv_bytes"] == short["kv_bytes"]


def test_a_chat_under_a_budget_outgrows_the_context(edgepipe: Any, tiny_bundle: Path) -> None:
    turns = "".join(f"turn {number} of the dog\n" for number in range(40))
    code, _, err = edgepipe(tiny_bundle, "--chat", "--policy", "h2o", "--budget", 64, "-n", 8, stdin=turns)
    assert code == 0
    assert len(err.splitlines()) == 40


def test_the_caches_of_a_chat_grow_with_it(edgepipe: Any, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [f"turn {number} of the dog" for number in range(6)]
    _, _, err = edgepipe(tiny_bundle, "--chat", "-n", 8, "--drafter", "none", stdin="\n".join(turns))
    held = [float(line.rpartition("KV ")[2].partition(" ")[0]) for line in err.splitlines()]
    assert len(held) == 6
    assert held == sorted(held)
    assert held[0] < held[-1] <= 512 * 2 * 512 / 2**20, "at most the context and a chunk of it"

    session = opened(tiny_bundle)
    growing, roomy = Conversation(session, 8), Conversation(session, 8)
    roomy._decoder = session.decoder(512)
    for turn in turns:
        assert "".join(growing.say(turn)) == "".join(roomy.say(turn))
    assert growing._decoder is not None
    assert growing._decoder.text == roomy._decoder.text


def test_an_error_after_some_text_stands_on_a_line_of_its_own(
    edgepipe: Any, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: SpeculativeDecoder, limit: int, kept: Any) -> Any:
        raise EngineError("onnxruntime failed")

    monkeypatch.setattr(SpeculativeDecoder, "step", broken)
    code, out, err = edgepipe(tiny_bundle, PROMPT, "--raw", "--drafter", "lookup")
    assert (code, err) == (1, "error: onnxruntime failed\n")
    assert out.endswith("\n")


def test_a_drafter_that_fails_is_one_line_and_the_answer_comes(
    edgepipe: Any, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = edgepipe(tiny_bundle, PROMPT, "--raw", "-n", 12, "--drafter", "none")[1]

    def broken(self: Lookup, text: list[int]) -> int:
        raise ValueError("two\nlines")

    monkeypatch.setattr(Lookup, "evidence", broken)
    code, out, err = edgepipe(tiny_bundle, PROMPT, "--raw", "-n", 12, "--drafter", "lookup")
    assert (code, out) == (0, expected)
    warning, figures = err.splitlines()
    assert warning.startswith("warning: drafter lookup raised ValueError: two lines: it is dropped")
    assert figures.startswith("12 tokens")


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_closed_stream_is_an_empty_one(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, name, None)
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", str(tiny_bundle), *([] if name == "stdin" else ["x"]), "-n", "2"])
    assert caught.value.code == (1 if name == "stdin" else 0)


@pytest.mark.parametrize("token", [-1, 304, 10**9])
def test_a_token_that_the_model_does_not_have_is_refused(tiny_bundle: Path, token: int) -> None:
    decoder = opened(tiny_bundle).decoder(20)
    with pytest.raises(EngineError, match="beyond the model's"):
        decoder.start([1, token])


def test_the_answer_ends_with_the_context(edgepipe: Any, tiny_bundle: Path) -> None:
    answer = json.loads(edgepipe(tiny_bundle, "dog " * 200, "--raw", "-n", 10_000, "--json")[1])
    assert answer["prompt_tokens"] + len(answer["tokens"]) == 512
    assert answer["finish_reason"] == "context"
    assert "tokens (the model's context is full)" in edgepipe(tiny_bundle, "dog " * 200, "--raw", "-n", 10_000)[2]


def test_an_answer_of_the_length_that_just_fits_ends_by_its_length(edgepipe: Any, tiny_bundle: Path) -> None:
    prompt = json.loads(edgepipe(tiny_bundle, "dog " * 200, "--raw", "-n", 1, "--json")[1])["prompt_tokens"]
    for more, reason in ((0, "length"), (1, "context")):
        answer = json.loads(edgepipe(tiny_bundle, "dog " * 200, "--raw", "-n", 512 - prompt + more, "--json")[1])
        assert (answer["finish_reason"], len(answer["tokens"])) == (reason, 512 - prompt)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ([""], 1, "the prompt is empty"),
        (["", "--raw"], 1, "the prompt is empty"),
        (["x", "--policy", "h2o"], 1, "needs a budget"),
        (["x", "--budget", "64"], 1, "takes no budget"),
        (["x", "--budget", ""], 1, "takes no budget"),
        (["x", "--policy", "h2o", "--budget", "some"], 1, "expected tokens"),
        (["x", "--policy", "h2o", "--budget", "4", "--gamma", "4"], 1, "give --budget 10 or more"),
        (
            ["x", "--policy", "h2o", "--budget", "64", "--recent", "3", "--gamma", "4"],
            1,
            "expected 5, the tokens of a round",
        ),
        (["x", "--policy", "h2o", "--budget", "64", "--recent", "65"], 1, "to 64, the budget"),
        (["x", "--policy", "window", "--budget", "64", "--recent", "8"], 1, "recent belongs to policy h2o"),
        (["x", "--policy", "window", "--budget", "20", "--sinks", "100"], 1, "sinks is 100: expected at most 19"),
        (["x", "--policy", "h2o", "--budget", "5", "--drafter", "model", "--gamma", "1"], 1, "give --budget 6 or more"),
        (["x", "-n", "99999999999999", "--policy", "window", "--budget", "50%"], 1, "smaller --budget"),
        (["x", "--policy", "window", "--budget", "1"], 1, "give --budget 2 or more"),
        (["x", "--gamma", "1000000000"], 1, "gamma is 1000000000: expected 1 to 1024, or auto"),
        (["x", "--gamma", "many"], 2, "expected 1 or more, or auto"),
        (["x", "--drafter", "oracle"], 1, "drafter is 'oracle': expected one or more of lookup, model"),
        (["x", "--drafter", "lookup,lookup"], 1, "each once"),
        (["x", "--threads", "99999999999"], 1, "cores of this machine"),
        (["x", "--seed", "-1"], 1, "seed"),
        (["x", "--stop", ""], 1, "stop string"),
        (["x", "--stop-token", "\udcff"], 1, "no token"),
        (["x", "--stop-token", "99999"], 1, "no token"),
        (["x", "--draft-budget", "20"], 2, "--draft-policy"),
        (["x", "--verify"], 2, "--verify"),
        (["x", "--file", "-"], 2, "given twice"),
        (["x", "--temperature", "-1"], 1, "temperature"),
        (["x", "--stop-token", "<|nonsense|>"], 1, "no token"),
        (["x", "--policy", "lru"], 2, "--policy"),
        (["x", "--gamma", "0"], 2, "--gamma"),
        (["x", "--chat"], 2, "--chat"),
        (["--file", "/nonexistent/prompt"], 2, "No such file"),
    ],
)
def test_mistakes_are_one_line_with_what_to_type(
    edgepipe: Any, tiny_bundle: Path, flags: list[str], code: int, said: str
) -> None:
    found, out, err = edgepipe(tiny_bundle, *flags)
    assert (found, out) == (code, "")
    assert said in err
    if code == 1:
        assert len(err.splitlines()) == 1


def test_the_budget_that_the_drafts_window_asks_for_is_enough(edgepipe: Any, tiny_bundle: Path) -> None:
    flags = ["--policy", "h2o", "--drafter", "model", "--gamma", "1", "-n", "9"]
    assert edgepipe(tiny_bundle, "x", *flags, "--budget", "6")[0] == 0


def test_a_prompt_that_is_not_text(edgepipe: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.bin"
    file.write_bytes(b"caf\xe9")
    code, out, err = edgepipe(tiny_bundle, "--file", file)
    assert (code, out) == (1, "")
    assert "not UTF-8" in err


def test_no_bundle_there(edgepipe: Any, tmp_path: Path) -> None:
    code, out, err = edgepipe(tmp_path / "nothing", "x", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["error"]["type"] == "BundleError"


@pytest.mark.parametrize("drafter", ["none", "lookup", "model"])
def test_ctrl_c_keeps_what_was_generated(
    edgepipe: Any, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    whole = edgepipe(tiny_bundle, PROMPT, "--raw", "--drafter", drafter, "-n", 40)[1]
    steps = 0
    step = SpeculativeDecoder.step

    def interrupted(self: SpeculativeDecoder, limit: int, kept: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 5:
            raise KeyboardInterrupt
        return step(self, limit, kept)

    monkeypatch.setattr(SpeculativeDecoder, "step", interrupted)
    code, out, err = edgepipe(tiny_bundle, PROMPT, "--raw", "--drafter", drafter, "-n", 40)
    assert code == 130
    assert len(out) > 1
    assert whole.startswith(out.rstrip("\n"))
    assert "(interrupted)" in err
    assert len(err.splitlines()) == 1


def test_run_from_python(tiny_bundle: Path, edgepipe: Any) -> None:
    answer = run(tiny_bundle, PROMPT, max_new_tokens=10, raw=True)
    assert answer.text + "\n" == edgepipe(tiny_bundle, PROMPT, "--raw", "-n", 10)[1]
    with pytest.raises(ContextError):
        run(tiny_bundle, "", raw=True)


def test_one_stop_string_may_come_without_a_list(tiny_bundle: Path) -> None:
    whole = run(tiny_bundle, PROMPT, max_new_tokens=30, raw=True).text
    stop = whole[8:11]
    for given in (stop, [stop]):
        answer = run(tiny_bundle, PROMPT, max_new_tokens=30, raw=True, stop=given)
        assert answer.text == whole[: whole.index(stop)]
    for empty in ("", [""], ["x", ""]):
        with pytest.raises(RecipeError, match="stop string is empty"):
            run(tiny_bundle, PROMPT, stop=empty)


@pytest.mark.parametrize("message", ["", "\n", "first\nsecond"])
def test_whatever_the_engine_raises_is_one_line(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    decoder = opened(tiny_bundle).decoder(20)

    class Broken:
        def run_with_iobinding(self, binding: Any) -> None:
            raise RuntimeError(message)

    decoder.start([1])
    monkeypatch.setattr(decoder.target.decoder, "session", Broken())
    with pytest.raises(EngineError, match="onnxruntime failed") as caught:
        decoder.step(1)
    assert len(str(caught.value).splitlines()) == 1


def test_verify_replays_both_components(edgepipe: Any, tiny_bundle: Path) -> None:
    code, out, err = edgepipe(tiny_bundle, "--verify")
    assert (code, err) == (0, "")
    assert out.startswith("verified target and draft with onnx: ")
    assert json.loads(edgepipe(tiny_bundle, "--verify", "--json")[1])["components"] == ["target", "draft"]


@pytest.mark.parametrize("part", ["greedy_ids", "logits_top"])
def test_verify_finds_what_differs(tiny_bundle: Path, tmp_path: Path, part: str) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, copy)
    session = Session(Bundle.open(copy), DecodeOptions())
    golden = copy / "reference" / "draft.json"
    content = json.loads(golden.read_text(encoding="utf-8"))
    if part == "greedy_ids":
        content["cases"][0]["greedy_ids"][3] ^= 1
    else:
        content["cases"][0]["logits_top"]["values"][0] += 1.0
    golden.chmod(0o644)
    golden.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValidationFailed, match="draft, golden prompt 0"):
        verify_reference(session)


def opened(tiny_bundle: Path, **options: Any) -> Session:
    return Session(Bundle.open(tiny_bundle), DecodeOptions(**options))


def test_a_bundle_that_lacks_a_part_says_so(tiny_bundle: Path) -> None:
    session = opened(tiny_bundle, cache=CacheOptions("h2o", "64"))
    session.bundle.manifest["components"]["target"]["formats"]["onnx"].pop("scored")
    with pytest.raises(BundleError, match="no scored graph"):
        session.decoder(100)
    bundle = Bundle.open(tiny_bundle)
    bundle.manifest["components"].pop("draft")
    with pytest.raises(BundleError, match="holds no draft model"):
        Session(bundle, DecodeOptions(drafter="model"))


@pytest.mark.parametrize("factor", [0.5, 2])
@pytest.mark.parametrize("field", ["num_layers", "num_kv_heads", "head_dim"])
def test_a_graph_of_another_shape_is_refused(tiny_bundle: Path, field: str, factor: float) -> None:
    session = opened(tiny_bundle)
    spec = session.bundle.manifest["components"]["target"]["spec"]
    spec[field] = int(spec[field] * factor)
    with pytest.raises(EngineError, match="do not belong together"):
        session.decoder(100)


def test_a_plain_graph_in_the_place_of_the_scored_one_is_refused(tiny_bundle: Path) -> None:
    session = opened(tiny_bundle, cache=CacheOptions("h2o", "64"))
    formats = session.bundle.manifest["components"]["target"]["formats"]["onnx"]
    formats["scored"] = formats["plain"]
    with pytest.raises(EngineError, match="attention_mass"):
        session.decoder(100)


@pytest.mark.parametrize("bad", [{"drafter": "oracle"}, {"engine": "gpu"}, {"gamma": 0}, {"threads": 0}, {"chunk": 0}])
def test_options_out_of_range(bad: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(bad))):
        DecodeOptions(**bad)
