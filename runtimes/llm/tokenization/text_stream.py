"""Text of a growing sequence of tokens, piece by piece."""

from __future__ import annotations

from edgepipe.runtimes.llm.tokenization.base import Tokenizer
from edgepipe.runtimes.llm.tokenization.decoders import make_decoder


class TextStream:
    """Decodes token after token; each costs the same however long the text is, for nothing is decoded twice.

    The pieces joined are `tokenizer.decode(ids, skip_special_tokens)`, with one exception: where byte-fallback tokens
    (`<0xE4>`) are no valid UTF-8, characters that were whole stay, while `decode` turns the whole run of bytes into
    U+FFFD.

    >>> stream = TextStream(tokenizer)
    >>> "".join(map(stream.push, ids)) + stream.flush()
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        """Raises `TokenizerError` for a tokenizer whose decoder needs the whole text."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = make_decoder(tokenizer.decoder_spec, eager=True)

    def push(self, id: int) -> str:
        """The text that this token completes: whole characters, or "" while one is unfinished."""
        piece = self._tokenizer.piece(id, self._skip_special_tokens)
        return "" if piece is None else self._decoder.push(piece)

    def flush(self) -> str:
        """What is left (an unfinished character is U+FFFD). The stream is then ready for another text."""
        rest = self._decoder.flush()
        self._decoder = make_decoder(self._tokenizer.decoder_spec, eager=True)
        return rest
