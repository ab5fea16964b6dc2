"""Reports on disk: written whole or not at all, read back as they were; and what people get to see."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import pytest

from edgepipe.errors import EdgepipeError
from edgepipe.pipeline import report as reports
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.decode_flags import ALL, AUTO, decode_flags, decode_options, engine_flag
from edgepipe.pipeline.gates import Conditions, Gate
from edgepipe.pipeline.measure_command import measure_command
from edgepipe.pipeline.report import read_report, require_writable, write_report
from edgepipe.pipeline.report_markdown import markdown
from edgepipe.pipeline.report_schema import DEFINITIONS, SCHEMA_VERSION, Decoding, Report, Series
from edgepipe.pipeline.session import CacheOptions, DecodeOptions
from edgepipe.pipeline.statistics import summarise
from edgepipe.runtimes.llm.rounds import Guesses, Speculation
from edgepipe.runtimes.llm.sampling import SamplingParams


def decoding(factor: float, accepted: float | None) -> Decoding:
    series = summarise([10.0 * factor, 10.1 * factor, 9.9 * factor])
    return Decoding(
        kv_bytes=int(3 * 2**20 * factor),
        warmup=[],
        samples=[],
        ttft_ms=series,
        prefill_tokens_per_s=series,
        tpot_ms=series,
        decode_tokens_per_s=series,
        round_ms=series,
        acceptance_rate=accepted,
        tokens_per_round=1.5,
        time_split={"draft": 0.25, "verify": 0.75},
        speculation=Speculation(
            gamma_histogram={"0": 2, "3": 1} if accepted else {"0": 3},
            by_position=[Guesses(checked=1, accepted=1), Guesses(checked=1, accepted=0)] if accepted else [],
            by_drafter={"lookup": Guesses(checked=3, accepted=1)} if accepted else {},
        ),
    )


@pytest.fixture
def report() -> Report:
    """A report with every kind of value: read and unreadable, with and without baseline."""
    state = {
        "clocks": None,
        "arm_clock_mhz": 1500.0,
        "busy_core_s": None,
        "throttled_bits": 0x50005,
        "temperature_c": 48.25,
        "load_average_1min": 0.5,
        "memory_available_bytes": 2**30,
        "unreadable": {"clocks": "no cpufreq | here", "busy_core_s": "denied"},
    }
    wide = summarise([5.0, 10.0, 15.0])
    curve = [
        {"width": width, "relative_cost": float(width), "warmup": [], "samples": [5.0, 10.0, 15.0], "statistics": wide}
        for width in (1, 2)
    ]
    return Report(
        schema_version=SCHEMA_VERSION,
        created="2026-01-02T03:04:05+00:00",
        edgepipe_version="0.1.0",
        status="untrustworthy",
        gates=[
            Gate(gate="variation", limit="at most 5%", outcome="failed", details=["forward of 1: 50.0%"]),
            Gate(gate="clock", limit="at least 90%", outcome="unknown", details=["no cpufreq"]),
        ],
        device={
            "board": None,
            "cpu_model": "4 x Cortex-A72",
            "cpu_features": ["asimd", "asimddp", "crc32"],
            "architecture": "aarch64",
            "cores": 4,
            "usable_cores": None,
            "memory_bytes": 4 * 2**30,
            "os": "Debian",
            "kernel": "6.6",
            "platform": "linux",
            "python": "3.11.2",
            "packages": {"numpy": "2.0", "onnxruntime": "1.29.0"},
            "unreadable": {"board": "nobody said", "usable_cores": "no affinity"},
        },
        conditions=Conditions(before=state, after=state, elapsed_s=1.0, process_core_s=1.0),
        bundle={"folder": "my bundle", "bundle_id": "abc123", "sources": {}, "files": {}},
        configuration={
            "prompt_lengths": [32, 128],
            "new_tokens": 64,
            "repeats": 3,
            "warmup": 1,
            "against": "plain",
            "max_width": 16,
            "file": None,
            "text_sha256": "0",
            "decode": asdict(DecodeOptions()),
        },
        definitions=DEFINITIONS,
        load_ms=Series(warmup=[900.0], samples=[100.0], statistics=summarise([100.0])),
        memory={"peak_rss_bytes": None, "unreadable": {"peak_rss_bytes": "nobody counts"}},
        prompts=[
            {
                "prompt_tokens": 32,
                "measured": decoding(1, 0.625),
                "plain": decoding(2, None),
                "speedup": {"ttft": summarise([2.0, 2.5, 1.5]), "decode": summarise([1.75, 1.5, 3.0])},
                "predicted_speedup": 1.625,
            },
            {
                "prompt_tokens": 128,
                "measured": decoding(3, None),
                "plain": None,
                "speedup": None,
                "predicted_speedup": None,
            },
        ],
        cost_curve={"prompt_tokens": 32, "widths": curve},  # type: ignore[typeddict-item]
    )


def test_round_trip(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path)
    assert read_report(tmp_path / "report.json") == report
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == markdown(report)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.md"]


def test_a_report_replaces_an_earlier_one(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path)
    write_report({**report, "status": "ok"}, tmp_path)
    assert read_report(tmp_path / "report.json")["status"] == "ok"


def test_an_earlier_report_survives_a_failure(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(report, tmp_path)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(reports.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_report({**report, "status": "ok"}, tmp_path)
    assert read_report(tmp_path / "report.json") == report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.md"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "schema version None"),
        ('{"schema_version": 99}', "schema version 99, this edgepipe reads 1 to 2: measure again"),
        ('{"schema_version": 0}', "schema version 0, "),
        ('{"schema_version": 2}', "it has no bundle"),
    ],
)
def test_what_is_no_report_says_so(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EdgepipeError, match=message):
        read_report(path)


def test_a_folder_is_made(tmp_path: Path) -> None:
    require_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/under", "taken"])
def test_a_place_that_takes_no_report(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "report.json").mkdir(parents=True)
    with pytest.raises(EdgepipeError, match="give another folder with -o"):
        require_writable(tmp_path / place)


def cells(text: str, first: str) -> list[list[str]]:
    """Rows of the tables of a text whose first cell is ``first``."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if row[0].strip() == first]


