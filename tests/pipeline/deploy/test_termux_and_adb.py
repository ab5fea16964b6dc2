"""Phones and boards through an `ssh` and an `adb` that lead into folders of this computer."""

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

pytestmark = pytest.mark.slow

Cli = Callable[..., subprocess.CompletedProcess[str]]
IsWhole = Callable[[Path], bool]


@pytest.fixture
def phone(fake: Callable[[str], ModuleType], tmp_path: Path) -> Any:
    termux = fake("fake_termux").Termux(tmp_path / "phone")
    termux.make()
    if not termux.has_own_python():
        pytest.skip("a copy of this Python does not take its libraries from where it stands")
    return termux


def reaching(client: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{client}:{os.environ['PATH']}"}


def test_termux_gets_its_own_packages_and_the_rest_by_pip(
    phone: Any, tiny_bundle: Path, wheels: Path, cli: Cli, is_whole: IsWhole, tmp_path: Path
) -> None:
    pure = tmp_path / "wheels"
    pure.mkdir()
    for wheel in wheels.iterdir():
        if wheel.name.partition("-")[0] not in ("numpy", "onnxruntime", "pillow"):
            shutil.copy(wheel, pure)
    there = {"environment": reaching(phone.client)}
    deploy = ("deploy", tiny_bundle, "--device", "termux:u0_a123@phone", "--json")
    done = cli(*deploy, "--wheels", pure, **there)
    assert done.returncode == 0, done.stderr + done.stdout
    # Python had to come first, to look at what is there.
    assert (phone.root / "pkg.log").read_text().splitlines() == [
        "install -y python python-ensurepip-wheels",
        "install -y python python-ensurepip-wheels python-numpy python-onnxruntime",
    ]
    environment = phone.root / "home/.edgepipe/venv"
    assert "include-system-site-packages = true" in (environment / "pyvenv.cfg").read_text()
    installed = {path.name.partition("-")[0] for path in environment.glob("lib/*/site-packages/*.dist-info")}
    assert {"click", "jinja2", "rich", "edgepipe"} <= installed
    assert not {"numpy", "onnxruntime"} & installed
    assert is_whole(phone.root / "home/.edgepipe/bundles" / tiny_bundle.name)
    assert all("'-p', '8022'" in line for line in (phone.root / "ssh.log").read_text().splitlines())

    again = json.loads(cli(*deploy, **there).stdout)
    assert (again["installed"], again["copied_bytes"]) == (False, 0)
    assert len((phone.root / "pkg.log").read_text().splitlines()) == 2
    answer = cli("run", tiny_bundle, "fox", "-n", "8", "--json", "--device", "termux:phone", **there)
    here = cli("run", tiny_bundle, "fox", "-n", "8", "--json")
    assert json.loads(answer.stdout)["tokens"] == json.loads(here.stdout)["tokens"]


def test_a_phone_that_sleeps(phone: Any, tiny_bundle: Path, cli: Cli) -> None:
    (phone.root / "asleep").touch()
    done = cli("deploy", tiny_bundle, "--device", "termux:phone", environment=reaching(phone.client))
    assert (done.returncode, done.stdout) == (4, "")
    assert "Connection timed out" in done.stderr
    assert "termux-wake-lock" in done.stderr


def test_a_board_over_adb(
    fake: Callable[[str], ModuleType],
    home: Path,
    device_path: str,
    tiny_bundle: Path,
    cli: Cli,
    is_whole: IsWhole,
    tmp_path: Path,
) -> None:
    unplugged = fake("fake_adb").plant(tmp_path, home, device_path)
    there = {"environment": reaching(tmp_path)}
    done = cli("deploy", tiny_bundle, "--device", "adb:emulator-5554", **there)
    assert done.returncode == 0, done.stderr
    assert is_whole(home / ".edgepipe/bundles" / tiny_bundle.name)
    answer = cli("run", tiny_bundle, "fox", "-n", "8", "--json", "--device", "adb:emulator-5554", **there)
    here = cli("run", tiny_bundle, "fox", "-n", "8", "--json")
    assert json.loads(answer.stdout)["tokens"] == json.loads(here.stdout)["tokens"]
    small = ("--prompt-lengths", "8", "-n", "4", "--repeats", "1", "--max-width", "1")
    done = cli("measure", tiny_bundle, *small, "-o", tmp_path / "report", "--device", "adb:emulator-5554", **there)
    assert done.returncode in (0, 5), done.stderr
    assert (tmp_path / "report/report.json").is_file()
    unplugged.touch()
    for verb in (["deploy"], ["run", "fox"]):
        done = cli(verb[0], tiny_bundle, *verb[1:], "--device", "adb:emulator-5554", **there)
        assert done.returncode == 4
        assert "device 'emulator-5554' not found" in done.stderr
