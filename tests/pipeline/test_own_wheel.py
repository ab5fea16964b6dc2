"""The wheel that a running edgepipe makes of itself, against the one that setuptools builds."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from edgepipe.pipeline.own_wheel import write_own_wheel


def read(wheel: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Files of the packages, and of the metadata, by name."""
    with zipfile.ZipFile(wheel) as opened:
        files = {name: opened.read(name) for name in opened.namelist()}
    packages = {name: content for name, content in files.items() if name.startswith("edgepipe/")}
    return packages, {name.partition("/")[2]: files[name] for name in files.keys() - packages.keys()}


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first, second = write_own_wheel(tmp_path), write_own_wheel(tmp_path / "again")
    assert first.read_bytes() == second.read_bytes()


def test_it_runs_from_the_zip_with_python_alone(tmp_path: Path) -> None:
    """As on a device before anything is installed: `-I -S` hides all packages."""
    wheel = write_own_wheel(tmp_path)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import edgepipe.devices.environment as it; print(it.__file__)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script, wheel], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(wheel))


@pytest.mark.slow
def test_it_is_the_wheel_that_setuptools_builds_but_for_drafts(wheel: Path, tmp_path: Path) -> None:
    ours, built = read(write_own_wheel(tmp_path)), read(wheel)
    assert ours[0] == {name: content for name, content in built[0].items() if "/drafts/" not in name}
    assert ours[1]["entry_points.txt"].split() == built[1]["entry_points.txt"].split()
    metadata = [message_from_bytes(each[1]["METADATA"]) for each in (ours, built)]
    assert metadata[0]["Version"] == metadata[1]["Version"]
    assert sorted(metadata[0].get_all("Requires-Dist")) == sorted(metadata[1].get_all("Requires-Dist"))
    # pip checks every line of RECORD as it installs.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "site")]
    done = subprocess.run([*command, str(write_own_wheel(tmp_path))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