def test_markdown_shows_the_figures(report: Report) -> None:
    text = markdown(report)
    assert "`ttft_ms`" in text
    assert "`planned_arena_bytes`" not in text  # nothing of boards
    measured, plain, ratios = cells(text, "32")[:3]
    figures = ["10.00", "10.00", "10.00", "10.00", "10.00 / 10.08 / 10.10 of 3", "62%", "1.50", "3.0"]
    assert measured == ["32", "measured", *figures]
    assert plain[:3] == ["32", "plain", "20.00"]
    assert ratios[1:5] == [
        "plain / measured (above 1: measured is better)",
        "2.00 (1.50 to 2.50)",
        "",
        "1.75 (1.50 to 3.00)",
    ]
    assert ratios[-1] == "2.00"
    assert cells(text, "128")[0][7] == "-"
    assert cells(text, "1")[0] == ["1", "10.00 (!)", "1.00"]
    assert "(t_last - t_first) / (N - 1)" in text
    guessing = ["lookup 1/3", "1/1, 0/1", "0: 2, 3: 1", "1.62", "1.75 (1.50 to 3.00)"]
    assert ["32", *guessing] in cells(text, "32")
    assert ["128", "-", "-", "0: 3", "-", "-"] in cells(text, "128")


def test_markdown_shows_the_verdict_and_what_could_not_be_read(report: Report) -> None:
    text = markdown(report)
    assert "untrustworthy" in text
    assert "Gates that failed (see below): variation.\n" in text
    assert cells(text, "variation") == [["variation", "failed", "at most 5%", "forward of 1: 50.0%"]]
    assert cells(text, "clock") == [["clock", "unknown", "at least 90%", "no cpufreq"]]
    assert cells(text, "board") == [["board", "not readable: nobody said"]]
    assert cells(text, "clocks")[0][1] == "not readable: no cpufreq \\| here"
    assert cells(text, "instruction sets") == [["instruction sets", "asimd, asimddp"]]
    throttled = "under-voltage, throttled, under-voltage since boot, throttled since boot"
    assert cells(text, "throttle bits (firmware)")[0][1] == f"0x50005 ({throttled})"
    assert "nobody counts" in text
    assert "untrustworthy" not in markdown({**report, "status": "ok"})


def test_every_table_is_rectangular(report: Report) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", markdown(report), re.MULTILINE):
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


ODD = DecodeOptions(
    engine="tflite",
    threads=1,
    chunk=64,
    drafter="model",
    gamma=7,
    cache=CacheOptions("h2o", "20%", 12, normalise=False, sinks=2),
    draft_cache=CacheOptions("window", "64MiB"),
    sampling=SamplingParams(0.75, 40, 0.9, 0.05, 1.1, 1234),
)


@pytest.mark.parametrize(
    "options", [DecodeOptions("onnx"), ODD, replace(ODD, threads=None, drafter="lookup,model", gamma="auto")]
)
def test_the_command_repeats_the_configuration(options: DecodeOptions) -> None:
    plan: dict[str, Any] = {"prompt_lengths": [3, 9], "new_tokens": 5, "repeats": 2, "warmup": 3, "max_width": 4}
    plan |= {"against": "plain", "file": "my text.txt", "decode": json.loads(json.dumps(asdict(options)))}
    line = measure_command("my bundle", plan)
    assert line.startswith("edgepipe measure 'my bundle' --prompt-lengths 3,9 ")
    assert "--file 'my text.txt'" in line

    seen: dict[str, Any] = {}

    @click.command()
    @engine_flag(AUTO, ALL)
    @decode_flags
    def parser(**flags: Any) -> None:
        seen.update(flags)

    words = shlex.split(line)
    parser.main(words[words.index("--engine") :], standalone_mode=False)
    assert decode_options(seen, Bundle(Path(), {"components": {"target": {}}})) == options
