"""Normalizers and decoders do what those of `tokenizers` do; what is not understood is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edgepipe.errors import TokenizerError
from edgepipe.runtimes.llm.tokenization.decoders import make_decoder
from edgepipe.runtimes.llm.tokenization.normalizers import build_normalizer
from edgepipe.runtimes.llm.tokenization.python import PythonTokenizer


def bpe(**parts: Any) -> dict[str, Any]:
    """A small tokenizer.json; `parts` replace or add to its own."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], **parts.pop("model", {})}
    return {"version": "1.0", "added_tokens": [], "model": model, **parts}


def theirs(**parts: Any) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_str(json.dumps(bpe(**parts)))


def unless_it_panics(call: Callable[[Any], str], argument: Any) -> str:
    """What `tokenizers` answers; some inputs make it panic (a `BaseException`), which tell nothing."""
    try:
        return call(argument)
    except BaseException as error:
        assume(type(error).__name__ != "PanicException")
        raise


def added(id: int, content: str, **flags: bool) -> dict[str, Any]:
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": id, "content": content, **off, **flags}


NORMALIZERS = [
    *({"type": form} for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "ByteLevel")),
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    {"type": "Replace", "pattern": {"String": "a"}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": " {2,}|é*"}, "content": r"\1$0"},
    *({"type": "Strip", "strip_left": left, "strip_right": not left} for left in (True, False)),
]
DECODERS = [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Fuse"},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True},
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": "a+|b"}, "content": "-"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 2},
    {"type": "ByteFallback"},
]
PIECES = [
    "a",
    "ab",
    "▁",
    "▁a",
    " a  ",
    "é",
    "Ġa",
    "<0xE4>",
    "<0xbd>",
    "<0xA0>",
    "<0x41>",
    "<0xFF>",
    "<0xG0>",
    "ð",
    "Ł",
    "ĺ",
    "",
    "� ",
]


@settings(max_examples=300)
@given(
    text=st.text("aAéE\u0301\u0323ﬁ½ΣİǄ \u2003\x1c\n▁", max_size=12),
    steps=st.lists(st.sampled_from(NORMALIZERS), min_size=1, max_size=3),
)
def test_normalizers(text: str, steps: list[dict[str, Any]]) -> None:
    spec = {"type": "Sequence", "normalizers": steps}
    assert build_normalizer(spec)(text) == unless_it_panics(theirs(normalizer=spec).normalizer.normalize_str, text)


@settings(max_examples=300)
@given(
    tokens=st.lists(st.sampled_from(PIECES), max_size=10),
    steps=st.lists(st.sampled_from(DECODERS), min_size=1, max_size=3),
)
def test_decoders(tokens: list[str], steps: list[dict[str, Any]]) -> None:
    spec = {"type": "Sequence", "decoders": steps}
    try:
        decoder = make_decoder(spec, eager=False)
    except TokenizerError:  # steps past Fuse or ByteLevel that need the whole text
        assert {"Fuse", "ByteLevel"} & {step["type"] for step in steps[:-1]}
        return
    assert "".join(map(decoder.push, tokens)) + decoder.flush() == unless_it_panics(
        theirs(decoder=spec).decoder.decode, tokens
    )


