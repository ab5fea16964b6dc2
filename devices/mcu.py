"""A microcontroller that runs a bundle's firmware, driven over a serial line, patch by patch."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from edgepipe.devices.mcu_frames import Frame, Kind, Refusal
from edgepipe.devices.mcu_line import ANSWER_S, SILENCE_S, McuLine, Refused
from edgepipe.errors import DeviceUnreachable
from edgepipe.runtimes.vision.plan import VisionPlan
from edgepipe.runtimes.vision.windows import Image, whole_image, windows

PROTOCOL_VERSION = 2
# How often an inference begins anew when the board has forgotten it.
_STARTS = 3
_HELLO = struct.Struct("<8I?3x")
_NUMBER = struct.Struct("<I")
_CYCLES = struct.Struct("<Q")
_LAYER = struct.Struct("<IQB")
_MEMORY = struct.Struct("<4I")


@dataclass(frozen=True)
class Firmware:
    """What a board says of its firmware: the model's hash, how many tiles, bytes of image, output, window, payload, how
    many layers, the clock that it counts cycles of, and whether it is emulated, so that this clock tells no time."""

    model_hash: str
    tiles: int
    input_bytes: int
    output_bytes: int
    largest_patch_bytes: int
    payload_bytes: int
    layers: int
    clock_mhz: int
    is_emulated: bool


@dataclass(frozen=True)
class BoardMemory:
    """Bytes: the arena as planned, its painted peak, the stack's room, its painted peak."""

    arena_bytes: int
    arena_peak_bytes: int
    stack_bytes: int
    stack_peak_bytes: int


class LayerCycles(NamedTuple):
    """How often a layer ran in an inference, and how many cycles of the board's clock that took."""

    name: str
    calls: int
    cycles: int


class Inference(NamedTuple):
    """``output``: the bytes. ``step_cycles``: that the board computed for each tile, and for the rest of the model at
    the end; the line's time is not in them."""

    output: bytes
    step_cycles: tuple[int, ...]
    layers: tuple[LayerCycles, ...]


@dataclass(frozen=True, eq=False)
class BoardAnswer:
    """One inference. ``output``: codes, of the plan's shape and type; the rest as in `Inference`."""

    output: np.ndarray
    step_cycles: tuple[int, ...]
    layers: tuple[LayerCycles, ...]
    memory: BoardMemory


