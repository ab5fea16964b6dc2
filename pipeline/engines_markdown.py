"""The part of report.md that compares engines, which were measured in turns."""

from __future__ import annotations

from typing import Literal

from edgepipe.pipeline.markdown_parts import median, ratio, table
from edgepipe.pipeline.report_schema import CostCurve, Prompt, Report

_PARTS: dict[Literal["ttft", "decode"], str] = {"ttft": "TTFT", "decode": "decode"}


def engine_sections(report: Report) -> str:
    """Speed of every engine at every prompt length, and its cost curve beside those of the others."""
    first, others = report["configuration"]["engines"][0], report["other_engines"]
    rows = []
    for index, prompt in enumerate(report["prompts"]):
        rows.append((*_speeds(first, prompt), "1", "1"))
        for other in others:
            ratios = (ratio(other["against_first"][index][part]) for part in _PARTS)
            rows.append((*_speeds(other["engine"], other["prompts"][index]), *ratios))
    header = ("prompt tokens", "engine", "TTFT ms", "decode tokens/s", "tokens per round")
    times_as_fast = (f"{name}, times as fast as {first}" for name in _PARTS.values())
    assert report["cost_curve"] is not None
    assert report["load_ms"] is not None
    loads = {first: report["load_ms"]} | {other["engine"]: other["load_ms"] for other in others}
    curves = {first: report["cost_curve"]} | {other["engine"]: other["cost_curve"] for other in others}
    return "\n\n".join(
        (
            "## Engines, in turns",
            table((*header, *times_as_fast), rows),
            "Loading: " + ", ".join(f"{name} {median(load['statistics'])} ms" for name, load in loads.items()) + ".",
            "Milliseconds of a forward of S tokens, and t(S) / t(1). A flat curve makes guesses cheap. Where only some "
            "widths were exported, a forward takes as long as the next wider one.",
            _curves(curves),
        )
    )


def _speeds(engine: str, prompt: Prompt) -> tuple[str, ...]:
    found = prompt["measured"]
    speeds = (median(found["ttft_ms"]), median(found["decode_tokens_per_s"]), f"{found['tokens_per_round']:.2f}")
    return str(prompt["prompt_tokens"]), engine, *speeds


def _curves(curves: dict[str, CostCurve]) -> str:
    cells = {
        engine: {
            entry["width"]: f"{median(entry['statistics'])} · {entry['relative_cost']:.2f}" for entry in curve["widths"]
        }
        for engine, curve in curves.items()
    }
    widths = sorted(set().union(*cells.values()))
    rows = [(str(width), *(found.get(width, "-") for found in cells.values())) for width in widths]
    return table(("S", *cells), rows)
