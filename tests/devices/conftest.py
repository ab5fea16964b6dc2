"""Trees of /proc and /sys, and a vcgencmd, that say what a test wants them to say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Tree = Callable[[Mapping[str, str]], Path]
Vcgencmd = Callable[[str], None]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """``tree({"proc/loadavg": "0.1 ..."})`` → a root folder with these files."""

    def plant(files: Mapping[str, str]) -> Path:
        root = tmp_path / "root"
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return plant


@pytest.fixture
def vcgencmd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vcgencmd:
    """``vcgencmd(script)`` puts a shell script of that name on a PATH that otherwise holds only the system's."""

    def plant(script: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "vcgencmd"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    return plant


@pytest.fixture(autouse=True)
def no_vcgencmd(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Unless a test plants one there is no vcgencmd, not even on a Raspberry Pi."""
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
