"""`edgepipe measure --device`: a firmware's work, line and memory, from emulated boards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.devices.boards import find_board
from edgepipe.devices.qemu import QEMU, Emulator
from edgepipe.pipeline import cli
from edgepipe.pipeline.board_gates import judge_board
from edgepipe.pipeline.board_report import BoardReport
from edgepipe.pipeline.build_firmware import build_firmware, bundle_firmware, linker_map
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.export import export
from edgepipe.pipeline.linker_map import read_linker_map
from edgepipe.pipeline.measure_board import measure_board
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.report import read_report
from edgepipe.pipeline.report_markdown import markdown
from edgepipe.pipeline.report_schema import Report
from edgepipe.pipeline.vision_recipe import VisionRecipe
from edgepipe.runtimes.vision.plan import read_plan

pytest.importorskip("serial")

missing = [tool for tool in ("make", "arm-none-eabi-gcc", QEMU) if shutil.which(tool) is None]
needs_tools = pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}")


@pytest.fixture(scope="module")
def bundle(tiny_vision: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_vision` in patches."""
    recipe = VisionRecipe(str(tiny_vision), formats=("tflite", "firmware"), board="netduinoplus2", sram="15K")
    return export(Recipe(vision=recipe), tmp_path_factory.mktemp("board") / "bundle").folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Set before `report` is made: the fixture that each test has for this comes later."""
    patch = pytest.MonkeyPatch()
    patch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path_factory.mktemp("builds")))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def report(bundle: Path, cache: None) -> Report:
    return measure_board(bundle, "qemu:netduinoplus2", repeats=5, warmup=2)


@needs_tools
def test_an_emulated_board_has_no_time(report: Report) -> None:
    assert json.loads(json.dumps(report)) == report
    board = report["board"]
    assert report["status"] == "emulated"
    assert board["latency_ms"] is board["transfer_ms"] is board["compute"]["us"] is None
    assert "how long a real one takes" in board["unreadable"]["latency_ms"]
    assert all(part["us"] is None for part in (*board["steps"], *board["layers"]))
    assert [gate["outcome"] for gate in report["gates"] if gate["gate"] == "clock"] == ["unknown"]
    assert " ms" not in markdown(report).partition("## Gates")[0]


@needs_tools
def test_instructions_are_counted_exactly(report: Report, bundle: Path) -> None:
    """The same in every repetition, and patches and layers are parts of the image."""
    board, plan = report["board"], read_plan(bundle / "vision/plan.json")
    image = board["compute"]["instructions"]
    assert image is not None
    assert (len(image["warmup"]), len(image["samples"])) == (2, 5)
    assert image["statistics"]["max"] - image["statistics"]["min"] < 100  # roundings to cycles
    assert image["statistics"]["p50"] > plan.macs / 4  # a DSP instruction does two, a loaded word holds four
    assert [step["step"] for step in board["steps"]] == [
        *(f"patch {row},{column}" for row, column in np.ndindex(plan.grid)),
        "tail",
    ]
    for sample in range(5):
        steps, layers = (
            sum(part["instructions"]["samples"][sample] for part in parts if part["instructions"] is not None)
            for parts in (board["steps"], board["layers"])
        )
        assert steps == pytest.approx(image["samples"][sample], abs=100)
        assert 0.95 * steps < layers <= steps + 100
    assert sum(layer["share"] for layer in board["layers"]) == pytest.approx(1)
    assert {layer["calls"] for layer in board["layers"]} == {1, len(plan.tiles)}


@needs_tools
def test_plan_linker_and_paint_agree(report: Report, bundle: Path) -> None:
    memory, planned = report["board"]["memory"], read_plan(bundle / "vision/plan.json").memory.planned_bytes
    assert memory["planned_arena_bytes"] == memory["linked_arena_bytes"] == memory["firmware_arena_bytes"] == planned
    assert planned - 19 <= memory["painted_arena_bytes"] <= planned
    assert 0 < memory["painted_stack_bytes"] < memory["stack_bytes"]
    assert memory["linked_ram_bytes"] is not None
    assert planned + memory["stack_bytes"] < memory["linked_ram_bytes"] <= 15 * 1024
    assert memory["linked_flash_bytes"] is not None
    assert 8 * 1024 < memory["linked_flash_bytes"] < 64 * 1024


@needs_tools
def test_the_map_has_what_the_program_has(bundle: Path) -> None:
    """Loaded bytes as the ELF's program headers have them."""
    opened = Bundle.open(bundle)
    program = build_firmware(opened, bundle_firmware(opened))
    elf = program.read_bytes()
    start, count = int.from_bytes(elf[28:32], "little"), int.from_bytes(elf[44:46], "little")
    headers = [np.frombuffer(elf, "<u4", 8, start + 32 * number).tolist() for number in range(count)]
    loaded = sum(file_bytes for kind, _, _, _, file_bytes, *_ in headers if kind == 1)
    assert read_linker_map(linker_map(program)).flash_bytes == loaded


