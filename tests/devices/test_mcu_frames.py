"""Frames against their definition: COBS by the paper's rules, CRC-32 and fields by hand."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepipe.devices.mcu_frames import Frame, FrameReader, Kind, decode, encode, stuff, unstuff

# Runs of zeros and of 253 to 255 others are where COBS has its corners.
CONTENTS = st.lists(
    st.one_of(st.binary(max_size=9), st.sampled_from([b"\0", b"\0\0\0", b"x" * 253, b"y" * 254, b"z" * 255])),
    max_size=6,
).map(b"".join)

FRAMES = st.builds(
    Frame,
    st.sampled_from([*Kind]).map(int),
    *[st.integers(0, 2**32 - 1)] * 4,
    CONTENTS,
)


def by_the_paper(stuffed: bytes) -> bytes:
    """Section III of Cheshire and Baker: a code n stands for n - 1 bytes and a zero, 255 for 254 bytes and no zero;
    the zero at the end is not there."""
    content = b""
    while stuffed:
        code = stuffed[0]
        content += stuffed[1:code] + (b"\0" if code < 255 else b"")
        last, stuffed = code, stuffed[code:]
    return content[:-1] if last < 255 else content


@pytest.mark.parametrize(
    ("content", "stuffed"),
    [
        (b"", b"\x01"),
        (b"\0", b"\x01\x01"),
        (b"\0\0", b"\x01\x01\x01"),
        (b"\x11\x22\0\x33", b"\x03\x11\x22\x02\x33"),
        (b"\x11\0\0\0", b"\x02\x11\x01\x01\x01"),
        (bytes(range(1, 255)), b"\xff" + bytes(range(1, 255))),
        (bytes(range(256)), b"\x01\xff" + bytes(range(1, 255)) + b"\x02\xff"),
    ],
)
def test_stuffing_known_contents(content: bytes, stuffed: bytes) -> None:
    assert stuff(content) == stuffed
    assert unstuff(stuffed) == content


@given(CONTENTS)
def test_stuffing_takes_zeros_out_and_puts_them_back(content: bytes) -> None:
    stuffed = stuff(content)
    assert 0 not in stuffed
    assert len(stuffed) <= len(content) + len(content) // 254 + 1
    assert by_the_paper(stuffed) == content
    assert unstuff(stuffed) == content


@given(st.binary(max_size=40))
def test_unstuffing_anything(stuffed: bytes) -> None:
    content = unstuff(stuffed)
    assert content is None or len(content) < max(1, len(stuffed))


@given(FRAMES)
def test_a_frame_has_these_fields_in_this_order(frame: Frame) -> None:
    encoded = encode(frame)
    assert (encoded[0], encoded[1], encoded[-1], encoded.count(0)) == (0, 0xED, 0, 2)
    content = by_the_paper(encoded[2:-1])
    fields = (frame.kind, frame.session, frame.sequence, frame.tile, frame.offset, len(frame.payload))
    assert struct.unpack("<BIIIIH", content[:19]) == fields
    assert content[19:-4] == frame.payload
    assert int.from_bytes(content[-4:], "little") == zlib.crc32(content[:-4])
    assert decode(encoded[1:-1]) == frame


@given(FRAMES, st.data())
def test_no_flip_drop_or_double_goes_unseen(frame: Frame, data: st.DataObject) -> None:
    piece = encode(frame)[1:-1]
    place = data.draw(st.integers(0, len(piece) - 1))
    flipped = bytearray(piece)
    flipped[place] ^= data.draw(st.integers(1, 255))
    dropped, doubled = piece[:place] + piece[place + 1 :], piece[: place + 1] + piece[place:]
    for damaged in (bytes(flipped), dropped, doubled):
        assert decode(damaged) is None or damaged == piece


@given(st.lists(FRAMES, max_size=4), st.integers(1, 50))
def test_a_reader_finds_frames_wherever_the_stream_is_cut(frames: list[Frame], size: int) -> None:
    stream = b"m-ready\r\n" + b"m-init-done\r\n".join(map(encode, frames))
    reader = FrameReader()
    found = [frame for begin in range(0, len(stream), size) for frame in reader.take(stream[begin : begin + size])]
    assert found == frames
    assert reader.damaged == 0


def test_a_reader_tells_of_damage_and_goes_on() -> None:
    good, bad = encode(Frame(Kind.BEGIN, 7)), bytearray(encode(Frame(Kind.BEGIN, 8)))
    bad[4] ^= 2
    reader = FrameReader()
    assert reader.take(bytes(bad) + good) == [Frame(Kind.DAMAGED), Frame(Kind.BEGIN, 7)]
    assert reader.damaged == 1
