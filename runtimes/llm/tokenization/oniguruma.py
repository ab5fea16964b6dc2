"""Regular expressions of `tokenizer.json`, written for Oniguruma (Ruby syntax), rewritten for Python's `re`.

What differs, and is rewritten: `\\p{...}` (absent from `re`), `\\s` `\\w` (other characters), `^` `$` (Ruby's are those
of lines), `(?m` (Ruby's is `re`'s `s`), `(?i` (other equivalents: `re` takes "İ" for an "i"), an isolated `(?i)` (holds
to the end of its group), `x{1,3}+` (Ruby repeats, `re` would be possessive). What has no exact counterpart raises
`TokenizerError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from edgepipe.runtimes.llm.tokenization import unicode_sets
from edgepipe.runtimes.llm.tokenization.components import Spec, unsupported
from edgepipe.runtimes.llm.tokenization.unicode_sets import Ranges

_QUANTIFIER = re.compile(r"(?P<simple>[*+?][?+]?)|\{(?:(?P<low>\d+)(?P<comma>,?)(?P<high>\d*)|,(?P<most>\d+))\}")
_GROUP = re.compile(r"\(\?(?:(?P<kind>[:=!>]|<[=!])|<\w+>|(?P<flags>[im]*(?:-[im]+)?)(?P<end>[:)]))|\((?!\?)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "f": "\f", "a": "\a", "e": "\x1b"}
_HEX = re.compile(r"\\(?:x\{([0-9A-Fa-f]{1,8})\}|x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4}))")
_PROPERTY = re.compile(r"\\[pP]\{(\^?)(\w+)\}")
_LONG_NAMES = {
    "Letter": "L",
    "Mark": "M",
    "Number": "N",
    "Punctuation": "P",
    "Symbol": "S",
    "Separator": "Z",
    "Other": "C",
}
_ANCHORS = {"A": r"\A", "z": r"\Z", "Z": r"(?=\n?\Z)"}
# "^": a newline that ends the text starts no line.
_SPECIAL = {"^": r"(?:\A|(?<=\n)(?!\Z))", "$": "(?m:$)", ".": ".", "|": "|"}


def compile_pattern(spec: Spec) -> re.Pattern[str]:
    """A "pattern" of tokenizer.json, `{"String": ...}` or `{"Regex": ...}`, compiled; it has no capturing group.

    Raises `TokenizerError` for a construct that cannot be translated exactly.
    """
    if "String" in spec:
        return re.compile(re.escape(spec["String"]))
    return compile_regex(spec["Regex"])


@lru_cache(maxsize=64)
def compile_regex(pattern: str) -> re.Pattern[str]:
    """Compile an Oniguruma pattern. Raises `TokenizerError` as `compile_pattern` does."""
    translated = _Translator(pattern).translate()
    try:
        return re.compile(translated)
    except (re.error, OverflowError, RecursionError) as error:
        raise unsupported(f"regex {pattern!r} ({error})") from None


def find(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    """Spans of the matches of `pattern`, as `tokenizers` finds them.

    None in an empty text; past an empty match it goes on at the next character, where `finditer` tries the same again.
    """
    position, end = 0, -1
    while text and position <= len(text) and (match := pattern.search(text, position)):
        start, stop = match.span()
        position = stop + (start == stop)
        if stop > end:  # or it is an empty match right after another match
            end = stop
            yield start, stop


def replace(pattern: re.Pattern[str], content: str, text: str) -> str:
    """`text` with `content`, as it stands, in place of every match."""
    pieces, end = [], 0
    for start, stop in find(pattern, text):
        pieces += [text[end:start], content]
        end = stop
    return "".join(pieces) + text[end:]


class _Group:
    """A group being read. An `implicit` one was opened by an isolated `(?i)`: its parent's end closes it."""

    def __init__(self, opening: str, ignore_case: bool, implicit: bool = False) -> None:
        self.opening = opening
        self.ignore_case = ignore_case
        self.implicit = implicit
        self.atoms: list[str] = []
        self.quantified = False

    def add(self, atom: str) -> None:
        self.atoms.append(atom)
        self.quantified = False

    def quantify(self, quantifier: str) -> None:
        if not self.atoms:
            raise ValueError("nothing to repeat")
        atom = f"(?:{self.atoms[-1]})" if self.quantified else self.atoms[-1]
        self.atoms[-1] = atom + quantifier
        self.quantified = True

    def text(self) -> str:
        return self.opening + "".join(self.atoms) + ")"


