"""Comparing reports: real ones, older ones, damaged ones, and those that mean harm."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from edgepipe import measure
from edgepipe.errors import EdgepipeError
from edgepipe.pipeline import cli
from edgepipe.pipeline.compare import Cell, Comparison, compare, letter, merged
from edgepipe.pipeline.compare_markdown import comparison_markdown
from edgepipe.pipeline.compare_page import comparison_page
from edgepipe.pipeline.compare_plots import figures
from edgepipe.pipeline.measure_decoder import Plan
from edgepipe.pipeline.statistics import summarise
from edgepipe.pipeline.svg_plot import tick_text, ticks

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)> \x1b[31m | \n# heading"

Written = Callable[..., Path]


@pytest.fixture(scope="module")
def measured(tiny_bundle: Path) -> dict[str, Any]:
    """A report of the tiny decoder."""
    plan = Plan(prompt_lengths=(4, 9), new_tokens=20, repeats=3, max_width=3, against="plain")
    return json.loads(json.dumps(measure(tiny_bundle, plan=plan)))


@pytest.fixture
def written(tmp_path: Path, measured: dict[str, Any]) -> Written:
    """``written(name, change)`` → a file with the report, as ``change`` has left it."""

    def write(name: str, change: Callable[[dict[str, Any]], object] = lambda report: None) -> Path:
        report = copy.deepcopy(measured)
        change(report)
        path = tmp_path / name
        path.write_text(json.dumps(report), encoding="utf-8")
        return path

    return write


def board_report(measured: dict[str, Any]) -> dict[str, Any]:
    """A report of an emulated board, in which instructions stand instead of time."""

    def counted(*samples: float) -> dict[str, Any]:
        return {"warmup": [], "samples": list(samples), "statistics": summarise(samples)}

    board = {
        "compute": {"us": None, "instructions": counted(2_000_000.0, 2_000_010.0)},
        "latency_ms": None,
        "memory": {
            "planned_arena_bytes": 30 * 1024,
            "painted_stack_bytes": 2048,
            "linked_ram_bytes": None,
            "linked_flash_bytes": 200 * 1024,
        },
    }
    conditions = copy.deepcopy(measured["conditions"])
    conditions["before"]["temperature_c"] = conditions["after"]["temperature_c"] = None
    return {
        **measured,
        "status": "emulated",
        "gates": [],
        "prompts": [],
        "cost_curve": None,
        "load_ms": None,
        "memory": {"peak_rss_bytes": None, "unreadable": {}},
        "conditions": {key: value for key, value in conditions.items() if key != "during"},
        "configuration": {"repeats": 2, "warmup": 1, "device": "qemu:mps3-an547", "baud": None},
        "board": board,
    }


def cells(comparison: Comparison, group: str, name: str) -> list[Cell | None]:
    (row,) = (row for row in comparison.rows if (row.metric.group, row.metric.name) == (group, name))
    return row.cells


def test_a_report_against_itself_is_the_same(written: Written) -> None:
    comparison = compare([written("a.json"), written("b.json")])
    assert comparison.differences == {}
    for row in comparison.rows:
        first, second = row.cells
        assert first is not None
        assert second is not None
        assert (first.ratio, first.verdict) == (None, None)
        assert second.ratio in (None, 1.0)
        assert second.verdict in (None, "same")


def test_ratios_are_of_medians_and_a_verdict_needs_samples_apart(written: Written) -> None:
    def set_samples(*samples: float) -> Callable[[dict[str, Any]], object]:
        return lambda report: report["prompts"][0]["measured"].update(
            ttft_ms=summarise(samples), prefill_tokens_per_s=summarise(samples)
        )

    paths = [
        written("a.json", set_samples(10, 12, 14)),
        written("b.json", set_samples(20, 24, 28)),
        written("c.json", set_samples(8, 9, 10)),
    ]
    comparison = compare(paths)
    first, twice, overlapping = cells(comparison, "prompt 4", "TTFT")
    assert first is not None
    assert twice is not None
    assert overlapping is not None
    assert (first.figure.median, first.ratio) == (12, None)
    assert (twice.ratio, twice.verdict) == (2.0, "worse")
    assert (overlapping.ratio, overlapping.verdict) == (0.75, "same"), "10 ms was seen in both"
    _, more, _ = cells(comparison, "prompt 4", "prefill")
    assert more is not None
    assert more.verdict == "better", "more tokens per second are"


def test_what_was_read_once_must_differ_by_more_than_a_little(written: Written) -> None:
    def peak(count: int) -> Callable[[dict[str, Any]], object]:
        return lambda report: report["memory"].update(peak_rss_bytes=count)

    paths = [written("a.json", peak(100 * 2**20)), written("b.json", peak(104 * 2**20))]
    paths.append(written("c.json", peak(50 * 2**20)))
    verdicts = [cell and cell.verdict for cell in cells(compare(paths), "process", "peak RSS")]
    assert verdicts == [None, "same", "better"]


def test_differences_are_said(written: Written) -> None:
    def change(report: dict[str, Any]) -> None:
        report["configuration"]["decode"]["threads"] = 3
        report["device"]["packages"]["onnxruntime"] = "1.29.0"
        report["bundle"]["bundle_id"] = "other"

    comparison = compare([written("a.json"), written("b.json", change)])
    assert set(comparison.differences) == {"decode threads", "packages onnxruntime", "bundle"}
    assert comparison.differences["decode threads"] == [None, "3"]
    assert "| decode threads " in comparison_markdown(comparison)
    assert "Nothing." in comparison_markdown(compare([written("a.json"), written("b.json")]))


def test_speed_and_temperature_over_time(written: Written, measured: dict[str, Any]) -> None:
    def warm(report: dict[str, Any]) -> None:
        for number, moment in enumerate(report["conditions"]["during"]):
            moment["temperature_c"] = 40.0 + number

    (report,) = compare([written("a.json", warm)]).reports
    assert len(report.speed) == 6, "three repetitions at two lengths"
    starts = [run[0][0] for run in report.speed]
    assert starts == sorted(starts)
    assert starts[-1] < measured["conditions"]["elapsed_s"]
    sample = measured["prompts"][0]["measured"]["samples"][0]
    emitted = sum(map(len, sample["round_tokens"]))
    assert emitted == 19
    assert [heat for _, heat in report.temperature][:3] == [40.0, 41.0, 42.0]
    assert "°C" in comparison_page(compare([written("a.json", warm)]))


def test_the_first_schema_version_has_no_guesses_and_no_moments(written: Written) -> None:
    def older(report: dict[str, Any]) -> None:
        report["schema_version"] = 1
        report["conditions"].pop("during")
        for prompt in report["prompts"]:
            del prompt["predicted_speedup"], prompt["measured"]["speculation"], prompt["plain"]["speculation"]

    comparison = compare([written("old.json", older), written("new.json")])
    assert all(cell is not None for cell in cells(comparison, "prompt 9", "decode"))
    assert len(comparison.reports[0].speed) == 6
    assert comparison_page(comparison).count("<svg") > 4


def test_an_emulated_board_has_instructions_and_no_time(written: Written, measured: dict[str, Any]) -> None:
    board = written("board.json", lambda report: report.update(board_report(measured)))
    comparison = compare([board, written("a.json")])
    text = comparison_markdown(comparison)
    assert "**emulated**" in text
    assert re.search(r"board: computing an image, instructions +\| 2,000,005 +\| - ", text)
    assert "process: load, ms" in text
    assert "how long a real board takes is not known" in comparison_page(comparison)
    assert "<svg" in comparison_page(compare([board]))


def test_folders_are_taken_for_their_report(written: Written, tmp_path: Path) -> None:
    written("report.json")
    assert compare([tmp_path]).reports[0].path == tmp_path / "report.json"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"name": "a package", "version": 1}', "schema version None"),
        ('{"schema_version": [1]}', "schema version"),
        ('{"schema_version": 99}', "this edgepipe reads 1 to"),
        ('{"schema_version": 2}', "it has no "),
    ],
)
def test_what_is_no_report_is_one_line(written: Written, tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "foreign.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EdgepipeError, match=re.escape(message)) as caught:
        compare([written("a.json"), path])
    assert "foreign.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a report, of lists only the first entry."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    return [place, *(found for key, entry in inner for found in _places(entry, (*place, key)))]


@pytest.mark.parametrize("wrong", ["text", {}, [], None, float("nan"), -1, 0, 1e308, 5e-324])
def test_any_damaged_place_is_one_line_or_does_no_harm(written: Written, measured: dict[str, Any], wrong: Any) -> None:
    path = written("a.json")
    messages = []
    for *way, key in _places(measured)[1:]:
        if {"definitions", "configuration", "files", "warmup"} & {*way, key}:
            continue  # little of it is looked at
        report = copy.deepcopy(measured)
        inside = report
        for step in way:
            inside = inside[step]
        inside[key] = wrong
        path.write_text(json.dumps(report))
        try:
            comparison = compare([path, path])
        except EdgepipeError as error:
            messages.append(str(error))
        else:
            json.dumps(comparison.to_json(), allow_nan=False)
            for figure in figures(comparison.reports):
                ET.fromstring(f"<p>{figure.svg}</p>")
                assert not re.search(r"\b(nan|inf)\b", figure.svg)
    assert messages
    assert not [message for message in messages if "\n" in message or "a.json" not in message]


@pytest.mark.parametrize(
    ("samples", "outcome"),
    [
        ([], None),
        ([7.0], None),
        ([0.0], "division by zero"),
        ([1e308], "a measured number belongs"),
        ([-5.0, -6.0], "a measured number belongs"),
        ([5e-324, 1.0], "a measured number belongs"),
    ],
)
def test_any_series_of_an_image_is_drawn_or_told_of(
    written: Written, samples: list[float], outcome: str | None
) -> None:
    statistics = summarise([4.0, 5.0])
    series = {"warmup": [], "samples": samples, "statistics": statistics}
    memory = ("planned_bytes", "planned_whole_bytes", "budget_bytes", "seen_bytes", "seen_whole_bytes")
    vision = {"whole_ms": series, "streamed_ms": None, "load_ms": series, "activations": dict.fromkeys(memory)}

    def of_images(report: dict[str, Any]) -> None:
        report.update(prompts=[], cost_curve=None, load_ms=None, vision=vision)
        report["conditions"]["during"] = [{"step": "vision: repetition 1", "elapsed_s": 1.0, "temperature_c": None}]

    paths = [written("image.json", of_images), written("a.json")]
    if outcome is not None:
        with pytest.raises(EdgepipeError, match=f"image.json is damaged: .*{outcome}"):
            compare(paths)
        return
    drawn = figures(compare(paths).reports)
    assert ("Latency of image at once" in {figure.heading for figure in drawn}) == bool(samples)
    for figure in drawn:
        ET.fromstring(f"<p>{figure.svg}</p>")


def test_text_and_images_have_plots_of_their_own(written: Written) -> None:
    first, second, third = compare([written(f"{name}.json") for name in "abc"]).reports
    second.speed, second.speed_unit = [[(1.0, 400.0), (2.0, 410.0)]], "images/s"
    third.curve = []
    drawn = {figure.heading: figure for figure in figures([first, second, third])}
    of_text = next(figure for heading, figure in drawn.items() if "tokens/s" in heading)
    of_images = next(figure for heading, figure in drawn.items() if "images/s" in heading)
    assert (of_text.legend, of_images.legend) == ((0, 2), (1,))
    assert drawn["Cost of a forward of S tokens"].legend == (0, 1)


def test_what_only_some_have_stands_where_they_have_it() -> None:
    assert merged(["ace", "abce", "xay"]) == list("xaybce")
    assert merged(["abz", "acz"]) == list("acbz")
    assert merged(["ab", "xy"]) == list("abxy"), "what has nothing in common comes last"
    assert merged([]) == []


def test_hostile_names_are_text(written: Written) -> None:
    def hostile(report: dict[str, Any]) -> None:
        report["bundle"]["folder"] = report["device"]["board"] = report["status"] = report["created"] = HOSTILE
        report["gates"] = [{"gate": HOSTILE, "limit": "", "outcome": "failed", "details": [HOSTILE]}]
        report["configuration"][HOSTILE] = HOSTILE
        report["device"]["packages"][HOSTILE] = HOSTILE

    comparison = compare([written("a.json"), written("<b>&.json", hostile)])
    page = comparison_page(comparison)
    assert "&lt;script&gt;" in page
    for harmful in ("<script", "<img", "<b>", "\x1b"):
        assert harmful not in page
    text = comparison_markdown(comparison)
    assert "\x1b" not in text
    assert "\n# heading" not in text
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")}
    assert columns == {4}, "a | in a name makes no column"


def test_the_page_needs_nothing_else(written: Written) -> None:
    page = comparison_page(compare([written("a.json"), written("b.json")]))
    assert not re.search(r"<script|<link|<iframe|\ssrc=|\shref=|url\(|@import", page)


def test_the_command_prints_a_table_and_writes_a_page(
    written: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    words = ["report", str(written("a.json")), str(written("b.json")), "--html", str(page)]
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 0
    out, err = capsys.readouterr()
    assert "| prompt 9: decode, tokens/s" in out
    assert err.strip() == str(page)
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(SystemExit) as caught:
        cli.main([*words, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert [report["letter"] for report in answer["reports"]] == ["A", "B"]
    with pytest.raises(SystemExit) as caught:
        cli.main(["report", str(tmp_path / "a.json"), "--html", str(tmp_path / "no" / "page.html")])
    assert caught.value.code == 1
    assert "no/page.html (No such file or directory): give another place" in capsys.readouterr().err


def test_letters_go_on_after_z() -> None:
    assert [letter(index) for index in (0, 25, 26, 27, 52)] == ["A", "Z", "AA", "AB", "BA"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (47, 58, [50, 55]),
        (1, 3, [1, 1.5, 2, 2.5, 3]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.5, "0.5"), (2000.0, "2000"), (12_000.0, "12k"), (500_000.0, "500k"), (2e7, "20M"), (3e10, "30G")],
)
def test_ticks_are_short(value: float, text: str) -> None:
    assert tick_text(value) == text
