"""What is installed from a wheel is what stands in the repository, and nothing beside `edgepipe`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("devices", "exporters", "pipeline", "runtimes")

SHOW = """
import sys
sys.path.insert(0, sys.argv[1])
from edgepipe.pipeline import cli
print(cli.__file__)
cli.main(["--help"])
"""


@pytest.mark.slow
def test_a_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    found = set(zipfile.ZipFile(wheel).namelist())
    sources = {f"edgepipe/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    sources |= {str(path.relative_to(ROOT)) for path in (ROOT / "edgepipe").rglob("*.py")}
    sources |= {f"edgepipe/{path.relative_to(ROOT)}" for path in (ROOT / "exporters/drafts").glob("*/*")}
    for pattern in ("*.[ch]", "*.ld", "Makefile"):
        sources |= {f"edgepipe/{path.relative_to(ROOT)}" for path in (ROOT / "runtimes/mcu").rglob(pattern)}
    metadata = {name for name in found if name.partition("/")[0].endswith(".dist-info")}
    data = {"edgepipe/py.typed", "edgepipe/devices/boards.toml", "edgepipe/pipeline/compare_page.html"}
    assert found - metadata == sources | data
    assert any(name.endswith("/LICENSE") for name in metadata)


@pytest.mark.slow
def test_the_wheel_runs_from_where_it_is_unpacked(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    command = [sys.executable, "-c", SHOW, str(tmp_path / "site")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site"))
