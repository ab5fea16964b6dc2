"""What `deploy` has pip install on a device can be had without a compiler."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from edgepipe.devices.environment import sources

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--dry-run", "--ignore-installed"]


@pytest.mark.slow
@pytest.mark.parametrize("extra", [None, "executorch", "litert", "vision"])
def test_pip_finds_every_engine_under_these_options(extra: str | None, tmp_path: Path) -> None:
    reach = subprocess.run([*PIP, "--no-deps", "click"], capture_output=True, text=True)
    if reach.returncode:
        pytest.skip(f"pip reaches no index: {reach.stderr.strip().splitlines()[-1]}")
    requirements = EXTRAS[extra] if extra else PROJECT["dependencies"]
    found = subprocess.run([*PIP, *sources(False, None), *requirements], capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "Would install" in found.stdout
