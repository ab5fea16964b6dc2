"""What every tokenizer can do, whoever reads the file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from edgepipe.errors import TokenizerError
from edgepipe.runtimes.llm.tokenization.components import Spec
from edgepipe.runtimes.llm.tokenization.decoders import make_decoder


class Tokenizer(ABC):
    """Text to token ids and back.

    `special_ids` are the ids of the special tokens (`<|endoftext|>`, ...), `decoder_spec` is the "decoder" of
    tokenizer.json, `normalized` holds the added tokens that are looked for in normalized text, by id, in the form they
    have there: the one that decoding starts from.
    """

    special_ids: frozenset[int]
    decoder_spec: Spec | None
    normalized: dict[int, str]

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """One more than the highest token id, added tokens included."""

    @abstractmethod
    def find_token(self, id: int) -> str | None:
        """The token with this id, as the vocabulary spells it ("Ġthe", "▁the"), or None."""

    @abstractmethod
    def id(self, token: str) -> int | None:
        """The id of a token, spelt as in the vocabulary, or None."""

    @abstractmethod
    def _encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens spelt in the text count as such.

        `add_special_tokens` puts around it what the tokenizer prescribes (a beginning-of-text token, often nothing).
        Raises `TokenizerError` for text with lone surrogates (bytes that were no UTF-8 when it was read).
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"the text has U+{ord(text[error.start]):04X} at character {error.start}, which is half a character: "
                "give it as UTF-8"
            ) from None
        return self._encode(text, add_special_tokens)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Bytes that are no UTF-8 become U+FFFD; ids outside the vocabulary are left out."""
        decoder = make_decoder(self.decoder_spec, eager=False)
        pieces = (self.piece(id, skip_special_tokens) for id in ids)
        return "".join(decoder.push(piece) for piece in pieces if piece is not None) + decoder.flush()

    def piece(self, id: int, skip_special_tokens: bool) -> str | None:
        """What the decoder gets of a token; None for one to leave out."""
        if skip_special_tokens and id in self.special_ids:
            return None
        return self.normalized.get(id) or self.find_token(id)

    def token(self, id: int) -> str:
        """The token with this id, as the vocabulary spells it. Raises `TokenizerError` when there is none."""
        token = self.find_token(id)
        if token is None:
            raise TokenizerError(f"no token has the id {id}: the vocabulary ends at {self.vocab_size - 1}")
        return token
