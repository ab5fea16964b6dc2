"""Trees of /proc and /sys, and a vcgencmd, that say what a test wants them to say; a board that is a process."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

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


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """tests/fakes/fake_board.py."""
    path = Path(__file__).parents[1] / "fakes/fake_board.py"
    specification = importlib.util.spec_from_file_location("fake_board", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["fake_board"] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def board_program(fake: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The firmware's protocol over a fake model, as a program of this computer."""
    program: Path | None = fake.build(tmp_path_factory.mktemp("board"))
    if program is None:
        pytest.skip("no gcc")
    return program
