"""Pre-tokenizers: functions that split words into smaller words, inside which alone BPE merges.

They map a list of words to a list of words. An empty word is a placeholder for characters taken away: it keeps the word
after it from counting as the start of the text, and is dropped in the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Protocol

from edgepipe.runtimes.llm.tokenization import oniguruma, unicode_sets
from edgepipe.runtimes.llm.tokenization.byte_level import to_characters
from edgepipe.runtimes.llm.tokenization.components import Spec, build, unsupported

_GPT2_WORD = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Newer punctuation than that of Unicode 8 is none to `tokenizers`.
_PUNCTUATION = r"[!-/:-@\[-`{-~\p{P}]"

Split = Callable[[str], list[str]]
"""Cuts one word into parts."""


class PreTokenizer(Protocol):
    """Splits words; `at_start` tells that `words[0]` is where the encoded text starts."""

    def __call__(self, words: list[str], at_start: bool) -> list[str]: ...


def build_pre_tokenizer(spec: Spec | None) -> PreTokenizer:
    """The "pre_tokenizer" of tokenizer.json as a function. Raises `TokenizerError` naming a type it does not know."""
    return (lambda words, at_start: words) if spec is None else build("pre-tokenizer", spec, _BUILDERS)


def looks_at_the_start(spec: Spec | None) -> bool:
    """Whether the pre-tokenizer treats the start of the text in a special way."""
    match spec:
        case {"type": "Sequence", "pretokenizers": steps}:
            return any(map(looks_at_the_start, steps))
        case {"type": "Metaspace", "prepend_scheme": scheme}:
            return bool(scheme == "first")
    return False


def _each(split: Split) -> PreTokenizer:
    """A pre-tokenizer that splits every word on its own."""
    return lambda words, at_start: [part for word in words for part in split(word) or [""]]


def _splitter(pattern: re.Pattern[str], behavior: str, invert: bool = False) -> Split:
    """What to do with what a pattern matches (inverted: with the rest), by the names tokenizer.json has for it."""
    if behavior == "Isolated":
        split = re.compile(f"({pattern.pattern})").split

        def isolate(word: str) -> list[str]:
            parts = split(word)  # at the speed of C: what lies between, match, what lies between, ...
            if "" in parts[1::2]:  # only with empty matches the cuts may not be those of _segments
                parts = [part for part, _ in _segments(pattern, word)]
            return list(filter(None, parts))

        return isolate
    if behavior == "Removed":
        return lambda word: ["" if hit != invert else part for part, hit in _segments(pattern, word)]
    joins = _JOINS.get(behavior)
    if joins is None:
        raise unsupported(f"split behavior {behavior}")

    def split_and_join(word: str) -> list[str]:
        parts: list[str] = []
        before = False
        for part, hit in _segments(pattern, word):
            hit ^= invert
            if parts and joins(before, hit):
                parts[-1] += part
            else:
                parts.append(part)
            before = hit
        return parts

    return split_and_join


# Whether a part joins the one before it, given which of the two match: (before, this).
_JOINS: dict[str, Callable[[bool, bool], bool]] = {
    "MergedWithPrevious": lambda before, this: this and not before,
    "MergedWithNext": lambda before, this: before and not this,
    "Contiguous": lambda before, this: before == this,
}


def _segments(pattern: re.Pattern[str], word: str) -> Iterator[tuple[str, bool]]:
    """The word cut at the borders of the matches: (part, whether it is a match)."""
    end = 0
    for start, stop in oniguruma.find(pattern, word):
        if start > end:
            yield word[end:start], False
        yield word[start:stop], True
        end = stop
    if end < len(word):
        yield word[end:], False


def _sequence(spec: Spec) -> PreTokenizer:
    steps = [build_pre_tokenizer(step) for step in spec["pretokenizers"]]

    def pre_tokenize(words: list[str], at_start: bool) -> list[str]:
        for step in steps:
            words = step(words, at_start)
        return words

    return pre_tokenize


def _byte_level(spec: Spec) -> PreTokenizer:
    prefix = spec["add_prefix_space"]
    split = _splitter(oniguruma.compile_regex(_GPT2_WORD), "Isolated") if spec.get("use_regex", True) else None

    def pre_tokenize(words: list[str], at_start: bool) -> list[str]:
        if prefix:
            words = [f" {word}" if word and not word.startswith(" ") else word for word in words]
        if split:
            words = [part for word in words for part in split(word) or [""]]
        return list(map(to_characters, words))

    return pre_tokenize


def _metaspace(spec: Spec) -> PreTokenizer:
    replacement = spec["replacement"]
    # Files older than "prepend_scheme" have "add_prefix_space" alone.
    scheme = spec.get("prepend_scheme", "always" if spec.get("add_prefix_space", True) else "never")
    cut = spec.get("split", True)
    escaped = re.escape(replacement)
    parts = re.compile(f"{escaped}?[^{escaped}]+|{escaped}").findall

    def pre_tokenize(words: list[str], at_start: bool) -> list[str]:
        words = [word.replace(" ", replacement) for word in words]
        for index, word in enumerate(words):
            if scheme == "always" or (scheme == "first" and at_start and index == 0):
                words[index] = replacement + word if word and not word.startswith(replacement) else word
        return [part for word in words for part in parts(word) or [""]] if cut else words

    return pre_tokenize


def _whitespace() -> Split:
    word = unicode_sets.class_body(unicode_sets.word())
    pattern = re.compile(f"[{word}]+|[^{word}{unicode_sets.WHITE_SPACE}]+")
    return _splitter(pattern, "Removed", invert=True)


def _digits(spec: Spec) -> PreTokenizer:
    behavior = "Isolated" if spec["individual_digits"] else "Contiguous"
    return _each(_splitter(oniguruma.compile_regex(r"\p{N}"), behavior))


_BUILDERS: dict[str, Callable[[Spec], PreTokenizer]] = {
    "Sequence": _sequence,
    "ByteLevel": _byte_level,
    "Metaspace": _metaspace,
    "Digits": _digits,
    "Split": lambda spec: _each(
        _splitter(oniguruma.compile_pattern(spec["pattern"]), spec["behavior"], spec["invert"])
    ),
    "Punctuation": lambda spec: _each(
        _splitter(oniguruma.compile_regex(_PUNCTUATION), spec.get("behavior", "Isolated"))
    ),
    "CharDelimiterSplit": lambda spec: _each(_splitter(re.compile(re.escape(spec["delimiter"])), "Removed")),
    "WhitespaceSplit": lambda spec: _each(_splitter(oniguruma.compile_regex(r"\s"), "Removed")),
    "Whitespace": lambda spec: _each(_whitespace()),
}
