"""What report.json holds of a microcontroller, besides what all reports have."""

from __future__ import annotations

from typing import TypedDict

from edgepipe.pipeline.statistics import Series

BOARD_DEFINITIONS = {
    "us": "microseconds that a real board computed, by its clock (cycles / clock_mhz), without the line's time",
    "instructions": "that an emulated board computed, as QEMU counts them (-icount): no cycles, and no time",
    "compute": "an image; steps are its patches and then the tail, layers hold all patches: shares of it",
    "latency_ms": "an image's codes to its output, by the line; transfer_ms: the same less what the board computed",
    "line": "bytes and frames of each repetition; damaged: those that came back, resent: requests made again",
    "planned_arena_bytes": "by plan.json; linked: by the linker's map; painted: to the last byte written over",
}


class BoardSeries(TypedDict):
    """Work of a board in one of two units; the series in the other is None, as is a real board's ``instructions``."""

    us: Series | None
    instructions: Series | None


class BoardStep(BoardSeries):
    """One call of the firmware: a patch, or the tail."""

    step: str


class BoardLayer(BoardSeries):
    """A layer in all patches: ``calls`` of it in an image, and its ``share`` of all layers."""

    layer: str
    calls: int
    share: float


class BoardMemoryReport(TypedDict):
    """Bytes: the arena as planned, as linked, and as painted over; the stack's room and as much of it as was used;
    flash and RAM as linked, and what the board has."""

    planned_arena_bytes: int
    firmware_arena_bytes: int
    linked_arena_bytes: int | None
    painted_arena_bytes: int
    stack_bytes: int
    painted_stack_bytes: int
    linked_ram_bytes: int | None
    linked_flash_bytes: int | None
    sram_bytes: int
    flash_bytes: int
    unreadable: dict[str, str]


class BoardOutput(TypedDict):
    """Whether all repetitions gave one output; in how many bytes, and by how many codes at most, any differed from the
    bundle's golden one."""

    is_always_the_same: bool
    differing_bytes: int | None
    max_difference: int | None
    unreadable: dict[str, str]


class BoardReport(TypedDict):
    """A firmware's answers to one image, again and again. ``clock_mhz``: of which it counts cycles.

    ``is_emulated``: also where an emulator stands behind a port, and what is called time is none: a gate fails then.
    """

    device: str
    is_emulated: bool
    clock_mhz: int
    grid: list[int]
    compute: BoardSeries
    steps: list[BoardStep]
    layers: list[BoardLayer]
    latency_ms: Series | None
    transfer_ms: Series | None
    line: list[dict[str, int]]
    memory: BoardMemoryReport
    output: BoardOutput
    unreadable: dict[str, str]