@settings(max_examples=100)
@given(tokens=st.lists(st.sampled_from(PIECES), max_size=10), start=st.integers(0, 3))
def test_strip_after_fuse(tokens: list[str], start: int) -> None:
    fuse, strip = {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": start, "stop": 0}
    spec = {"type": "Sequence", "decoders": [DECODERS[4], fuse, strip, {**DECODERS[4], "content": "_"}]}
    decoder = make_decoder(spec, eager=False)
    assert "".join(map(decoder.push, tokens)) + decoder.flush() == unless_it_panics(
        theirs(decoder=spec).decoder.decode, tokens
    )


@settings(max_examples=300)
@given(data=st.data())
def test_added_tokens(data: st.DataObject) -> None:
    flag = st.booleans()
    contents = data.draw(
        st.lists(st.sampled_from(["X", "XY", "Y", " Z", "Éé", "a", "_", "b a", "²"]), unique=True, max_size=5)
    )
    tokens = [
        added(
            place + 3,
            content,
            **{name: data.draw(flag) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")},
        )
        for place, content in enumerate(contents)
    ]
    normalizer = data.draw(st.sampled_from([None, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "_"}]))
    spec = bpe(added_tokens=tokens, normalizer=normalizer)
    text = data.draw(st.text("abXYZÉé_² \u2003\x1c\u200d", max_size=12))
    reference = theirs(added_tokens=tokens, normalizer=normalizer)
    assert PythonTokenizer(spec).encode(text) == reference.encode(text).ids


def test_ids_of_added_tokens_are_numbered_as_tokenizers_does() -> None:
    tokens = [
        added(10, "X"),
        added(7, "Y"),
        added(1, "a"),
        added(20, "Z", special=True),
        added(5, ""),
        added(11, "X", lstrip=True),
    ]
    ours, reference = PythonTokenizer(bpe(added_tokens=tokens)), theirs(added_tokens=tokens)
    assert {ours.token(id): id for id in range(ours.vocab_size)} == reference.get_vocab(with_added_tokens=True)
    assert ours.special_ids == {reference.token_to_id("Z")}


@pytest.mark.parametrize("fuse", [True, False])
def test_unknown_characters_wait_past_byte_tokens(fuse: bool) -> None:
    model = {
        "vocab": {"a": 0, "<unk>": 1, "<0x7A>": 2},
        "merges": [],
        "unk_token": "<unk>",
        "byte_fallback": True,
        "fuse_unk": fuse,
    }
    ours, reference = PythonTokenizer(bpe(model=model)), theirs(model=model)
    for text in ("éza", "yz", "yyzya", "z", "éé", "aéa"):
        assert ours.encode(text) == reference.encode(text).ids


def test_decoding_normalized_added_tokens() -> None:
    """Their normalized form is what a decoder undoes; a special one is left out whatever its form."""
    tokens = [added(3, "<tool>", normalized=True), added(4, "<end>", normalized=True, special=True)]
    ours = PythonTokenizer(
        bpe(
            added_tokens=tokens,
            normalizer={"type": "Prepend", "prepend": "▁"},
            decoder=DECODERS[4],
            model={"vocab": {"a": 0, "b": 1, "ab": 2}},
        )
    )
    assert ours.token(3) == "<tool>"
    assert ours.decode([0, 3, 4]) == "a <tool>"
    assert ours.decode([0, 3, 4], skip_special_tokens=False) == "a <tool> <end>"


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, "normalizer Precompiled"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Nmt"}]}}, "normalizer Nmt"),
        ({"pre_tokenizer": {"type": "UnicodeScripts"}}, "pre-tokenizer UnicodeScripts"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "FixedLength"}]}},
            "pre-tokenizer FixedLength",
        ),
        ({"post_processor": {"type": "BertProcessing"}}, "post-processor BertProcessing"),
        ({"model": {"type": "Unigram"}}, "model Unigram"),
        ({"model": {"type": "WordPiece"}}, "model WordPiece"),
        ({"model": {"dropout": 0.1}}, "BPE with dropout"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "BPE with end_of_word_suffix"),
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "New", "invert": False}},
            "split behavior New",
        ),
        (
            {
                "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True},
                "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"},
            },
            "Metaspace at the start after a normalizer that deletes there",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_understood_is_named(parts: dict[str, Any], named: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        PythonTokenizer(bpe(**parts))
    assert str(caught.value) == f"{named} is not supported by the built-in tokenizer reader: pip install tokenizers"


@pytest.mark.parametrize(
    "decoder", [{"type": "CTC"}, {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}]
)
def test_unknown_decoders_are_named(decoder: dict[str, Any]) -> None:
    with pytest.raises(
        TokenizerError, match="decoder (CTC|ByteFallback after Fuse) is not supported: expected ByteLevel, "
    ):
        PythonTokenizer(bpe(decoder=decoder))
