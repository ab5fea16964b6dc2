"""A serial line on which every request is repeated until its answer comes."""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from edgepipe.devices.mcu_frames import ANSWER, Frame, FrameReader, Kind, Refusal, encode
from edgepipe.errors import DeviceUnreachable, MissingExtra

BAUD = 115200
ANSWER_S = 0.25
SILENCE_S = 5.0

# A piece of a window: long ones need fewer answers, short ones survive a bad line.
LONGEST_PIECE, SHORTEST_PIECE = 1024, 16
# So many requests in a row must be answered at once before pieces get longer again.
_CALM = 32
_POLL_S = 0.002
# A board that is starting hears nothing: until it has answered once, it is asked after so long, then twice as long, ...
_START_S = 0.02
# A frame without payload, as it goes over the line.
_SHORT_FRAME = 27
# Bits that a byte takes on the line: start, eight, stop.
_BITS = 10


class Refused(Exception):
    """The board has understood a request and refuses it."""

    def __init__(self, reason: int) -> None:
        super().__init__(f"the board refuses a request: reason {reason}")
        self.reason = reason


@dataclass
class LineStatistics:
    """What has gone over the line. Damaged frames are those received; resent ones are not known to be damaged.
    ``bytes_sent`` has all, ``bytes_resent`` those of requests made again."""

    bytes_sent: int = 0
    bytes_resent: int = 0
    bytes_received: int = 0
    frames_sent: int = 0
    frames_resent: int = 0
    frames_damaged: int = 0


