"""Translated regular expressions cut texts where Oniguruma (inside `tokenizers`) cuts them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepipe.errors import TokenizerError
from edgepipe.runtimes.llm.tokenization import oniguruma, unicode_sets
from edgepipe.runtimes.llm.tokenization.pre_tokenizers import build_pre_tokenizer

# Surrogates cannot be given to `tokenizers`; what Python's Unicode does not know yet may be classed otherwise.
KNOWN = [code for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cs", "Cn")]
# Its category changed from Mn to Mc in Unicode 15.
CHANGED = {0x1171E}

CONSTRUCTS = [
    r"\d{1,3}+",
    r"(?:\d{1,2}+)\d",
    r"a{2}?b",
    r"a{1,2}?b",
    r"a{,2}b",
    r"a++b|b*+",
    r"a?+a",
    r"(a|b)*c",
    r"(?<name>a)b?",
    r"(?>a+)b",
    r"(?i:ab|k)+",
    r"b(?i)a|c",
    r"((?i)a)b",
    r"(?i:(?-i:a)b)",
    r"(?m:a.b)",
    r"a.b",
    r"^a",
    r"b$",
    r"^",
    r"\s+$",
    r"\Aa|b\z|a\Z",
    r"(?<=a)b|(?<!b)a",
    r"a(?!b)|b(?=a)",
    r"[^\S\n]+",
    r"[^\p{L}\s]+",
    r"[\p{Lu}b-]+",
    r"[]a]+",
    r"[^]a]+",
    r"[a\-b\]^]+",
    r"\p{^L}+",
    r"\P{L}+",
    r"[\P{L}]+",
    r"\p{Letter}+",
    r"\x{61}\u0062|\x41",
    r"\/|\-|\.",
    r"a{|{a}|]",
    r"a**|b+*",
    r"\h+",
    r"\w+",
    r"\W+",
    r"",
    r"b*",
]
UNSUPPORTED = [
    r"\bfoo",
    r"(a)\1",
    r"[[:alpha:]]",
    r"[a&&b]",
    r"[a-\d]",
    r"\p{Han}",
    r"\R",
    r"\X",
    r"(?x: a )",
    r"(?~a)",
    r"(?<=a+)b",
    r"(",
    r")",
    r"[a",
    r"*a",
    r"a\\"[:-1],
    r"[b-a]",
]


def cut(spec: dict[str, Any], text: str) -> list[str]:
    return [part for part in build_pre_tokenizer(spec)([text], True) if part]


def reference(spec: dict[str, Any]) -> Callable[[str], list[str]]:
    """The same pre-tokenizer in `tokenizers`."""
    import json

    tokenizers = pytest.importorskip("tokenizers")
    model = {"type": "BPE", "vocab": {}, "merges": []}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": spec, "model": model}
    theirs = tokenizers.Tokenizer.from_str(json.dumps(whole)).pre_tokenizer
    return lambda text: [part for part, _ in theirs.pre_tokenize_str(text) if part]


def split(pattern: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


@pytest.mark.parametrize(
    "spec",
    [
        *(
            split(rf"\p{{{name}}}", "Removed")
            for name in ("L", "N", "M", "P", "S", "Z", "C", "Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Mn")
        ),
        *(
            split(pattern, "Removed")
            for pattern in (r"\s", r"\S", r"\d", r"\w", r"\h", ".", "(?i:s|k|i)", "(?i:[a-z])", "(?i:[^m-s])")
        ),
        {"type": "Digits", "individual_digits": True},
        {"type": "WhitespaceSplit"},
        {"type": "Whitespace"},
        {"type": "Punctuation"},
    ],
    ids=lambda spec: spec.get("pattern", {}).get("Regex") or spec["type"],
)
def test_every_character_is_classed_as_in_tokenizers(spec: dict[str, Any]) -> None:
    theirs = reference(spec)
    codes = [code for code in KNOWN if code not in CHANGED]
    if spec["type"] == "Punctuation":  # there `tokenizers` has an old Unicode
        old = unicodedata.ucd_3_2_0.category
        codes = [code for code in codes if old(chr(code)) == unicodedata.category(chr(code))]
    for start in range(0, len(codes), 4096):
        characters = map(chr, codes[start : start + 4096])
        # What a pattern matches is removed; the others cut a character off from an "x", or do not, by what it is.
        text = ("" if spec["type"] == "Split" else "x").join(characters)
        assert cut(spec, text) == theirs(text)


@pytest.mark.parametrize("pattern", CONSTRUCTS)
@settings(max_examples=100)
@given(text=st.text("aabbcAK1 -]{}^.\n", max_size=12))
def test_constructs(pattern: str, text: str) -> None:
    assert cut(split(pattern), text) == reference(split(pattern))(text)


@pytest.mark.parametrize("behavior", ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
@settings(max_examples=100)
@given(text=st.text("ab- ", max_size=10), invert=st.booleans(), pattern=st.sampled_from(["-", "-|b", "a*", "-?", "^"]))
def test_split_behaviors(behavior: str, text: str, invert: bool, pattern: str) -> None:
    spec = split(pattern, behavior, invert)
    assert cut(spec, text) == reference(spec)(text)


SPLITTING = [
    split("-", "Removed"),
    {"type": "CharDelimiterSplit", "delimiter": "b"},
    {"type": "WhitespaceSplit"},
    {"type": "Whitespace"},
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "Digits", "individual_digits": False},
]
PREPENDING = [
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
    {"type": "Metaspace", "replacement": "-", "prepend_scheme": "always", "split": True},
    {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
]


@settings(max_examples=200)
@given(
    text=st.text("ab-. 1\u00a0▁", max_size=12),
    steps=st.lists(st.sampled_from(SPLITTING), max_size=2),
    last=st.sampled_from([*SPLITTING, *PREPENDING]),
)
def test_sequences_of_pre_tokenizers(text: str, steps: list[dict[str, Any]], last: dict[str, Any]) -> None:
    spec = {"type": "Sequence", "pretokenizers": [*steps, last]}
    assert cut(spec, text) == reference(spec)(text)


@pytest.mark.parametrize("pattern", UNSUPPORTED)
def test_what_cannot_be_translated_is_refused(pattern: str) -> None:
    with pytest.raises(TokenizerError, match="pip install tokenizers") as caught:
        oniguruma.compile_regex(pattern)
    assert repr(pattern) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.lists(st.tuples(st.integers(0, 0x10FFFF), st.integers(0, 200))))
def test_union_and_complement_are_those_of_sets(spans: list[tuple[int, int]]) -> None:
    ranges = [(first, min(first + length, 0x10FFFF)) for first, length in spans]
    members = {code for first, last in ranges for code in range(first, last + 1)}
    union = unicode_sets.union(ranges)
    outside = unicode_sets.complement(ranges)
    assert {code for first, last in union for code in range(first, last + 1)} == members
    assert all(earlier[1] + 1 < later[0] for earlier, later in pairwise(union))
    assert sum(last - first + 1 for first, last in outside) == 0x110000 - len(members)
    assert unicode_sets.complement(outside) == union
