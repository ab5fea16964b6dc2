"""What a comparison takes from a report: figures with their spread, settings, and the series that plots are made of.

Reports come from elsewhere: every number is checked to be one, every text is stripped of what would act on a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal

from edgepipe.errors import EdgepipeError
from edgepipe.pipeline.markdown_parts import size
from edgepipe.pipeline.report import REPORT_JSON, read_report
from edgepipe.pipeline.report_markdown import TELLING_FEATURES

MAX_TEXT = 200
# Tokens that one point of the speed over time is an average of.
_WINDOW_TOKENS = 8
_LEAST, _MOST = 1e-30, 1e30
_ABSOLUTE_ZERO_C = -273.15


@dataclass(frozen=True)
class Metric:
    """One row of a comparison; ``group`` is what it was measured at, ``better`` is None where neither is."""

    group: str
    name: str
    unit: str
    better: Literal["lower", "higher"] | None


@dataclass(frozen=True)
class Figure:
    """A median, and the least and the most of the samples; all three are one where a quantity is not timed."""

    median: float
    low: float
    high: float


@dataclass
class ReportView:
    """One report.

    Attributes:
        path: of its file.
        title: bundle and device.
        status, created, failed: as the report has them; ``failed`` has what was found by the gates that did.
        figures: by metric, in the order of the report.
        settings: configuration, bundle and device, flat.
        rounds_ms: raw latencies of rounds, or of images, by what was timed.
        speed: runs of (seconds since the start, tokens or images per second), one a repetition.
        speed_unit: of those.
        temperature: (seconds since the start, °C).
        curve: (S, t(S) in ms, t(S) / t(1)).
        memory: (what, bytes).
    """

    path: Path
    title: str
    status: str
    created: str
    failed: dict[str, str]
    figures: dict[Metric, Figure] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    rounds_ms: dict[str, list[float]] = field(default_factory=dict)
    speed: list[list[tuple[float, float]]] = field(default_factory=list)
    speed_unit: str = "tokens/s"
    temperature: list[tuple[float, float]] = field(default_factory=list)
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    memory: list[tuple[str, float]] = field(default_factory=list)


def view(path: Path) -> ReportView:
    """Read a report.json, or the one in a folder.

    Raises:
        EdgepipeError: it is missing, damaged, or no report.
    """
    path = path / REPORT_JSON if path.is_dir() else path
    report: Any = read_report(path)
    try:
        return _view(path, report)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        what = f"it has no {_text(error.args[0])}" if isinstance(error, KeyError) else _text(error)
        raise EdgepipeError(f"{path} is damaged: {what}; measure again") from None


def _view(path: Path, report: Any) -> ReportView:
    device = report["device"]
    name = device["board"] or device["cpu_model"] or device["architecture"]
    found = ReportView(
        path=path,
        title=_text(f"{PurePath(report['bundle']['folder']).name} on {name}"),
        status=_text(report["status"]),
        created=_text(report["created"]),
        failed={
            _text(gate["gate"]): _text("; ".join(gate["details"]))
            for gate in report["gates"]
            if gate["outcome"] == "failed"
        },
        settings=_settings(report),
    )
    moments = {moment["step"]: _number(moment["elapsed_s"]) for moment in report["conditions"].get("during", ())}
    _add_decoding(found, report, moments)
    if "vision" in report:
        _add_vision(found, report["vision"], moments)
    if "board" in report:
        _add_board(found, report["board"])
    if report["load_ms"] is not None:
        found.figures[Metric("process", "load", "ms", "lower")] = _figure(report["load_ms"]["statistics"])
    _add_bytes(found, "process", "peak RSS", report["memory"]["peak_rss_bytes"])
    _add_temperature(found, report["conditions"])
    return found


def _add_decoding(found: ReportView, report: Any, moments: dict[str, float]) -> None:
    elapsed = 0.0
    for prompt in report["prompts"]:
        group = f"prompt {_number(prompt['prompt_tokens']):g}"
        for suffix, decoding in (("", prompt["measured"]), (", plain", prompt["plain"])):
            if decoding is not None:
                _add_decoder(found, group, suffix, decoding)
        if prompt["speedup"] is not None:
            speedup = _figure(prompt["speedup"]["decode"])
            found.figures[Metric(group, "speed-up over plain", "times", "higher")] = speedup
        samples = prompt["measured"]["samples"]
        rounds = [_number(taken) / 1e6 for sample in samples for taken in sample["round_ns"]]
        _add_latencies(found, f"one round, {group}", rounds)
        for number, sample in enumerate(samples, 1):
            length, repeats = prompt["prompt_tokens"], report["configuration"]["repeats"]
            begin = moments.get(f"prompt of {length}: repetition {number} of {repeats}", elapsed)
            points = list(_speed(sample, begin))
            found.speed.append(points)
            elapsed = points[-1][0] if points else begin
    for other in report.get("other_engines", ()):
        for prompt in other["prompts"]:
            group = f"prompt {_number(prompt['prompt_tokens']):g}"
            _add_decoder(found, group, f", {_text(other['engine'])}", prompt["measured"])
    if report["cost_curve"] is not None:
        for width in report["cost_curve"]["widths"]:
            taken_ms = _number(width["statistics"]["p50"])
            found.curve.append((int(_number(width["width"])), taken_ms, _number(width["relative_cost"])))


def _add_decoder(found: ReportView, group: str, suffix: str, decoding: Any) -> None:
    for key, name, unit, better in (
        ("ttft_ms", "TTFT", "ms", "lower"),
        ("prefill_tokens_per_s", "prefill", "tokens/s", "higher"),
        ("tpot_ms", "TPOT", "ms", "lower"),
        ("decode_tokens_per_s", "decode", "tokens/s", "higher"),
    ):
        metric = Metric(group, f"{name}{suffix}", unit, "lower" if better == "lower" else "higher")
        found.figures[metric] = _figure(decoding[key])
    if not suffix:
        _add_one(found, Metric(group, "tokens per round", "", None), decoding["tokens_per_round"])
        if decoding["acceptance_rate"] is not None:
            _add_one(found, Metric(group, "accepted", "%", None), 100 * _number(decoding["acceptance_rate"]))
    _add_bytes(found, group, f"KV cache{suffix}", decoding["kv_bytes"])


def _speed(sample: Any, begin: float) -> Iterator[tuple[float, float]]:
    """Tokens per second over time, each point that of `_WINDOW_TOKENS` or more."""
    start = clock = begin + _number(sample["ttft_ns"]) / 1e9
    tokens = 0
    for emitted, taken in zip(sample["round_tokens"], sample["round_ns"], strict=True):
        clock += _number(taken) / 1e9
        tokens += len(emitted)
        if tokens >= _WINDOW_TOKENS and clock > start:
            yield clock, tokens / (clock - start)
            start, tokens = clock, 0


def _add_vision(found: ReportView, vision: Any, moments: dict[str, float]) -> None:
    ways = {"image at once": vision["whole_ms"], "image by patches": vision["streamed_ms"]}
    for name, series in ways.items():
        if series is not None:
            found.figures[Metric("vision", name, "ms", "lower")] = _figure(series["statistics"])
            _add_latencies(found, name, [_number(taken) for taken in series["samples"]])
    found.figures[Metric("vision", "load", "ms", "lower")] = _figure(vision["load_ms"]["statistics"])
    memory = vision["activations"]
    for key, name in (
        ("planned_whole_bytes", "activations planned, at once"),
        ("planned_bytes", "activations planned, by patches"),
        ("seen_whole_bytes", "activations allocated, at once"),
        ("seen_bytes", "activations allocated, by patches"),
    ):
        _add_bytes(found, "vision", name, memory[key])
    starts = [at for step, at in moments.items() if step.startswith("vision: repetition ")]
    if starts and not found.speed:
        found.speed_unit = "images/s"
        whole = [1e3 / _number(taken) for taken in vision["whole_ms"]["samples"]]
        found.speed = [list(zip(starts, whole, strict=False))]


def _add_board(found: ReportView, board: Any) -> None:
    compute, unit = board["compute"]["us"], "µs"
    if compute is None:
        compute, unit = board["compute"]["instructions"], "instructions"
    found.figures[Metric("board", "computing an image", unit, "lower")] = _figure(compute["statistics"])
    if board["latency_ms"] is not None:
        line = Metric("board", "image over the line", "ms", "lower")
        found.figures[line] = _figure(board["latency_ms"]["statistics"])
        samples = [_number(taken) for taken in board["latency_ms"]["samples"]]
        _add_latencies(found, "image over the line", samples)
    memory = board["memory"]
    for key, name in (
        ("planned_arena_bytes", "arena"),
        ("painted_stack_bytes", "stack used"),
        ("linked_ram_bytes", "RAM linked"),
        ("linked_flash_bytes", "flash linked"),
    ):
        _add_bytes(found, "board", name, memory[key])


def _add_latencies(found: ReportView, name: str, samples: list[float]) -> None:
    """A text of one token has no rounds."""
    if samples:
        found.rounds_ms[name] = samples


def _add_temperature(found: ReportView, conditions: Any) -> None:
    readings = [
        (0.0, conditions["before"]["temperature_c"]),
        *((moment["elapsed_s"], moment["temperature_c"]) for moment in conditions.get("during", ())),
        (conditions["elapsed_s"], conditions["after"]["temperature_c"]),
    ]
    found.temperature = [(_number(at), _number(heat, _ABSOLUTE_ZERO_C)) for at, heat in readings if heat is not None]


def _add_bytes(found: ReportView, group: str, name: str, count: Any) -> None:
    if count is not None:
        unit, size = ("KiB", 1024) if group in ("vision", "board") else ("MiB", 2**20)
        _add_one(found, Metric(group, name, unit, "lower"), _number(count) / size)
        found.memory.append((f"{name}, {group}" if group.startswith("prompt") else name, _number(count)))


def _add_one(found: ReportView, metric: Metric, value: Any) -> None:
    number = _number(value)
    found.figures[metric] = Figure(number, number, number)


def _settings(report: Any) -> dict[str, str]:
    """Configuration, bundle and device, flat; what is null is left out."""
    bundle, device, configuration = report["bundle"], report["device"], report["configuration"]
    features = device["cpu_features"]
    facts: dict[str, Any] = {
        "bundle": bundle["bundle_id"],
        "source": {name: source and source.get("name") for name, source in bundle["sources"].items()},
        "edgepipe": report["edgepipe_version"],
        **{key: device[key] for key in ("board", "cpu_model", "architecture", "cores", "usable_cores", "os")},
        "instruction sets": features and " ".join(name for name in TELLING_FEATURES if name in features),
        "memory": device["memory_bytes"] and size(_number(device["memory_bytes"])),
        "packages": device["packages"],
        **configuration,
        "text_sha256": str(configuration.get("text_sha256") or "")[:16],  # as much as a bundle's id has
    }
    return dict(_flat("", facts))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{prefix} {key}".strip(), inner)
    elif value not in (None, ""):
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield _text(prefix.replace("_", " ")), _text(text)


def _figure(summary: Any) -> Figure:
    return Figure(_number(summary["p50"]), _number(summary["min"]), _number(summary["max"]))


def _number(value: Any, lowest: float = 0.0) -> float:
    """A number that can be one of a measurement: its squares and ratios are numbers, too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_text(repr(value))} stands where a number belongs")
    if not lowest <= value <= _MOST or 0 < abs(value) < _LEAST:
        raise ValueError(f"{_text(value)} stands where a measured number belongs")
    return float(value)


def _text(value: Any) -> str:
    """On one line, without control characters, at most `MAX_TEXT` long."""
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in str(value)).split())
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
