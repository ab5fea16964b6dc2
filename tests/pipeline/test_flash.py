"""`edgepipe flash`, with tools that only note what they are told."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgepipe.pipeline import cli
from edgepipe.pipeline.export import export
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.vision_recipe import VisionRecipe

missing = [tool for tool in ("make", "arm-none-eabi-gcc") if shutil.which(tool) is None]
needs_tools = pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}")
NOTE = '#!/bin/sh\nfor word in "$@"; do echo "$word" >>"$SEEN"; done\n'


@pytest.fixture(scope="module")
def bundle_for(tiny_vision: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``bundle_for(board)`` → a bundle with firmware, in a folder with a space."""

    @functools.cache
    def build(board: str) -> Path:
        folder = tmp_path_factory.mktemp(board) / "my bundle"
        recipe = VisionRecipe(str(tiny_vision), formats=("firmware",), board=board)
        return export(Recipe(vision=recipe), folder).folder

    return build


@pytest.fixture
def edgepipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs `edgepipe flash` where the tools note their arguments in the file ``seen``; code, stdout and stderr."""
    for tool in ("st-flash", "openocd", "picotool"):
        (tmp_path / tool).write_text(NOTE)
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(["flash", *map(str, arguments)])
        assert isinstance(caught.value.code, int)
        return caught.value.code, *capsys.readouterr()

    return run


def objcopy(program: str, folder: Path) -> bytes:
    """The program's bytes in flash, by the tool chain's own reckoning."""
    subprocess.run(
        ["arm-none-eabi-objcopy", "-O", "binary", "--gap-fill", "0xff", program, folder / "right.bin"], check=True
    )
    return (folder / "right.bin").read_bytes()


@needs_tools
def test_a_bundle_is_built_and_written(edgepipe: Any, bundle_for: Any, tmp_path: Path) -> None:
    bundle = bundle_for("stm32f405")
    code, out, err = edgepipe(bundle, "--json")
    assert (code, err) == (0, "")
    done = json.loads(out)
    right = objcopy(done["program"], tmp_path)
    assert (done["board"], done["flash_bytes"], done["is_written"]) == ("stm32f405", len(right), True)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert seen[:3] == ["--connect-under-reset", "--reset", "write"]
    assert Path(seen[3]).read_bytes() == right
    assert seen[4:] == ["0x08000000"]
    code, out, _ = edgepipe(bundle)
    assert (code, out) == (0, f"{len(right)} bytes written to stm32f405 by st-flash\n")


@needs_tools
def test_a_dry_run_prints_what_a_shell_takes(edgepipe: Any, bundle_for: Any, tmp_path: Path) -> None:
    code, out, err = edgepipe(bundle_for("nrf52840"), "--dry-run")
    assert (code, err) == (0, "")
    assert not (tmp_path / "seen").exists()
    subprocess.run(out, shell=True, check=True)
    seen = (tmp_path / "seen").read_text()
    (written, verified) = re.findall(r"^(?:flash write_image erase|verify_image) {(.+)}$", seen, re.MULTILINE)
    assert written == verified
    assert Path(written).read_bytes()[:4] == b"\x7fELF"


@needs_tools
def test_another_baud_rate_is_another_program(edgepipe: Any, bundle_for: Any, tmp_path: Path) -> None:
    bundle = bundle_for("rp2040")
    programs = {shlex.split(edgepipe(bundle, "--dry-run", *more)[1])[-1] for more in ((), ("--baud", "921600"))}
    assert len({objcopy(program, tmp_path) for program in programs}) == 2


@needs_tools
def test_a_baud_rate_that_the_board_cannot_have(edgepipe: Any, bundle_for: Any) -> None:
    code, out, err = edgepipe(bundle_for("rp2040"), "--dry-run", "--baud", "1000000000")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "the serial port of this board has no such BAUD" in err


@needs_tools
def test_a_program_is_written_as_it_is(edgepipe: Any, bundle_for: Any, tmp_path: Path) -> None:
    built = json.loads(edgepipe(bundle_for("rp2040"), "--json", "--dry-run")[1])["program"]
    mine = shutil.copy(built, tmp_path / "my own.elf")
    assert edgepipe(mine, "--board", "rp2040")[0] == 0
    assert (tmp_path / "seen").read_text().splitlines() == ["load", "-v", "-x", str(mine)]
    code, _, err = edgepipe(mine, "--board", "stm32f746")
    assert (code, err.count("\n")) == (1, 1)
    assert "bytes for 0x10000000, outside of the flash of stm32f746" in err


def test_what_cannot_be_flashed(edgepipe: Any, bundle_for: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    for arguments, code, message in (
        ((bundle_for("netduinoplus2"),), 1, "no tool writes to netduinoplus2: run it with --device qemu:netduinoplus2"),
        ((tmp_path / "file",), 1, "is a file: say which board it is for, with --board"),
        ((tmp_path / "file", "--board", "rp2040", "--baud", "115200"), 1, "and leave out --baud"),
        ((tmp_path / "file", "--board", "rp2040"), 1, "is no program for a microcontroller"),
        ((tmp_path / "file", "--board", "rp2350"), 1, "no board 'rp2350': did you mean rp2040"),
        ((tmp_path / "nothing",), 1, "nothing is no folder: expected a bundle"),
        ((bundle_for("stm32f405"), "--board", "rp2040"), 1, "knows its board, --board rp2040 is for ELF files"),
        ((bundle_for("stm32f405"), "--baud", "9600"), 1, "baud is 9600: expected 115200 or more"),
        ((bundle_for("stm32f405"), "--baud", "fast"), 2, "'fast' is not a valid integer"),
    ):
        found, out, err = edgepipe(*arguments)
        assert (found, out) == (code, "")
        assert message in err
    assert not (tmp_path / "seen").exists()


@needs_tools
def test_without_a_probe_it_is_exit_code_4(edgepipe: Any, bundle_for: Any, tmp_path: Path) -> None:
    (tmp_path / "st-flash").write_text(
        '#!/bin/sh\necho "2026-01-01T00:00:00 WARN usb.c: Couldn\'t find any ST-Link"; exit 255'
    )
    code, out, err = edgepipe(bundle_for("stm32h743"))
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert err.startswith("error: st-flash fails (Couldn't find any ST-Link): see that board and probe are plugged in")
