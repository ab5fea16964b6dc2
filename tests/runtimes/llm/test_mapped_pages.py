"""All pages of a mapped file become resident at once."""

from __future__ import annotations

import mmap
import platform
import re
from pathlib import Path

import pytest

from edgepipe.runtimes.llm.engines.mapped_pages import populate

KERNEL = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])


def resident_kib(path: Path) -> int:
    """The kernel's own count of the resident pages of a mapping."""
    lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.endswith(f" {path}"))
    return int(next(line for line in lines[start:] if line.startswith("Rss:")).split()[1])


@pytest.mark.skipif(platform.system() != "Linux" or KERNEL < (5, 14), reason="needs Linux 5.14")
def test_pages_of_a_mapped_file_become_resident(tmp_path: Path) -> None:
    for name, inside in (("model.data", True), ("elsewhere", False)):
        folder = tmp_path / name
        folder.mkdir()
        path = folder / name
        path.write_bytes(bytes(1 << 20))
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
            assert resident_kib(path) == 0
            populate(folder if inside else tmp_path / "model.data")
            assert resident_kib(path) == (1024 if inside else 0)


def test_a_folder_that_nothing_is_mapped_from(tmp_path: Path) -> None:
    populate(tmp_path / "missing")


def test_a_system_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise FileNotFoundError("/proc/self/maps")

    monkeypatch.setattr("builtins.open", refuse)
    populate(tmp_path)
