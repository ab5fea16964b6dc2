"""The sections of report.md on a microcontroller."""

from __future__ import annotations

from typing import Any

from edgepipe.pipeline.board_report import BoardMemoryReport, BoardReport, BoardSeries
from edgepipe.pipeline.markdown_parts import bullets, median, number, table, why


def board_sections(board: BoardReport) -> str:
    """What an image takes, part by part and layer by layer, and memory as planned, linked and painted."""
    return "\n\n".join(
        (
            f"## An image on {board['device']}",
            _times(board),
            _line(board),
            f"### Patch by patch, in {_unit(board)}",
            table(("", f"{_unit(board)} (median)"), [(step["step"], _count(step)) for step in board["steps"]]),
            f"### Layer by layer, all patches together, in {_unit(board)}",
            table(
                ("layer", "calls an image", f"{_unit(board)} (median)", "share"),
                [
                    (layer["layer"], str(layer["calls"]), _count(layer), f"{layer['share']:.1%}")
                    for layer in board["layers"]
                ],
            ),
            "### Memory, in bytes",
            _memory(board["memory"]),
        )
    )


def board_facts(device: dict[str, Any]) -> str:
    """The board, what emulates it, and the computer that drives it."""
    host = device["host"]
    rows = [
        ("board", device["board"]),
        ("core", device["cpu_model"]),
        ("compiled for", " ".join(device["cpu_features"])),
        ("SRAM, flash", f"{device['memory_bytes']:,} and {device['flash_bytes']:,} bytes"),
        ("emulated by", device["emulator"] or "nothing: it is a real one"),
        ("driven from", f"{host['board'] or host['cpu_model'] or host['architecture']}, {host['os']}"),
    ]
    return "## Device\n\n" + table(("", ""), rows)


def _unit(board: BoardReport) -> str:
    return "µs" if board["compute"]["us"] is not None else "instructions"


def _count(work: BoardSeries) -> str:
    series = work["us"] or work["instructions"]
    assert series is not None
    count = series["statistics"]["p50"]
    return f"{count:,.0f}" if work["us"] is None else number(count)


def _times(board: BoardReport) -> str:
    """Time where there is one; else what there is instead."""
    latency, transfer = board["latency_ms"], board["transfer_ms"]
    if latency is None or transfer is None:
        computed = f"{_count(board['compute'])} instructions, counted by QEMU"
        return bullets((f"computing: {computed}", f"time: {why(dict(board), 'latency_ms')}"))
    return bullets(
        (
            f"from its codes to the output: {median(latency['statistics'])} ms",
            f"of it computing, by the board's clock of {board['clock_mhz']} MHz: {_count(board['compute'])} µs",
            f"of it the line: {median(transfer['statistics'])} ms",
        )
    )


def _line(board: BoardReport) -> str:
    columns = {
        "bytes sent": "bytes_sent",
        "bytes sent again": "bytes_resent",
        "bytes received": "bytes_received",
        "frames sent": "frames_sent",
        "frames sent again": "frames_resent",
        "frames damaged": "frames_damaged",
    }
    rows = [
        (str(number), *(str(repetition[key]) for key in columns.values()))
        for number, repetition in enumerate(board["line"], 1)
    ]
    return table(("repetition", *columns), rows)


def _memory(memory: BoardMemoryReport) -> str:
    facts = dict(memory)

    def known(key: str) -> str:
        return why(facts, key) if facts[key] is None else f"{facts[key]:,}"

    rows = [
        ("arena", known("planned_arena_bytes"), known("linked_arena_bytes"), known("painted_arena_bytes")),
        ("stack", "", known("stack_bytes"), known("painted_stack_bytes")),
        ("RAM", f"of {memory['sram_bytes']:,}", known("linked_ram_bytes"), ""),
        ("flash", f"of {memory['flash_bytes']:,}", known("linked_flash_bytes"), ""),
    ]
    return table(("", "planned", "linked", "painted over"), rows)
