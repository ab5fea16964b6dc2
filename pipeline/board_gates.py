"""The conditions that a board's measurement must meet to be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgepipe.pipeline.board_report import BoardReport
from edgepipe.pipeline.gates import Gate, gate, samples, variation
from edgepipe.pipeline.statistics import Summary

# LiteRT rounds fully connected layers in floating-point, where TensorFlow Lite Micro and the firmware do not.
MAX_DIFFERENCE = 1
# An arena ends at a multiple of 16 bytes, and some bytes at its end may hold by chance what it was painted with.
MAX_UNPAINTED_BYTES = 15 + 4


def judge_board(board: BoardReport) -> list[Gate]:
    """All gates."""
    series = timed_series(board)
    return [variation(series), samples(series), clock(board), output(board), memory(board), line(board)]


def timed_series(board: BoardReport) -> dict[str, Summary]:
    """The series that gates look at, by name; those of steps and layers are parts of them."""
    found = {"computing an image": board["compute"]["us"] or board["compute"]["instructions"]}
    found["an image over the line"] = board["latency_ms"]
    return {name: series["statistics"] for name, series in found.items() if series is not None}


def clock(board: BoardReport) -> Gate:
    """The board's clock goes with the host's: no image takes longer to compute than it takes in all."""
    limit = "computing an image takes no longer, by the board's clock, than by the host's"
    latency, compute = board["latency_ms"], board["compute"]["us"]
    if board["is_emulated"] and latency is not None:
        return gate(
            "clock", limit, "failed", "the board is emulated, its clock tells no time: take --device qemu:BOARD"
        )
    if latency is None or compute is None:
        return gate("clock", limit, "unknown", board["unreadable"]["latency_ms"])
    shares = [us / 1000 / ms for us, ms in zip(compute["samples"], latency["samples"], strict=True)]
    found = f"{max(shares):.0%} of the host's time at most"
    return gate("clock", limit, "failed" if max(shares) > 1 else "passed", found)


def output(board: BoardReport) -> Gate:
    """Every repetition gives the bundle's golden output."""
    limit = f"always the same, within {MAX_DIFFERENCE} code of the bundle's golden output"
    found = board["output"]
    if not found["is_always_the_same"]:
        return gate("output", limit, "failed", "the repetitions differ")
    if found["max_difference"] is None:
        return gate("output", limit, "unknown", found["unreadable"]["max_difference"])
    said = f"{found['differing_bytes']} bytes differ, by {found['max_difference']} at most"
    return gate("output", limit, "failed" if found["max_difference"] > MAX_DIFFERENCE else "passed", said)


def memory(board: BoardReport) -> Gate:
    """Plan, linker and paint agree, and it all fits the board."""
    limit = f"arena as planned, painted to its last {MAX_UNPAINTED_BYTES} bytes; stack, RAM and flash with room"
    found = board["memory"]
    planned, painted = found["planned_arena_bytes"], found["painted_arena_bytes"]
    wrong = []
    if found["firmware_arena_bytes"] != planned:
        wrong.append(f"the firmware's arena has {found['firmware_arena_bytes']} bytes, {planned} are planned")
    if not planned - MAX_UNPAINTED_BYTES <= painted <= planned:
        wrong.append(f"the arena is painted to {painted} of {planned} bytes")
    if found["painted_stack_bytes"] >= found["stack_bytes"]:
        wrong.append(f"all {found['stack_bytes']} bytes of the stack were used")
    facts: Mapping[str, Any] = found
    for linked, most, what in (
        ("linked_ram_bytes", found["sram_bytes"], "RAM"),
        ("linked_flash_bytes", found["flash_bytes"], "flash"),
    ):
        if facts[linked] is not None and facts[linked] > most:
            wrong.append(f"{facts[linked]} bytes of {what} are linked, the board has {most}")
    if found["linked_arena_bytes"] not in (None, planned):
        wrong.append(f"the linker's map has an arena of {found['linked_arena_bytes']} bytes, {planned} are planned")
    if wrong:
        return gate("memory", limit, "failed", *wrong)
    details = [f"arena {painted} of {planned} bytes, stack {found['painted_stack_bytes']} of {found['stack_bytes']}"]
    if found["linked_arena_bytes"] is None:
        reason = found["unreadable"]["linked_arena_bytes"]
        return gate("memory", limit, "unknown", *details, f"no linker's map: {reason}")
    return gate("memory", limit, "passed", *details, "the linker's map agrees")


def line(board: BoardReport) -> Gate:
    """The line damages nothing: what is sent again takes time."""
    damaged = sum(repetition["frames_damaged"] for repetition in board["line"])
    sent = sum(repetition["frames_sent"] for repetition in board["line"])
    resent = sum(repetition["frames_resent"] for repetition in board["line"])
    found = f"{damaged} damaged, {resent} of {sent} sent again"
    return gate("line", "no frame comes back damaged", "failed" if damaged else "passed", found)
