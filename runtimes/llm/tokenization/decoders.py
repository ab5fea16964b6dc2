"""Decoders: from tokens back to text, token by token.

Each step of the "decoder" of tokenizer.json takes tokens one at a time (`push`) and gives out what is ready; `flush`
gives the rest. So the same code decodes a whole text and a stream.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable

from edgepipe.errors import TokenizerError
from edgepipe.runtimes.llm.tokenization import oniguruma
from edgepipe.runtimes.llm.tokenization.byte_level import to_bytes
from edgepipe.runtimes.llm.tokenization.components import Spec

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Step:
    """One step of decoding, with the state of one text. By itself it lets every token pass."""

    def push(self, token: str) -> list[str]:
        """What is ready once `token` has come."""
        return [token]

    def flush(self) -> list[str]:
        """What was held back."""
        return []


class Decoder:
    """The steps in a row: tokens in, text out."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps

    def push(self, token: str) -> str:
        """The text that is certain once `token` has come; never a part of a character."""
        return self._run([token], self._steps)

    def flush(self) -> str:
        """The rest of the text; an unfinished character becomes U+FFFD."""
        return "".join(self._run(step.flush(), self._steps[place:]) for place, step in enumerate(self._steps, 1))

    @staticmethod
    def _run(tokens: Iterable[str], steps: list[Step]) -> str:
        for step in steps:
            tokens = [ready for token in tokens for ready in step.push(token)]
        return "".join(tokens)


def make_decoder(spec: Spec | None, eager: bool) -> Decoder:
    """A fresh decoder for one text, from the "decoder" of tokenizer.json.

    `eager` tells what a run of byte-fallback tokens does: give out each character as soon as it is whole, or wait for
    the end of the run. They differ when the run is not valid UTF-8: `tokenizers` then turns every byte of it into
    U+FFFD, whole characters included; eager keeps those.

    Raises `TokenizerError` naming a step it does not know, or that needs the whole text.
    """
    if spec is None:
        return Decoder([_Spaced()])
    steps: list[Step] = []
    fused = False
    for step in spec["decoders"] if spec["type"] == "Sequence" else [spec]:
        name = step["type"]
        builders = _AFTER_FUSE if fused else _BUILDERS
        if name == "ByteFallback" and not fused:
            steps.append(_ByteFallback(eager))
        elif name in builders:
            steps.append(builders[name](step))
        else:
            raise _unsupported(name + " after Fuse" * fused)
        fused |= name in ("Fuse", "ByteLevel")
    return Decoder(steps)


def _unsupported(what: str) -> TokenizerError:
    return TokenizerError(f"decoder {what} is not supported: expected {', '.join(_BUILDERS)} or ByteFallback")


class _Each(Step):
    """Every token on its own."""

    def __init__(self, change: Callable[[str], str]) -> None:
        self._change = change

    def push(self, token: str) -> list[str]:
        return [self._change(token)]


class _Spaced(Step):
    """Without a decoder, spaces go between tokens."""

    def __init__(self) -> None:
        self._space = ""

    def push(self, token: str) -> list[str]:
        space, self._space = self._space, " "
        return [space + token]


class _ByteLevel(Step):
    """Every character of a token is a byte; bytes make up UTF-8 across tokens."""

    def __init__(self) -> None:
        self._utf8 = _utf8_decoder("replace")

    def push(self, token: str) -> list[str]:
        return [self._utf8.decode(to_bytes(token))]

    def flush(self) -> list[str]:
        return [self._utf8.decode(b"", final=True)]


class _ByteFallback(Step):
    """Tokens `<0xE4>` are bytes; a run of them makes up UTF-8."""

    def __init__(self, eager: bool) -> None:
        self._eager = eager
        self._utf8 = _utf8_decoder("replace")
        self._run = bytearray()

    def push(self, token: str) -> list[str]:
        match = _BYTE_TOKEN.fullmatch(token)
        if match is None:
            return [*self.flush(), token]
        byte = bytes.fromhex(match[1])
        if self._eager:
            return [self._utf8.decode(byte)]
        self._run += byte
        return []

    def flush(self) -> list[str]:
        if self._eager:
            return [self._utf8.decode(b"", final=True)]
        run = bytes(self._run)
        self._run.clear()
        try:
            return [run.decode("utf-8")] if run else []
        except UnicodeDecodeError:
            return ["\ufffd" * len(run)]


class _Metaspace(Step):
    """The replacement stands for a space, and for nothing in the first token (where one was prepended)."""

    def __init__(self, replacement: str, keep_first: bool) -> None:
        self._replacement = replacement
        self._space = " " if keep_first else ""

    def push(self, token: str) -> list[str]:
        space, self._space = self._space, " "
        return [token.replace(self._replacement, space)]


class _StripStart(Step):
    """Takes up to `count` characters `content` off the start of the text."""

    def __init__(self, content: str, count: int) -> None:
        self._content = content
        self._left = count

    def push(self, token: str) -> list[str]:
        while self._left and token:
            if token[0] != self._content:
                self._left = 0
            else:
                token, self._left = token[1:], self._left - 1
        return [token]


def _metaspace(spec: Spec) -> Step:
    scheme = spec.get("prepend_scheme", "always" if spec.get("add_prefix_space", True) else "never")
    return _Metaspace(spec["replacement"], keep_first=scheme == "never")


def _replace(spec: Spec) -> Step:
    pattern, content = oniguruma.compile_pattern(spec["pattern"]), spec["content"]
    return _Each(lambda token: oniguruma.replace(pattern, content, token))


def _strip(spec: Spec) -> Step:
    content, start, stop = spec["content"], spec["start"], spec["stop"]

    def strip(token: str) -> str:
        for _ in range(start):
            token = token.removeprefix(content)
        for _ in range(stop):
            token = token.removesuffix(content)
        return token

    return _Each(strip)


def _replace_after_fuse(spec: Spec) -> Step:
    if len(spec["pattern"].get("String", "")) != 1:
        raise _unsupported("Replace of more than one character after Fuse")
    return _replace(spec)


def _strip_after_fuse(spec: Spec) -> Step:
    if spec["stop"]:
        raise _unsupported("Strip at the end after Fuse")
    return _StripStart(spec["content"], spec["start"])


_BUILDERS: dict[str, Callable[[Spec], Step]] = {
    "ByteLevel": lambda spec: _ByteLevel(),
    "Fuse": lambda spec: Step(),
    "Metaspace": _metaspace,
    "Replace": _replace,
    "Strip": _strip,
}
# Past Fuse, steps see the text as one token, here piece by piece.
_AFTER_FUSE: dict[str, Callable[[Spec], Step]] = {
    "Fuse": lambda spec: Step(),
    "Replace": _replace_after_fuse,
    "Strip": _strip_after_fuse,
}
