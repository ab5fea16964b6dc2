"""The doctor on devices: a bare one, one that was deployed to, a phone without Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgepipe.pipeline.doctor import Examination, doctor

Cli = Callable[..., subprocess.CompletedProcess[str]]

FIRMWARE = """#!/bin/sh
case "$*" in
  measure_temp) echo "temp=71.0'C" ;;
  "measure_clock arm") echo "frequency(0)=1500345728" ;;
  get_throttled) echo "throttled=0x50005" ;;
esac
"""


def plant_firmware(folder: Path) -> None:
    """A vcgencmd of a Raspberry Pi on a weak power supply."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "vcgencmd"
    program.write_text(FIRMWARE)
    program.chmod(0o755)


def outcomes(examination: Examination) -> dict[str, tuple[str, str]]:
    return {finding.check: (finding.outcome, finding.found) for finding in examination.findings}


def test_a_bare_device(fakes: ModuleType, device_path: str, tmp_path: Path) -> None:
    plant_firmware(tmp_path / "bin")
    home = tmp_path / "home"
    home.mkdir()
    examination = doctor(fakes.FakeDevice(home, f"{tmp_path / 'bin'}:{device_path}"))
    found = outcomes(examination)
    assert found["throttling"][0] == "advice"
    assert "under-voltage now, throttled now" in found["throttling"][1]
    assert found["temperature"] == ("advice", "71.0 °C: a run will make it throttle")
    assert found["Python"][0] == "ok"
    assert sorted(path.name for path in (home / ".edgepipe").iterdir()) == ["wheel"], "nothing is installed"


def test_a_device_without_python(fakes: ModuleType, tmp_path: Path) -> None:
    for tool in ("sh", "head"):
        (tmp_path / tool).symlink_to(f"/bin/{tool}" if Path(f"/bin/{tool}").exists() else f"/usr/bin/{tool}")
    (tmp_path / "home").mkdir()
    examination = doctor(fakes.FakeDevice(tmp_path / "home", str(tmp_path)))
    assert not examination.works
    (finding,) = examination.findings
    assert finding.check == "Python"
    assert finding.found.startswith("no Python, expected Python 3.11 or later")
    assert finding.remedy == "sudo apt install python3"
    assert examination.facts is None


@pytest.mark.slow
def test_over_ssh_with_an_engine(ssh_server: Any, cli: Cli) -> None:
    done = cli("doctor", "--device", "ssh:pi", "--json", environment=ssh_server.environment())
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    engines = [finding for finding in told["findings"] if finding["check"] == "onnxruntime"]
    assert [engine["outcome"] for engine in engines] == ["ok"]
    assert told["facts"]["installed"]["requirements"]
    assert set(told["facts"]["engines"]) == {"onnxruntime"}, "those of the device's environment, not of this one"


@pytest.mark.slow
def test_over_adb(fake: Callable[[str], ModuleType], home: Path, device_path: str, cli: Cli, tmp_path: Path) -> None:
    plant_firmware(tmp_path / "bin")
    unplugged = fake("fake_adb").plant(tmp_path, home, f"{tmp_path / 'bin'}:{device_path}")
    reaching = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = cli("doctor", "--device", "adb:emulator-5554", environment=reaching)
    assert done.returncode == 0, done.stderr
    assert "0x50005: under-voltage now" in done.stdout
    unplugged.touch()
    done = cli("doctor", "--device", "adb:emulator-5554", "--json", environment=reaching)
    assert done.returncode == 4
    assert json.loads(done.stdout)["error"]["type"] == "DeviceUnreachable"


@pytest.mark.slow
def test_a_phone_without_python_is_told_and_left_alone(
    fake: Callable[[str], ModuleType], cli: Cli, tmp_path: Path
) -> None:
    phone = fake("fake_termux").Termux(tmp_path / "phone")
    phone.make()
    reaching = {**os.environ, "PATH": f"{phone.client}:{os.environ['PATH']}"}
    done = cli("doctor", "--device", "termux:u0_a123@phone", environment=reaching)
    assert done.returncode == 1
    assert "-> pkg install python" in done.stdout
    assert not (phone.root / "pkg.log").exists()


@pytest.mark.slow
def test_a_measurement_there_with_a_set_throttle_bit_is_not_trusted(
    fake: Callable[[str], ModuleType],
    home: Path,
    device_path: str,
    tiny_bundle: Path,
    cli: Cli,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    module = fake("ssh_server")
    if module.SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd: apt install openssh-server")
    plant_firmware(tmp_path / "bin")
    server = module.SshServer(tmp_path_factory.mktemp("sshd"), home, f"{tmp_path / 'bin'}:{device_path}")
    try:
        there = {"environment": server.environment()}
        assert cli("deploy", tiny_bundle, "--device", "ssh:pi", **there).returncode == 0
        quick = ("--prompt-lengths", "4", "--new-tokens", "3", "--max-width", "2", "--threads", "auto")
        done = cli("measure", tiny_bundle, *quick, "--device", "ssh:pi", "-o", tmp_path / "report", **there)
    finally:
        server.stop()
    assert done.returncode == 5, done.stderr
    assert "throttling" in done.stderr
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert report["status"] == "untrustworthy"
    assert report["conditions"]["after"]["throttled_bits"] == 0x50005
    assert {moment["temperature_c"] for moment in report["conditions"]["during"]} == {71.0}
    assert report["configuration"]["threads"] == "auto"