class McuLine:
    """Requests to a board and their answers, over a serial port or any URL that pyserial opens."""

    def __init__(
        self,
        port: str,
        baud: int = BAUD,
        *,
        answer_s: float = ANSWER_S,
        silence_s: float = SILENCE_S,
        compute_s: float = 120.0,
        most_tries: int = 60,
        name: str | None = None,
    ) -> None:
        """Open the line.

        Args:
            port: ``/dev/ttyACM0``, ``COM3``, ``socket://host:port``.
            baud: bits a second.
            answer_s: seconds to wait for an answer, besides the time that its bytes take, before asking again.
            silence_s: seconds without a sound from the board after which it counts as silent.
            compute_s: seconds that a board may compute.
            most_tries: how often a request may fail, with a sound from the board, before the line counts as too bad.
            name: what errors call the board, the port if left out.

        Raises:
            DeviceUnreachable: the port is not there or is in use.
            MissingExtra: pyserial is not installed.
        """
        try:
            import serial
        except ImportError as error:
            raise MissingExtra("pyserial", "mcu") from error
        self.name, self.baud = name or port, baud
        self.answer_s, self.silence_s, self.compute_s, self.most_tries = answer_s, silence_s, compute_s, most_tries
        self.statistics = LineStatistics()
        self.piece_bytes = LONGEST_PIECE
        self._sequence = 0
        self._calm = 0
        self._has_answered = False
        self._computed_s = 0.0  # The longest that the board has computed for a request.
        self._reader = FrameReader()
        self._received: deque[Frame] = deque()
        self._failures = (serial.SerialException, OSError)
        if port.startswith("socket://") and not _has_host_and_port(port):
            raise DeviceUnreachable(f"{port} is no address: expected socket://HOST:PORT, as in socket://localhost:5555")
        try:
            self._serial: Any = serial.serial_for_url(
                port, baudrate=baud, timeout=_POLL_S, write_timeout=silence_s, exclusive=True
            )
        except (*self._failures, ValueError, OverflowError) as error:
            raise DeviceUnreachable(f"{port} cannot be opened ({_reason(error)}): {_advice(port, error)}") from error

    def close(self) -> None:
        """Close the line."""
        self._serial.close()

    def ask(self, request: Callable[[], Frame]) -> Frame:
        """The answer to a request.

        Args:
            request: makes the frame for each try, without its sequence number; a later one's payload may be shorter.

        Raises:
            Refused: the board says why.
            DeviceUnreachable: it is silent, busy for too long or unplugged, or the line is too bad.
        """
        first = self._sequence + 1
        wait_s = self.answer_s if self._has_answered else min(_START_S, self.answer_s)
        heard, busy_since, failures = monotonic(), None, 0
        while failures < self.most_tries:
            heard_before = heard
            asked = request()
            sent_s = self._seconds(self._send(asked, again=self._sequence >= first))
            passed_on = monotonic() + sent_s
            deadline = passed_on + wait_s + self._seconds(2 * LONGEST_PIECE)
            if busy_since is not None:
                deadline = min(deadline, busy_since + self.compute_s)
            while (frame := self._next_frame(deadline)) is not None:
                heard = monotonic()
                if frame.kind == Kind.DAMAGED and busy_since is None:
                    # A board is deaf while it tells of damage, which it may do once more at the end of this request.
                    deadline = min(deadline, max(heard, passed_on) + self._seconds(_SHORT_FRAME))
                elif not first <= frame.sequence <= self._sequence or frame.session != asked.session:
                    continue  # it answers an earlier request, maybe of a program that has ended half-way
                elif frame.kind == Kind.BUSY:
                    busy_since = busy_since or heard
                    deadline = max(deadline, heard + wait_s + self._computed_s)
                elif frame.kind == Kind.REFUSED:
                    raise Refused(frame.payload[0] if frame.payload else Refusal.UNKNOWN)
                elif frame.kind == asked.kind + ANSWER:
                    if frame.sequence == first and busy_since is not None:
                        self._computed_s = max(self._computed_s, heard - busy_since)
                    self._has_answered = True
                    if self._sequence == first:
                        self._recover()
                    return frame
            failures += heard > heard_before
            if busy_since is not None:
                wait_s *= 2
                if monotonic() - busy_since > self.compute_s:
                    raise DeviceUnreachable(f"{self.name} has computed for {self.compute_s:g} s: reset the board")
                continue
            if self._has_answered:
                self._suffer()
            else:
                wait_s = min(2 * wait_s, self.answer_s)
            if monotonic() - heard > self.silence_s:
                break
        if failures < self.most_tries or not self._has_answered:
            raise DeviceUnreachable(
                f"{self.name} does not answer at {self.baud} baud: see that the board is on, that its baud rate is "
                f"this one and that it runs the bundle's firmware"
            )
        raise DeviceUnreachable(
            f"{self.name} is a bad line: a request failed {self.most_tries} times, {self.statistics.frames_damaged} "
            f"frames came damaged; take a lower --baud or a shorter cable"
        )

    def _send(self, frame: Frame, again: bool) -> int:
        """Send a frame under the next sequence number; returns how many bytes it takes."""
        self._sequence += 1
        content = encode(Frame(frame.kind, frame.session, self._sequence, frame.tile, frame.offset, frame.payload))
        try:
            self._serial.write(content)
        except self._failures as error:
            raise self._unplugged(error) from error
        self.statistics.bytes_sent += len(content)
        self.statistics.bytes_resent += len(content) if again else 0
        self.statistics.frames_sent += 1
        self.statistics.frames_resent += again
        return len(content)

    def _next_frame(self, deadline: float) -> Frame | None:
        """The next frame that comes before the deadline."""
        while not self._received:
            try:
                content = self._serial.read(max(1, self._serial.in_waiting))
            except self._failures as error:
                raise self._unplugged(error) from error
            self.statistics.bytes_received += len(content)
            self._received.extend(self._reader.take(content))
            self.statistics.frames_damaged = self._reader.damaged
            if not content and monotonic() > deadline:
                return None
        return self._received.popleft()

    def _seconds(self, size: int) -> float:
        """How long so many bytes are on the line."""
        return _BITS * size / self.baud

    def _suffer(self) -> None:
        self._calm = 0
        self.piece_bytes = max(SHORTEST_PIECE, self.piece_bytes // 2)

    def _recover(self) -> None:
        self._calm += 1
        if self._calm >= _CALM:
            self._calm = 0
            self.piece_bytes = min(LONGEST_PIECE, self.piece_bytes * 2)

    def _unplugged(self, error: Exception) -> DeviceUnreachable:
        return DeviceUnreachable(f"{self.name} is gone ({_reason(error)}): plug the board in and run again")


def _reason(error: Exception) -> str:
    """What the system said, out of what pyserial has wrapped around it."""
    said = re.findall(r"\[Errno -?\d+\] ([^:'\[]+)|\(\d+, '([^']+)'\)", str(error))
    return next(filter(None, said[-1])) if said else str(error).strip().partition("\n")[0].partition(" (")[0]


def _advice(port: str, error: Exception) -> str:
    """What to do about a port that cannot be opened."""
    from serial.tools import list_ports

    if "://" in port:
        return "see that this is where it answers"
    number = getattr(error, "errno", None)
    if number in (errno.EAGAIN, errno.EBUSY):
        return "another program uses it, close that"
    if number == errno.EACCES:
        return f"sudo usermod -aG {_group(port)} $USER, then log in again"
    found = sorted(port.device for port in list_ports.comports())
    return f"the ports here are {', '.join(found)}" if found else "no serial port is here, plug the board in"


def _has_host_and_port(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname and parts.port)
    except ValueError:
        return False


def _group(port: str) -> str:
    """Whose members may use a serial port."""
    try:
        import grp

        return grp.getgrgid(os.stat(port).st_gid).gr_name
    except (ImportError, KeyError, OSError):  # Windows; a group without a name; a port that is gone
        return "dialout"
