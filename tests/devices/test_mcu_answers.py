"""Answers that are not what was asked for, and addresses at which nothing can answer."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from edgepipe.devices.mcu import PROTOCOL_VERSION, open_mcu
from edgepipe.devices.mcu_frames import ANSWER, Frame, FrameReader, Kind, encode
from edgepipe.errors import DeviceUnreachable

pytest.importorskip("serial")


@pytest.mark.parametrize(
    "place", ["", "localhost", "localhost:", "localhost:x", "localhost:0", "localhost:65536", ":1"]
)
def test_what_is_no_address(place: str) -> None:
    with pytest.raises(DeviceUnreachable, match=rf"^socket://{place} is no address: expected socket://HOST:PORT"):
        open_mcu(f"socket://{place}", 115200, None)


@contextlib.contextmanager
def answering(answers: Callable[[Frame], list[Frame]]) -> Iterator[str]:
    """A port at which each request is answered with such frames."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, reader = server.accept()[0], FrameReader()
            with client:
                while received := client.recv(4096):
                    for request in reader.take(received):
                        client.sendall(b"".join(map(encode, answers(request))))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"socket://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


HELLO = struct.pack("<9I", PROTOCOL_VERSION, 1, 4, 1, 4, 1024, 0, 168, 1) + b"f" * 64


@pytest.mark.parametrize(
    "stale",
    [
        Frame(Kind.RUN + ANSWER, session=7, payload=bytes(8)),  # of a program that was killed while the board computed
        Frame(Kind.OUTPUT + ANSWER, payload=HELLO[:1]),
        Frame(Kind.HELLO + ANSWER, session=7, payload=b"no greeting"),
        Frame(Kind.REFUSED, session=7, payload=b"\1"),
        Frame(Kind.BUSY, session=7),
    ],
)
def test_answers_to_other_requests_are_passed_over(stale: Frame) -> None:
    """Whatever their sequence number, which every program counts from its own beginning."""

    def answers(request: Frame) -> list[Frame]:
        greeting = Frame(Kind.HELLO + ANSWER, sequence=request.sequence, payload=HELLO)
        return [replace(stale, sequence=request.sequence), greeting]

    with answering(answers) as port, open_mcu(port, 10**7, "f" * 64) as mcu:
        assert mcu.firmware.clock_mhz == 168


def test_a_board_that_knows_no_request() -> None:
    """Of another kind, or one that answers with less than is expected."""

    def refuse(request: Frame) -> list[Frame]:
        return [Frame(Kind.REFUSED, sequence=request.sequence, payload=b"\3")]

    def half_knows(request: Frame) -> list[Frame]:
        content = HELLO if request.kind == Kind.HELLO else b"\1\2"
        return [Frame(request.kind + ANSWER, sequence=request.sequence, payload=content)]

    with answering(refuse) as port, pytest.raises(DeviceUnreachable, match="speaks version None of the protocol"):
        open_mcu(port, 10**7, None)
    unknown = pytest.raises(DeviceUnreachable, match="does not know a request: build its firmware again")
    with answering(half_knows) as port, open_mcu(port, 10**7, None) as mcu, unknown:
        mcu.memory()
