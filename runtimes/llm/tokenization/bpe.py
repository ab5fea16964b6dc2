"""Byte-pair encoding (Sennrich et al. 2016): a word becomes the tokens that its merges, lowest rank first, lead to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise

from edgepipe.errors import TokenizerError
from edgepipe.runtimes.llm.tokenization.components import Spec, unsupported

_CACHED_WORDS = 50_000
_CACHED_LENGTH = 64


class Bpe:
    """The "model" of tokenizer.json, of type BPE.

    `vocab` maps a token to its id. Without an unknown token and byte fallback, characters outside the vocabulary are
    dropped, as `tokenizers` does. Raises `TokenizerError` for another model type or option, and for merges that lead
    out of the vocabulary.
    """

    def __init__(self, spec: Spec) -> None:
        if spec.get("type", "BPE") != "BPE":
            raise unsupported(f"model {spec['type']}")
        for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if spec.get(option):
                raise unsupported(f"BPE with {option}")
        self.vocab: dict[str, int] = spec["vocab"]
        self._unknown: str | None = spec.get("unk_token")
        self._fuse_unknown = bool(spec.get("fuse_unk"))
        self._byte_fallback = bool(spec.get("byte_fallback"))
        self._whole_words = bool(spec.get("ignore_merges"))
        self._size = max(self.vocab.values(), default=0) + 1  # an AttributeError where "vocab" is no object
        self._merges = self._read_merges(spec["merges"])
        self._cache = _WordCache(self._tokenize)
        self._segments = self._segmenter()

    def encode(self, words: Iterable[str]) -> list[int]:
        """Token ids of the words, one after the other."""
        if self._segments:
            words = chain.from_iterable(map(self._segments, words))
        return list(chain.from_iterable(map(self._cache.__getitem__, words)))

    def _read_merges(self, merges: list[str] | list[list[str]]) -> dict[int, int]:
        """`left * size + right` → `rank * size + merged`; integers take a third of the memory of tuples of strings."""
        vocab, size = self.vocab, self._size
        if merges and isinstance(merges[0], str):
            merges = [line.split(" ") for line in merges if not line.startswith("#version")]
        try:
            return {
                vocab[left] * size + vocab[right]: rank * size + vocab[left + right]
                for rank, (left, right) in enumerate(merges)
            }
        except KeyError as error:
            raise TokenizerError(f"a merge needs the token {error}, which the vocabulary lacks") from None

    def _segmenter(self) -> Callable[[str], list[str]] | None:
        """A function that cuts a word where no merge can reach across, or None.

        SentencePiece files have no pre-tokenizer: a whole text is one word. Where no token has "▁" after another
        character, all merges stay between the places where a "▁" follows one, so that the parts can be merged, and
        cached, apart.
        """
        if self._whole_words or "▁" not in self.vocab or any("▁" in token.lstrip("▁") for token in self.vocab):
            return None
        return re.compile("▁*[^▁]+|▁+").findall

    def _tokenize(self, word: str) -> list[int]:
        if self._whole_words and word in self.vocab:
            return [self.vocab[word]]
        return self._merge(self._symbols(word))

    def _symbols(self, word: str) -> list[int]:
        """Token ids of the characters. As in `tokenizers`, an unknown one waits for the next known one."""
        symbols: list[int] = []
        waiting = False
        for character in word:
            token = self.vocab.get(character)
            if token is not None:
                if waiting:
                    symbols.append(self._unknown_id(character))
                    waiting = False
                symbols.append(token)
            elif self._byte_fallback and (fallback := self._bytes(character)):
                symbols += fallback  # past the one that waits
            elif self._unknown is not None:
                if waiting and not self._fuse_unknown:
                    symbols.append(self._unknown_id(character))
                waiting = True
        if waiting:
            symbols.append(self._unknown_id(word))
        return symbols

    def _unknown_id(self, text: str) -> int:
        try:
            return self.vocab[self._unknown]  # type: ignore[index]  # only asked for when there is one
        except KeyError:
            raise TokenizerError(f"{text!r} has no token, nor has the unknown token {self._unknown!r}") from None

    def _bytes(self, character: str) -> list[int]:
        """The tokens `<0x00>` ... of the character's UTF-8; empty when one of them is missing."""
        tokens = [self.vocab.get(f"<0x{byte:02X}>") for byte in character.encode("utf-8")]
        return [] if None in tokens else tokens  # type: ignore[return-value]  # no None in it

    def _merge(self, symbols: list[int]) -> list[int]:
        """Merge adjacent symbols until no merge applies: lowest rank first, leftmost of equals.

        A heap holds the candidate merges, a doubly linked list the symbols; O(n log n) for n symbols.
        """
        merges, size, count = self._merges, self._size, len(symbols)
        heap = [
            (merges[pair], left)
            for left, pair in enumerate(a * size + b for a, b in pairwise(symbols))
            if pair in merges
        ]
        if not heap:
            return symbols
        heapify(heap)
        after = list(range(1, count + 1))
        before = list(range(-1, count - 1))
        while heap:
            merge, left = heappop(heap)
            right = after[left]
            if symbols[left] < 0 or right == count:
                continue
            merged = merge % size
            # The pair may have changed since; what counts is that it still gives the same token.
            current = merges.get(symbols[left] * size + symbols[right])
            if current is None or current % size != merged:
                continue
            symbols[left], symbols[right] = merged, -1
            after[left] = following = after[right]
            if following < count:
                before[following] = left
                if (candidate := merges.get(merged * size + symbols[following])) is not None:
                    heappush(heap, (candidate, left))
            previous = before[left]
            if previous >= 0 and (candidate := merges.get(symbols[previous] * size + merged)) is not None:
                heappush(heap, (candidate, previous))
        return [symbol for symbol in symbols if symbol >= 0]


class _WordCache(dict[str, list[int]]):
    """Remembers the tokens of short words; starts anew when full."""

    def __init__(self, tokenize: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._tokenize = tokenize

    def __missing__(self, word: str) -> list[int]:
        tokens = self._tokenize(word)
        if len(word) <= _CACHED_LENGTH:
            if len(self) >= _CACHED_WORDS:
                self.clear()
            self[word] = tokens
        return tokens