class _Translator:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def translate(self) -> str:
        try:
            return self._groups()
        except (ValueError, IndexError) as error:
            raise unsupported(f"regex {self.pattern!r} ({error} at character {self.at})") from None

    def _take(self, regex: re.Pattern[str]) -> re.Match[str] | None:
        match = regex.match(self.pattern, self.at)
        if match:
            self.at = match.end()
        return match

    def _groups(self) -> str:
        stack = [_Group("(?:", ignore_case=False)]
        while self.at < len(self.pattern):
            character = self.pattern[self.at]
            if character == "(":
                self._open(stack)
            elif character == ")":
                self.at += 1
                self._close(stack)
            elif quantifier := self._take(_QUANTIFIER):
                stack[-1].quantify(self._quantifier(quantifier))
            elif character == "[":
                stack[-1].add(self._class(stack[-1].ignore_case))
            elif character in _SPECIAL:
                self.at += 1
                stack[-1].add(_SPECIAL[character])
            else:
                stack[-1].add(self._atom(stack[-1].ignore_case))
        while stack[-1].implicit:
            self._fold(stack)
        if len(stack) != 1:
            raise ValueError("unclosed group")
        return stack[0].text()

    def _open(self, stack: list[_Group]) -> None:
        group = self._take(_GROUP)
        if group is None:
            raise ValueError("group")
        on, _, off = (group["flags"] or "").partition("-")
        ignore_case = ("i" in on or stack[-1].ignore_case) and "i" not in off
        dot_flags = "s" * ("m" in on) + "-s" * ("m" in off)
        opening = f"(?{group['kind'] or dot_flags + ':'}"
        stack.append(_Group(opening, ignore_case, implicit=group["end"] == ")"))

    def _fold(self, stack: list[_Group]) -> None:
        group = stack.pop()
        stack[-1].add(group.text())

    def _close(self, stack: list[_Group]) -> None:
        while stack[-1].implicit:
            self._fold(stack)
        if len(stack) == 1:
            raise ValueError("unmatched )")
        self._fold(stack)

    def _quantifier(self, match: re.Match[str]) -> str:
        if match["simple"]:
            return match["simple"]
        if match["low"] and not match["comma"]:
            return match[0]  # after {n}, a "?" is another quantifier: it makes the whole optional
        lazy = self.pattern.startswith("?", self.at)
        self.at += lazy
        return f"{{{match['low'] or 0},{match['high'] or match['most'] or ''}}}{'?' * lazy}"

    def _atom(self, ignore_case: bool) -> str:
        """A character, escaped or not, or an escape that stands for a set or a position."""
        if self.pattern[self.at] == "\\":
            if ranges := self._set():
                return f"[{unicode_sets.class_body(ranges)}]"
            if anchor := _ANCHORS.get(self.pattern[self.at + 1]):
                self.at += 2
                return anchor
        character = self._character()
        if ignore_case and len(variants := unicode_sets.case_variants().get(character, "")) > 1:
            return f"[{variants}]"
        return re.escape(character)

    def _set(self) -> Ranges | None:
        """The set that an escape such as `\\p{L}` or `\\S` stands for; None when it stands for something else."""
        letter = self.pattern[self.at + 1]
        if letter in "pP":
            return self._property()
        match letter.lower():
            case "s":
                ranges = unicode_sets.of(unicode_sets.WHITE_SPACE)
            case "d":
                ranges = unicode_sets.category("Nd")
            case "w":
                ranges = unicode_sets.word("²³¹¼½¾")
            case "h":
                ranges = unicode_sets.of("0123456789abcdefABCDEF")
            case _:
                return None
        self.at += 2
        return unicode_sets.complement(ranges) if letter.isupper() else ranges

    def _property(self) -> Ranges:
        """The characters of a general category: `\\p{Lu}`, `\\p{^Lu}`, `\\P{Letter}`."""
        found = self._take(_PROPERTY)
        name = found[2].title() if found else ""
        ranges = unicode_sets.category(_LONG_NAMES.get(name, name)) if found else ()
        if found is None or not ranges:
            raise ValueError(f"property {name}")
        negated = found[0].startswith("\\P") != bool(found[1])
        return unicode_sets.complement(ranges) if negated else ranges

    def _character(self) -> str:
        """One character, escaped or not."""
        character = self.pattern[self.at]
        if character != "\\":
            self.at += 1
            return character
        if code := self._take(_HEX):
            return chr(int(code[1] or code[2] or code[3], 16))
        letter = self.pattern[self.at + 1]
        if letter not in _ESCAPES and (letter.isalnum() or not letter.isascii()):
            raise ValueError(f"escape \\{letter}")
        self.at += 2
        return _ESCAPES.get(letter, letter)

    def _class(self, ignore_case: bool) -> str:
        self.at += 1
        negated = self.pattern[self.at] == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        start = self.at
        while self.pattern[self.at] != "]" or self.at == start:
            if self.pattern[self.at] == "[" or self.pattern.startswith("&&", self.at):
                raise ValueError("set operation")
            inner = self._set() if self.pattern[self.at] == "\\" else None
            if inner is not None:
                ranges += inner
                continue
            first = last = ord(self._character())
            if self.pattern[self.at] == "-" and self.pattern[self.at + 1] not in "]":
                self.at += 1
                if self.pattern[self.at] in "[" or (self.pattern[self.at] == "\\" and self._set() is not None):
                    raise ValueError("range")
                last = ord(self._character())
            if last < first:
                raise ValueError("range")
            ranges.append((first, last))
        self.at += 1
        members = unicode_sets.union(ranges)
        if ignore_case:
            members = unicode_sets.with_case_variants(members)
        return f"[{'^' if negated else ''}{unicode_sets.class_body(members)}]"
