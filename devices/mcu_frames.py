"""Frames on the serial line to a microcontroller: runtimes/mcu/firmware/frame.h says what they are."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

MARK = 0xED
ANSWER = 0x80
# kind, session, sequence, tile, offset, length
_HEADER = struct.Struct("<BIIIIH")
_CRC = struct.Struct("<I")
# No answer is longer: 1 KiB of payload unless the firmware was built with more, at most two bytes of length.
_LONGEST = 2**16 + 2**10


class Kind(IntEnum):
    """What a frame asks for or answers; a request is answered with its kind + ``ANSWER``, or one of the last three."""

    HELLO = 1
    BEGIN = 2
    PATCH = 3
    RUN = 4
    OUTPUT = 5
    MEMORY = 6
    LAYERS = 7
    BUSY = 0xF0
    REFUSED = 0xF1
    DAMAGED = 0xF2


class Refusal(IntEnum):
    """Why a board refuses a request."""

    OTHER_SESSION = 1
    OUT_OF_ORDER = 2
    UNKNOWN = 3


@dataclass(frozen=True)
class Frame:
    """One frame. ``tile`` and ``offset`` are a place in an inference; ``kind`` is a `Kind`, or one + ``ANSWER``."""

    kind: int
    session: int = 0
    sequence: int = 0
    tile: int = 0
    offset: int = 0
    payload: bytes = b""


def encode(frame: Frame) -> bytes:
    """The bytes of a frame, from zero to zero."""
    header = _HEADER.pack(frame.kind, frame.session, frame.sequence, frame.tile, frame.offset, len(frame.payload))
    checked = header + frame.payload
    return bytes((0, MARK)) + stuff(checked + _CRC.pack(zlib.crc32(checked))) + b"\0"


def decode(piece: bytes) -> Frame | None:
    """The frame in what stood between two zeros; None if it is damaged, or no frame."""
    content = unstuff(piece[1:]) if piece[:1] == bytes((MARK,)) else None
    if content is None or len(content) < _HEADER.size + _CRC.size:
        return None
    checked, crc = content[: -_CRC.size], content[-_CRC.size :]
    kind, session, sequence, tile, offset, length = _HEADER.unpack_from(checked)
    payload = checked[_HEADER.size :]
    if len(payload) != length or zlib.crc32(checked) != _CRC.unpack(crc)[0]:
        return None
    return Frame(kind, session, sequence, tile, offset, payload)


def stuff(content: bytes) -> bytes:
    """Bytes without zeros that stand for any bytes: COBS (Cheshire and Baker, 1999)."""
    stuffed = bytearray()
    pieces = content.split(b"\0")
    for index, piece in enumerate(pieces):
        is_last = index + 1 == len(pieces)
        while len(piece) > 254 or (len(piece) == 254 and not is_last):
            stuffed += b"\xff" + piece[:254]
            piece = piece[254:]
        stuffed += bytes((len(piece) + 1,)) + piece
    return bytes(stuffed)


def unstuff(stuffed: bytes) -> bytes | None:
    """What `stuff` was given; None if no bytes give that."""
    content = bytearray()
    place = 0
    while place < len(stuffed):
        count = stuffed[place]
        end = place + count
        if count == 0 or end > len(stuffed):
            return None
        content += stuffed[place + 1 : end]
        if count < 255 and end < len(stuffed):
            content.append(0)
        place = end
    return bytes(content)


class FrameReader:
    """Frames out of a stream of bytes; text between them is left out. ``damaged``: how many pieces were neither."""

    def __init__(self) -> None:
        self.damaged = 0
        self._piece = bytearray()

    def take(self, received: bytes) -> list[Frame]:
        """The frames that end in these bytes; a damaged one reads as if the board had told of damage."""
        *ended, begun = (self._piece + received).split(b"\0")
        self._piece = begun[:_LONGEST]
        frames = [decode(bytes(piece)) for piece in ended if not piece.isascii()]
        self.damaged += frames.count(None)
        return [frame or Frame(Kind.DAMAGED) for frame in frames]
