"""The 256 printable characters that stand for bytes in byte-level BPE (Radford et al. 2019, GPT-2)."""

from __future__ import annotations

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

CHARACTER_OF_BYTE = {byte: chr(byte) for byte in _PRINTABLE} | {b: chr(256 + i) for i, b in enumerate(_OTHERS)}
"""Printable Latin-1 bytes stand for themselves, the others for U+0100, U+0101, ... in order."""

BYTE_OF_CHARACTER = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}


def to_characters(text: str) -> str:
    """The UTF-8 bytes of `text`, a character for each."""
    return text.encode("utf-8").decode("latin-1").translate(CHARACTER_OF_BYTE)


def to_bytes(token: str) -> bytes:
    """The bytes a token stands for; a token with any other character (an added one) stands for its own UTF-8."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode("utf-8")
