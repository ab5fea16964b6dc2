"""`edgepipe measure` as a user meets it: files, lines, JSON, exit codes, and mistakes found before any measuring."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edgepipe.devices import probes
from edgepipe.pipeline import cli, cooling, measure, measure_decoder
from edgepipe.pipeline.gates import Gate
from edgepipe.pipeline.report import read_report

QUICK = ("--prompt-lengths", "4,9", "--new-tokens", "3", "--max-width", "2", "--threads", "1")


@pytest.fixture
def edgepipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs `edgepipe measure` in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(["measure", *map(str, arguments)])
        assert isinstance(caught.value.code, int)
        return caught.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """All gates pass, whatever this machine is busy with."""

    def judge(series: Any, conditions: Any, cores: Any) -> list[Gate]:
        return [Gate(gate="variation", limit="", outcome="passed", details=[])]

    monkeypatch.setattr(measure, "judge", judge)


@pytest.fixture
def no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if anything is timed."""

    def time_decode(*arguments: Any) -> None:
        raise AssertionError("it measures")

    monkeypatch.setattr(measure_decoder, "time_decode", time_decode)


@pytest.mark.usefixtures("a_quiet_machine")
def test_a_report_beside_the_user(edgepipe: Any, tiny_bundle: Path, tmp_path: Path) -> None:
    code, out, err = edgepipe(tiny_bundle, *QUICK)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.partition(":")[0] for line in lines[:-2]] == ["prompt 4", "prompt 9"]
    assert lines[-2:] == [str(Path("report/report.md")), str(Path("report/report.json"))]
    report = read_report(tmp_path / "report" / "report.json")
    assert report["configuration"]["decode"]["drafter"] == "lookup,model", "the bundle has a draft"
    assert (tmp_path / "report" / "report.md").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.usefixtures("a_quiet_machine")
def test_against_plain(edgepipe: Any, tiny_bundle: Path) -> None:
    code, out, _ = edgepipe(tiny_bundle, *QUICK, "--against", "plain", "--drafter", "lookup", "-o", "there")
    assert code == 0
    heads = [line.partition(":")[0] for line in out.splitlines()]
    assert heads[:3] == ["prompt 4", "prompt 4, plain", "prompt 4, against plain"]
    assert read_report(Path("there/report.json"))["configuration"]["decode"]["drafter"] == "lookup"


@pytest.mark.parametrize(("bits", "outcome"), [("0x0", "passed"), ("0x50005", "failed"), ("0x50000", "failed")])
def test_a_set_throttle_bit_makes_a_report_untrustworthy(
    edgepipe: Any, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: str, outcome: str
) -> None:
    firmware = tmp_path / "bin" / "vcgencmd"
    firmware.parent.mkdir()
    firmware.write_text(f"#!/bin/sh\n[ $1 = get_throttled ] && echo throttled={bits}\n")
    firmware.chmod(0o755)
    monkeypatch.setenv("PATH", f"{firmware.parent}:/usr/bin:/bin")
    code, _, err = edgepipe(tiny_bundle, *QUICK)
    report = read_report(Path("report/report.json"))
    (gate,) = (gate for gate in report["gates"] if gate["gate"] == "throttling")
    assert gate["outcome"] == outcome
    if outcome == "failed":
        assert (code, report["status"]) == (5, "untrustworthy")
        assert "throttling" in err


@pytest.mark.usefixtures("a_quiet_machine")
def test_it_waits_until_the_device_is_cool(
    edgepipe: Any, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "asked"
    firmware = tmp_path / "bin" / "vcgencmd"
    firmware.parent.mkdir()
    firmware.write_text(f'#!/bin/sh\necho >> {log}\necho "temp=$((65 - 5 * $(wc -l < {log}))).0\'C"\n')
    firmware.chmod(0o755)
    monkeypatch.setenv("PATH", f"{firmware.parent}:/usr/bin:/bin")
    monkeypatch.setattr(cooling, "EVERY_S", 0.0)
    code, _, err = edgepipe(tiny_bundle, *QUICK, "--cool-to", "45")
    assert (code, err) == (0, "")
    report = read_report(Path("report/report.json"))
    assert report["conditions"]["before"]["temperature_c"] < 45
    assert "--cool-to 45.0 --cool-limit 600.0" in Path("report/report.md").read_text()


def test_a_board_tells_no_temperature_to_cool_down_to(edgepipe: Any, tiny_bundle: Path) -> None:
    code, _, err = edgepipe(tiny_bundle, "--device", "qemu:mps3-an547", "--cool-to", "45")
    assert code == 2
    assert "--cool-to reads the processor's temperature" in err


@pytest.mark.usefixtures("no_measuring")
def test_a_device_without_a_temperature_cannot_cool_down(
    edgepipe: Any, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nothing = partial(probes.temperature_c, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(measure, "cool_down", partial(cooling.cool_down, read=nothing))
    code, _, err = edgepipe(tiny_bundle, *QUICK, "--cool-to", "45")
    assert code == 1
    assert "no temperature can be read" in err
    assert err.count("\n") == 1


def test_an_untrustworthy_report_is_written_and_exits_with_5(edgepipe: Any, tiny_bundle: Path) -> None:
    code, out, err = edgepipe(tiny_bundle, *QUICK, "--repeats", "1")
    assert code == 5
    assert out.splitlines()[-1] == str(Path("report/report.json"))
    assert err.startswith("error: the measurement is not to be trusted")
    assert "samples" in err
    assert err.count("\n") == 1
    assert read_report(Path("report/report.json"))["status"] == "untrustworthy"


def test_json_is_the_report_and_one_object(edgepipe: Any, tiny_bundle: Path) -> None:
    code, out, err = edgepipe(tiny_bundle, *QUICK, "--repeats", "1", "--json")
    assert (code, err) == (5, "")
    assert json.loads(out) == read_report(Path("report/report.json"))


@pytest.mark.usefixtures("no_measuring")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("-o", "file/report"), 1, "no report can be written to"),
        (("-o", "file"), 2, "is a file"),
        (("--prompt-lengths", "500"), 1, "prompt length 500 and 64 new tokens"),
        (("--prompt-lengths", "12,many"), 2, "'12,many' is no list of numbers"),
        (("--prompt-lengths", ""), 2, "is no list of numbers"),
        (("--prompt-lengths", "0"), 2, "has a length of 0"),
        (("--new-tokens", "1"), 2, "--new-tokens"),
        (("--file", "absent.txt"), 2, "absent.txt"),
        (("--policy", "h2o"), 1, "needs a budget"),
        (("--max-width", "8", "--chunk", "6", "--prompt-lengths", "4", "--gamma", "4"), 1, "max_width is 8"),
    ],
)
def test_mistakes_are_found_before_measuring(
    edgepipe: Any, tiny_bundle: Path, arguments: Sequence[str], code: int, message: str
) -> None:
    Path("file").write_text("")
    found, out, err = edgepipe(tiny_bundle, *arguments)
    assert found == code
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert not Path("report/report.json").exists()


def test_lengths_are_sorted_and_taken_once(edgepipe: Any, tiny_bundle: Path) -> None:
    edgepipe(tiny_bundle, *QUICK[2:], "--prompt-lengths", "9, 4,9", "--repeats", "1")
    assert read_report(Path("report/report.json"))["configuration"]["prompt_lengths"] == [4, 9]