@needs_tools
def test_the_output_is_the_golden_one(report: Report) -> None:
    assert report["board"]["output"] == {
        "is_always_the_same": True,
        "differing_bytes": 0,
        "max_difference": 0,
        "unreadable": {},
    }


@needs_tools
def test_the_line_is_counted_for_each_image(report: Report, bundle: Path) -> None:
    plan = read_plan(bundle / "vision/plan.json")
    channels = plan.input.shape[3]
    windows = sum(rows * columns * channels for rows, columns in (tile.window.shape for tile in plan.tiles))
    assert len(report["board"]["line"]) == 5
    for repetition in report["board"]["line"]:
        own = repetition["bytes_sent"] - repetition["bytes_resent"]
        assert windows < own < windows + 40 * repetition["frames_sent"]
        assert repetition["frames_damaged"] == 0


def spoilt(report: Report, **changes: Any) -> BoardReport:
    """The report's board with other values: a key of ``memory`` or ``output`` if it has it."""
    board: Any = json.loads(json.dumps(report["board"]))
    for key, value in changes.items():
        next(part for part in (board["memory"], board["output"], board) if key in part)[key] = value
    return board  # type: ignore[no-any-return]


@needs_tools
@pytest.mark.parametrize(
    ("changes", "gate", "outcome"),
    [
        ({"painted_arena_bytes": 1000}, "memory", "failed"),
        ({"linked_arena_bytes": 9999}, "memory", "failed"),
        ({"firmware_arena_bytes": 9999}, "memory", "failed"),
        ({"painted_stack_bytes": 10**6}, "memory", "failed"),
        ({"linked_flash_bytes": 2**21}, "memory", "failed"),
        ({"max_difference": 2}, "output", "failed"),
        ({"max_difference": 1}, "output", "passed"),
        ({"is_always_the_same": False}, "output", "failed"),
        ({"line": [{"frames_damaged": 1, "frames_sent": 9, "frames_resent": 1}]}, "line", "failed"),
    ],
)
def test_gates(report: Report, changes: dict[str, Any], gate: str, outcome: str) -> None:
    judged = {each["gate"]: each["outcome"] for each in judge_board(spoilt(report, **changes))}
    assert judged[gate] == outcome
    assert [name for name, found in judged.items() if found == "failed"] == ([gate] if outcome == "failed" else [])


@needs_tools
def test_a_clock_that_cannot_be_right(report: Report) -> None:
    """Microseconds of computing against the host's milliseconds."""
    samples = report["board"]["compute"]["instructions"]
    assert samples is not None
    compute = {"us": {**samples, "samples": [3000.0] * 5}, "instructions": None}
    real = {"compute": compute, "is_emulated": False}
    for ms, outcome in ((2.0, "failed"), (3.5, "passed")):
        latency = {**samples, "samples": [ms] * 5}
        judged = judge_board(spoilt(report, **real, latency_ms=latency))
        assert [gate["outcome"] for gate in judged if gate["gate"] == "clock"] == [outcome]


@pytest.fixture
def edgepipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs `edgepipe measure` in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(["measure", *map(str, arguments)])
        assert isinstance(caught.value.code, int)
        return caught.value.code, *capsys.readouterr()

    return run


