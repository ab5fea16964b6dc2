"""The tokenizer of the `tokenizers` package, behind our interface."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

from edgepipe.errors import MissingExtra, TokenizerError
from edgepipe.runtimes.llm.tokenization.base import Tokenizer


class RustTokenizer(Tokenizer):
    """A thin adapter: the package encodes; decoding is ours, the same for texts and streams and with all its versions.

    Truncation and padding, which the file may ask for, are off: a prompt is never cut silently.
    """

    def __init__(self, path: Path) -> None:
        """Read a tokenizer.json. Raises `TokenizerError` naming the file, `MissingExtra` without the package."""
        try:
            from tokenizers import Tokenizer as Tokenizers
        except ImportError:
            raise MissingExtra("tokenizers", "tokenizers") from None
        try:
            self._tokenizer = Tokenizers.from_file(str(path))
        except Exception as error:  # the package raises nothing narrower
            raise TokenizerError(f"{path} cannot be read ({error}); copy it again") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        decoder = self._tokenizer.decoder
        self.decoder_spec = json.loads(decoder.__getstate__()) if decoder is not None else None
        added = self._tokenizer.get_added_tokens_decoder()
        normalizer = self._tokenizer.normalizer
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self.normalized = {
            id: normalizer.normalize_str(token.content)
            for id, token in added.items()
            if token.normalized and normalizer is not None
        }
        self._added = {id: token.content for id, token in added.items()}

    @cached_property
    def vocab_size(self) -> int:  # cached, for it takes a copy of the vocabulary
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def find_token(self, id: int) -> str | None:
        # Of an added token, the package spells the normalized form in some versions.
        return self._added.get(id) or (self._tokenizer.id_to_token(id) if id >= 0 else None)

    def id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