class Mcu:
    """A board on an open line, to be used as a context manager. ``firmware``: what it says of itself."""

    def __init__(self, line: McuLine, model_hash: str | None) -> None:
        """Ask what runs on the board.

        Args:
            line: to the board; closed with this.
            model_hash: what must run there, as ``EDGEPIPE_MODEL_HASH`` of the bundle's firmware; None takes any.

        Raises:
            DeviceUnreachable: the board does not answer, or runs something else.
        """
        self.line = line
        try:
            self.firmware = self._hello(model_hash)
        except BaseException:
            line.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.line.close()

    def run(self, plan: VisionPlan, image: Image) -> BoardAnswer:
        """The model's output for an image of codes; no more of it is held than a row of windows needs.

        An array is sent again from its beginning if the board has restarted half-way; rows, which come once, are not.

        Raises:
            ImageError: the image is not of the model's shape or type; too few rows come, or too many.
            DeviceUnreachable: the board is silent, unplugged, or its firmware was not made for this plan.
        """
        inference = self.infer(
            lambda: self._windows(plan, image), starts=_STARTS if isinstance(image, np.ndarray) else 1
        )
        if len(inference.output) != plan.output.nbytes:
            raise self._another_plan(f"gives {len(inference.output)} bytes", f"{plan.output.nbytes}")
        codes = np.frombuffer(inference.output, plan.output.dtype).reshape(plan.output.shape)
        return BoardAnswer(codes, inference.step_cycles, inference.layers, self.memory())

    def infer(self, patches: Callable[[], Iterable[bytes]], *, starts: int = _STARTS) -> Inference:
        """The model's output for patches that are sent one after the other, and what it took.

        Args:
            patches: gives every tile's window, in order, for each start.
            starts: how often to begin if the board forgets what it has.

        Raises:
            DeviceUnreachable: it does not come to an end.
        """
        for _ in range(starts):
            try:
                return self._infer(secrets.randbits(32), patches())
            except Refused as refused:
                reason = refused.reason
        if reason == Refusal.UNKNOWN:
            raise self._unknown_request()
        raise DeviceUnreachable(
            f"{self.line.name} has lost the image half-way, it was reset or another program uses it: run again"
        )

    def _infer(self, session: int, patches: Iterable[bytes]) -> Inference:
        self._ask(Frame(Kind.BEGIN, session))
        clock = [0]
        tile = 0
        for tile, patch in enumerate(patches, 1):
            self._send_patch(session, tile - 1, patch)
            clock.append(self._compute(session, tile - 1))
        clock.append(self._compute(session, tile))
        step_cycles = tuple(after - before for before, after in pairwise(clock))
        return Inference(self._output(session), step_cycles, tuple(self._layers(session)))

    def _send_patch(self, session: int, tile: int, patch: bytes) -> None:
        """Send a window piece by piece, from where the board says that it has come to."""
        offset = 0
        while offset < len(patch):
            answer = self.line.ask(partial(self._piece, session, tile, offset, patch))
            if answer.tile != tile or not offset < answer.offset <= len(patch):
                raise Refused(Refusal.OUT_OF_ORDER)
            offset = answer.offset

    def _piece(self, session: int, tile: int, offset: int, patch: bytes) -> Frame:
        size = min(self.line.piece_bytes, self.firmware.payload_bytes)
        return Frame(Kind.PATCH, session, tile=tile, offset=offset, payload=patch[offset : offset + size])

    def _compute(self, session: int, tile: int) -> int:
        """Have a tile computed; returns the cycles that the inference has taken since it began."""
        answer = self._ask(Frame(Kind.RUN, session, tile=tile))
        if len(answer.payload) != _CYCLES.size:
            raise Refused(Refusal.UNKNOWN)
        elapsed: int = _CYCLES.unpack(answer.payload)[0]
        return elapsed

    def _output(self, session: int) -> bytes:
        output = b""
        while len(output) < self.firmware.output_bytes:
            answer = self.line.ask(partial(self._wanted, Kind.OUTPUT, session, len(output)))
            if answer.offset != len(output) or not answer.payload:
                raise Refused(Refusal.OUT_OF_ORDER)
            output += answer.payload
        return output

    def _layers(self, session: int) -> list[LayerCycles]:
        layers: list[LayerCycles] = []
        while len(layers) < self.firmware.layers:
            answer = self.line.ask(partial(self._wanted, Kind.LAYERS, session, len(layers)))
            if answer.offset != len(layers) or len(answer.payload) < _LAYER.size:
                raise Refused(Refusal.OUT_OF_ORDER)
            place = 0
            while place + _LAYER.size <= len(answer.payload):
                calls, cycles, length = _LAYER.unpack_from(answer.payload, place)
                place += _LAYER.size + length
                name = answer.payload[place - length : place].decode("ascii", "replace")
                layers.append(LayerCycles(name, calls, cycles))
        return layers

    def _wanted(self, kind: Kind, session: int, offset: int) -> Frame:
        return Frame(kind, session, offset=offset, payload=struct.pack("<H", self.line.piece_bytes))

    def memory(self) -> BoardMemory:
        """How much of its memory the board has used: of the arena since the inference began, of the stack ever.

        Raises:
            DeviceUnreachable: it does not answer.
        """
        payload = self._told(Kind.MEMORY)
        if len(payload) != _MEMORY.size:
            raise self._unknown_request()
        return BoardMemory(*_MEMORY.unpack(payload))

    def _told(self, kind: Kind) -> bytes:
        """What the board answers to a question that needs no inference; nothing if it does not know the question."""
        try:
            return self._ask(Frame(kind)).payload
        except Refused:
            return b""

    def _ask(self, request: Frame) -> Frame:
        return self.line.ask(lambda: request)

    def _hello(self, model_hash: str | None) -> Firmware:
        payload = self._told(Kind.HELLO)
        version = _NUMBER.unpack_from(payload)[0] if len(payload) >= _NUMBER.size else None
        if version != PROTOCOL_VERSION or len(payload) < _HELLO.size:
            raise DeviceUnreachable(
                f"{self.line.name} speaks version {version} of the protocol, this edgepipe {PROTOCOL_VERSION}: "
                f"export the bundle again, then edgepipe flash BUNDLE"
            )
        found = payload[_HELLO.size :].decode("ascii", "replace")
        if model_hash not in (None, found):
            raise DeviceUnreachable(
                f"{self.line.name} runs another model ({found[:12]}), the bundle's is {model_hash[:12]}: "
                f"edgepipe flash BUNDLE"
            )
        return Firmware(found, *_HELLO.unpack_from(payload)[1:])

    def _windows(self, plan: VisionPlan, image: Image) -> Iterator[bytes]:
        """What the board takes: the windows of its tiles, or the image as its only one."""
        if plan.mode == "streamed" and plan.stage is not None:
            if self.firmware.tiles != len(plan.tiles):
                raise self._another_plan(f"has {self.firmware.tiles} tiles", f"{len(plan.tiles)}")
            for _, window in windows(plan, image):
                yield window.tobytes()
            return
        if self.firmware.tiles != 1:
            raise self._another_plan(f"has {self.firmware.tiles} tiles", "1")
        if self.firmware.input_bytes != plan.input.nbytes:
            raise self._another_plan(f"takes {self.firmware.input_bytes} bytes", f"{plan.input.nbytes}")
        yield whole_image(plan, image).tobytes()

    def _unknown_request(self) -> DeviceUnreachable:
        return DeviceUnreachable(f"{self.line.name} does not know a request: build its firmware again")

    def _another_plan(self, found: str, expected: str) -> DeviceUnreachable:
        return DeviceUnreachable(
            f"the firmware on {self.line.name} {found}, plan.json says {expected}: edgepipe flash BUNDLE"
        )


def open_mcu(port: str, baud: int, model_hash: str | None, *, slowness: float = 1.0, name: str | None = None) -> Mcu:
    """The board on a serial port, or on any URL that pyserial opens; as `McuLine` and `Mcu` take them.

    ``slowness``: how many times longer than usual to wait for it. ``name``: what errors call it.

    Raises:
        DeviceUnreachable: there is none, it is silent, or runs another model.
        MissingExtra: pyserial is not installed.
    """
    line = McuLine(port, baud, answer_s=ANSWER_S * slowness, silence_s=SILENCE_S * slowness, name=name)
    return Mcu(line, model_hash)
