"""report.md: a report for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgepipe.devices.android import THERMAL_STATUS
from edgepipe.devices.vcgencmd import NOW, SINCE_BOOT
from edgepipe.pipeline.board_markdown import board_facts, board_sections
from edgepipe.pipeline.board_report import BOARD_DEFINITIONS
from edgepipe.pipeline.engines_markdown import engine_sections
from edgepipe.pipeline.gates import MAX_CV
from edgepipe.pipeline.markdown_parts import bullets, median, mib, number, ratio, table, why
from edgepipe.pipeline.measure_command import measure_command
from edgepipe.pipeline.report_schema import Activations, Decoding, Report, Vision
from edgepipe.pipeline.statistics import Series
from edgepipe.runtimes.llm.rounds import Guesses

# Instruction sets that decide which kernels an engine picks; report.json lists all.
TELLING_FEATURES = (
    *("avx2", "f16c", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8"),
    *("asimd", "fphp", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme"),
)


def markdown(report: Report) -> str:
    """The report as Markdown."""
    sections = (
        _head(report),
        *(section(report) for section in (_results, _time_split, _speculation, _cost_curves) if report["prompts"]),
        *((_vision(report["vision"]),) if "vision" in report else ()),
        *((board_sections(report["board"]),) if "board" in report else (_memory(report),)),
        _gates(report),
        board_facts(report["device"]) if "board" in report else _device(report),
        _configuration(report),
        _definitions(report),
    )
    return "\n\n".join(sections) + "\n"


def failed_gates(report: Report) -> str:
    """Names of the gates that failed, separated by commas."""
    return ", ".join(gate["gate"] for gate in report["gates"] if gate["outcome"] == "failed")


def _results(report: Report) -> str:
    """Medians of the repetitions at every prompt length; the ratios to the baseline are above 1 where it is worse."""
    rows: list[Sequence[str]] = []
    for prompt in report["prompts"]:
        length, measured = str(prompt["prompt_tokens"]), prompt["measured"]
        plain, speedup = prompt["plain"], prompt["speedup"]
        rows.append(_result_row(length, report["configuration"].get("engines", ["measured"])[0], measured))
        if plain and speedup:
            rows.append(_result_row(length, "plain", plain))
            memory = f"{plain['kv_bytes'] / measured['kv_bytes']:.2f}"
            ratios = (ratio(speedup["ttft"]), "", ratio(speedup["decode"]), "", "", "", "", memory)
            rows.append((length, "plain / measured (above 1: measured is better)", *ratios))
    speeds = ("TTFT ms", "prefill tokens/s", "TPOT ms", "decode tokens/s")
    header = ("prompt tokens", "", *speeds, "round ms p50 / p90 / p99", "acceptance", "tokens per round", "KV MiB")
    return table(header, rows)


def _result_row(length: str, name: str, decoding: Decoding) -> tuple[str, ...]:
    rounds, acceptance = decoding["round_ms"], decoding["acceptance_rate"]
    return (
        length,
        name,
        median(decoding["ttft_ms"]),
        median(decoding["prefill_tokens_per_s"]),
        median(decoding["tpot_ms"]),
        median(decoding["decode_tokens_per_s"]),
        " / ".join(number(time) for time in (rounds["p50"], rounds["p90"], rounds["p99"])) + f" of {rounds['count']}",
        "-" if acceptance is None else f"{acceptance:.0%}",
        f"{decoding['tokens_per_round']:.2f}",
        f"{decoding['kv_bytes'] / 2**20:.1f}",
    )


def _head(report: Report) -> str:
    device, plan = report["device"], report["configuration"]
    name = device["board"] or device["cpu_model"] or device["architecture"]
    tokens = f" of {plan['new_tokens']} new tokens each" if report["prompts"] else ""
    verdict = "**Status: ok.**"
    if report["status"] == "emulated":
        verdict = "**Status: emulated.** QEMU has counted instructions. Nothing here says how long a board takes."
    elif report["status"] != "ok":
        verdict = f"**Status: untrustworthy.** Gates that failed (see below): {failed_gates(report)}."
    return "\n\n".join(
        (
            f"# {report['bundle']['folder']} on {name}",
            f"{report['created']}, edgepipe {report['edgepipe_version']}, bundle `{report['bundle']['bundle_id']}`.",
            verdict,
            f"Medians of {plan['repeats']} repetitions{tokens}, after {plan['warmup']} of warm-up. "
            f"(!) marks a coefficient of variation above {MAX_CV:.0%}. Raw samples are in report.json.",
        )
    )


def _time_split(report: Report) -> str:
    rows = []
    parts: list[str] = []
    for prompt in report["prompts"]:
        split = prompt["measured"]["time_split"]
        parts = list(split)
        rows.append((str(prompt["prompt_tokens"]), *(f"{share:.1%}" for share in split.values())))
    return "## Where decoding spends its time\n\n" + table(("prompt tokens", *parts), rows)


def _speculation(report: Report) -> str:
    """Guesses by drafter, position and number a round; what they were predicted to bring, and what they did."""
    rows = []
    for prompt in report["prompts"]:
        found, speedup = prompt["measured"]["speculation"], prompt["speedup"]
        rows.append(
            (
                str(prompt["prompt_tokens"]),
                ", ".join(f"{name} {_share(guesses)}" for name, guesses in found["by_drafter"].items()) or "-",
                ", ".join(_share(guesses) for guesses in found["by_position"]) or "-",
                ", ".join(f"{gamma}: {rounds}" for gamma, rounds in found["gamma_histogram"].items()),
                "-" if prompt["predicted_speedup"] is None else f"{prompt['predicted_speedup']:.2f}",
                ratio(speedup["decode"]) if speedup else "-",
            )
        )
    header = (
        "prompt tokens",
        "accepted of checked",
        "by position",
        "rounds by guesses",
        "predicted speed-up",
        "observed",
    )
    return "## Guessing ahead\n\n" + table(header, rows)


def _share(guesses: Guesses) -> str:
    return f"{guesses['accepted']}/{guesses['checked']}"


def _cost_curves(report: Report) -> str:
    """Of one engine, or of several, side by side with all else that they are compared by."""
    if "other_engines" in report:
        return engine_sections(report)
    curve = report["cost_curve"]
    assert curve is not None
    rows = [
        (str(entry["width"]), median(entry["statistics"]), f"{entry['relative_cost']:.2f}") for entry in curve["widths"]
    ]
    return (
        f"## Cost of one forward of S tokens, after a prompt of {curve['prompt_tokens']}\n\n"
        + table(("S", "t(S) ms", "t(S) / t(1)"), rows)
    )  # fmt: skip


def _memory(report: Report) -> str:
    peak = report["memory"]["peak_rss_bytes"]
    lines = [f"load: {_load(report['load_ms'])}"] if report["load_ms"] else []
    if "vision" in report:
        lines.append(f"load of the vision model, up to its first output: {_load(report['vision']['load_ms'])}")
    lines.append(f"peak RSS: {mib(peak)}" if peak else f"peak RSS: {why(report['memory'], 'peak_rss_bytes')}")
    return "## Loading and memory\n\n" + bullets(lines)


def _load(load: Series) -> str:
    return f"{median(load['statistics'])} ms, the first {load['warmup'][0]:.0f} ms"


def _vision(vision: Vision) -> str:
    """Latency of an image and of the parts it is computed in; activations as planned and as allocated."""
    streamed, whole, found = vision["streamed_ms"], vision["whole_ms"], vision["activations"]
    patches = f"image in {'x'.join(map(str, vision['grid']))} patches"
    rows = [("image at once", "1", median(whole["statistics"]))]
    memory = [("image at once", _kib(found, "planned_whole_bytes"), _kib(found, "seen_whole_bytes"))]
    if streamed is not None:
        rows.append((patches, "1", median(streamed["statistics"])))
        rows += [(part["part"], str(part["tiles"] or 1), median(part["statistics"])) for part in vision["parts"]]
        memory.append((patches, _kib(found, "planned_bytes"), _kib(found, "seen_bytes")))
    return "\n\n".join(
        (
            f"## Vision, in {vision['engine']}",
            table(("", "calls an image", "ms a call"), rows),
            table(("activations", "planned KiB", "KiB that the engine has allocated"), memory),
        )
    )


def _kib(activations: Activations, key: str) -> str:
    count = dict(activations)[key]
    return f"{count / 1024:.1f}" if isinstance(count, int) else why(dict(activations), key)


def _gates(report: Report) -> str:
    rows = [(gate["gate"], gate["outcome"], gate["limit"], "; ".join(gate["details"])) for gate in report["gates"]]
    return "## Gates\n\n" + table(("gate", "outcome", "limit", "found"), rows)


def _device(report: Report) -> str:
    device = report["device"]
    features = device["cpu_features"]
    facts = {
        "board": device["board"],
        "CPU": device["cpu_model"],
        "instruction sets": features and (", ".join(name for name in TELLING_FEATURES if name in features) or "-"),
        "architecture": device["architecture"],
        "cores": device["cores"] and f"{device['cores']}, of which usable: {device['usable_cores'] or 'not known'}",
        "memory": device["memory_bytes"] and mib(device["memory_bytes"]),
        "OS": f"{device['os']}, kernel {device['kernel']}",
        "Python": device["python"],
        "packages": ", ".join(f"{name} {version}" for name, version in device["packages"].items()),
    }
    keys = {"board": "board", "CPU": "cpu_model", "instruction sets": "cpu_features", "cores": "cores"}
    keys["memory"] = "memory_bytes"
    rows = [(name, str(value or why(device, keys[name]))) for name, value in facts.items()]
    return "## Device\n\n" + table(("", ""), rows) + "\n\n" + _conditions(report)


def _conditions(report: Report) -> str:
    before, after = report["conditions"]["before"], report["conditions"]["after"]
    shown = {
        "temperature_c": ("temperature", lambda value: f"{value:.1f} °C"),
        "clocks": ("clocks", _clocks),
        "arm_clock_mhz": ("Arm clock (firmware)", lambda value: f"{value:.0f} MHz"),
        "throttled_bits": ("throttle bits (firmware)", _throttled),
        "load_average_1min": ("load average, 1 min", lambda value: f"{value:.2f}"),
        "memory_available_bytes": ("memory available", mib),
    }
    android = {
        "thermal_status": ("thermal status", lambda status: THERMAL_STATUS[min(status, len(THERMAL_STATUS) - 1)]),
        "battery": ("battery", lambda battery: f"{battery['percentage']}%, {battery['status']}"),
    }
    shown |= {key: entry for key, entry in android.items() if None not in (before.get(key), after.get(key))}
    rows = []
    for key, (name, show) in shown.items():
        states = (before, after)
        rows.append((name, *(why(state, key) if state[key] is None else show(state[key]) for state in states)))
    return table(("", "before", "after"), rows)


def _configuration(report: Report) -> str:
    command = measure_command(report["bundle"]["folder"], report["configuration"])
    if not report["prompts"]:
        return f"## To repeat it\n\n```\n{command}\n```"
    text = report["configuration"]["file"] or "the built-in text"
    cut = f"Prompts were cut from {text}; how many guesses are accepted depends on it."
    return f"## To repeat it\n\n{cut}\n\n```\n{command}\n```"


def _definitions(report: Report) -> str:
    """Those that such a report needs; report.json has all."""
    definitions = report["definitions"]
    names = {*BOARD_DEFINITIONS, "cv"} if "board" in report else definitions.keys() - BOARD_DEFINITIONS.keys()
    return "## Definitions\n\n" + bullets(f"`{name}`: {text}" for name, text in definitions.items() if name in names)


def _clocks(policies: list[dict[str, Any]]) -> str:
    return "; ".join(
        f"CPUs {policy['cpus']}: {policy['current_mhz']:.0f} of {policy['full_mhz']:.0f} MHz, {policy['governor']}"
        for policy in policies
    )


def _throttled(bits: int) -> str:
    names = [name for bit, name in NOW.items() if bits >> bit & 1]
    names += [f"{name} since boot" for bit, name in SINCE_BOOT.items() if bits >> bit & 1]
    return f"{bits:#x} ({', '.join(names) or 'none'})"
