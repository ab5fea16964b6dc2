"""Normalizers: functions from text to text, applied before splitting into words."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import partial

from edgepipe.runtimes.llm.tokenization import oniguruma
from edgepipe.runtimes.llm.tokenization.byte_level import to_characters
from edgepipe.runtimes.llm.tokenization.components import Spec, build
from edgepipe.runtimes.llm.tokenization.unicode_sets import WHITE_SPACE

Normalizer = Callable[[str], str]


def build_normalizer(spec: Spec | None) -> Normalizer:
    """The "normalizer" of tokenizer.json as a function. Raises `TokenizerError` naming a type it does not know."""
    return (lambda text: text) if spec is None else build("normalizer", spec, _BUILDERS)


def deletes_on_the_left(spec: Spec | None) -> bool:
    """Whether the normalizer can take characters away from the start of a text."""
    match spec:
        case {"type": "Sequence", "normalizers": steps}:
            return any(map(deletes_on_the_left, steps))
        case {"type": "Strip", "strip_left": left}:
            return bool(left)
        case {"type": "Replace", "content": content}:
            return not content
    return False


def _sequence(spec: Spec) -> Normalizer:
    steps = [build_normalizer(step) for step in spec["normalizers"]]

    def normalize(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return normalize


def _prepend(spec: Spec) -> Normalizer:
    prefix = spec["prepend"]
    return lambda text: prefix + text if text else text


def _replace(spec: Spec) -> Normalizer:
    pattern, content = oniguruma.compile_pattern(spec["pattern"]), spec["content"]
    return lambda text: oniguruma.replace(pattern, content, text)


def _strip(spec: Spec) -> Normalizer:
    left, right = spec["strip_left"], spec["strip_right"]

    def normalize(text: str) -> str:
        text = text.lstrip(WHITE_SPACE) if left else text
        return text.rstrip(WHITE_SPACE) if right else text

    return normalize


def _unicode(spec: Spec) -> Normalizer:
    # `tokenizers` has the tables of about Unicode 9 here: combining marks assigned since may end in another order.
    return partial(unicodedata.normalize, spec["type"])


_BUILDERS: dict[str, Callable[[Spec], Normalizer]] = {
    "Sequence": _sequence,
    "NFC": _unicode,
    "NFD": _unicode,
    "NFKC": _unicode,
    "NFKD": _unicode,
    # Letter by letter: the whole string's lower() has a special rule for a final sigma.
    "Lowercase": lambda spec: lambda text: "".join(map(str.lower, text)),
    "Prepend": _prepend,
    "Replace": _replace,
    "Strip": _strip,
    "ByteLevel": lambda spec: to_characters,
}