@needs_tools
def test_a_user_measures_an_emulated_board(edgepipe: Any, bundle: Path) -> None:
    code, out, err = edgepipe(bundle, "--device", "qemu:netduinoplus2", "-o", "there")
    assert (code, err) == (0, "")
    first, second, *files = out.splitlines()
    assert first.startswith("image on qemu:netduinoplus2: ")
    assert first.endswith(" million instructions, emulated: not a time")
    assert second.startswith("arena painted to ")
    assert files == [str(Path("there/report.md")), str(Path("there/report.json"))]
    assert read_report(Path("there/report.json"))["status"] == "emulated"
    text = Path("there/report.md").read_text(encoding="utf-8")
    assert "**Status: emulated.**" in text
    assert "--device qemu:netduinoplus2\n" in text
    defined = text.partition("## Definitions")[2]
    assert "`planned_arena_bytes`" in defined
    assert "ttft" not in defined  # nothing of texts


@needs_tools
@pytest.mark.slow
@pytest.mark.parametrize("board", ["mps2-an500", "mps3-an547"])
@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({"sram": "15K"}, ["patch 0,0", "tail"]),
        ({"sram": "15K", "mode": "resident"}, ["all patches", "tail"]),
        ({}, ["image", "image"]),
    ],
)
def test_other_cores_and_modes(
    tiny_vision: Path, tmp_path: Path, board: str, options: dict[str, Any], ends: list[str]
) -> None:
    recipe = VisionRecipe(str(tiny_vision), formats=("tflite", "firmware"), board=board, **options)
    report = measure_board(export(Recipe(vision=recipe), tmp_path / "bundle").folder, f"qemu:{board}")
    assert report["status"] == "emulated", report["gates"]
    assert {gate["gate"]: gate["outcome"] for gate in report["gates"] if gate["outcome"] != "passed"} == {
        "clock": "unknown"
    }
    names = [step["step"] for step in report["board"]["steps"]]
    assert [names[0], names[-1]] == ends


@needs_tools
def test_too_few_samples_are_exit_code_5(edgepipe: Any, bundle: Path) -> None:
    code, _, err = edgepipe(bundle, "--device", "qemu:netduinoplus2", "--repeats", 1)
    assert code == 5
    assert "these gates failed: samples" in err
    assert read_report(Path("report/report.json"))["status"] == "untrustworthy"


@needs_tools
def test_a_board_on_a_line_has_time(bundle: Path) -> None:
    """The same board behind a port: what is called time there must not be taken for it."""
    opened = Bundle.open(bundle)
    emulator = Emulator(find_board("netduinoplus2"), build_firmware(opened, bundle_firmware(opened)))
    with emulator:
        report = measure_board(bundle, f"mcu:{emulator.port}", repeats=5)
    board = report["board"]
    assert report["status"] == "untrustworthy"
    assert [gate["gate"] for gate in report["gates"] if "emulated" in "".join(gate["details"])] == ["clock"]
    assert board["compute"]["instructions"] is None
    assert board["latency_ms"] is not None
    assert board["transfer_ms"] is not None
    assert board["compute"]["us"] is not None
    for latency, transfer, us in zip(
        board["latency_ms"]["samples"], board["transfer_ms"]["samples"], board["compute"]["us"]["samples"], strict=True
    ):
        assert transfer == pytest.approx(latency - us / 1000)
    assert " µs" in markdown(report)


def test_an_absent_board_is_exit_code_4(edgepipe: Any, bundle: Path) -> None:
    code, out, err = edgepipe(bundle, "--device", "mcu:/dev/no-such-port")
    assert (code, out) == (4, "")
    assert err.startswith("error: /dev/no-such-port cannot be opened")
    assert not Path("report/report.json").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "qemu:netduinoplus2", "--policy", "h2o"], "--policy is an option of an engine"),
        (["--device", "mcu:x", "--exact"], "--exact is an option of an engine"),
        (["--baud", "115200"], "--baud belongs to a --device mcu:PORT"),
    ],
)
def test_flags_that_do_not_go_together(edgepipe: Any, bundle: Path, flags: list[str], message: str) -> None:
    code, out, err = edgepipe(bundle, *flags)
    assert (code, out) == (2, "")
    assert message in err
