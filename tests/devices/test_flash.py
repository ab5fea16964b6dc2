"""Writing flash: what of an ELF file goes where, and what tools say, real ones that find no board among them."""

from __future__ import annotations

import os
import shutil
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgepipe.devices.boards import boards, find_board
from edgepipe.devices.flash import flash_command, flash_image, write_flash
from edgepipe.errors import DeviceUnreachable, EdgepipeError

PATH = os.environ["PATH"]
F405 = find_board("stm32f405")
WRITABLE = [board for board in boards().values() if board.flasher]


def elf(*pieces: tuple[int, bytes], machine: int = 40, identity: bytes = b"\x7fELF\1\1\1") -> bytes:
    """An ELF file with these pieces, each at its address; what has no bytes is memory that starts as zeros."""
    table, content = 52, b""
    segments = []
    for address, piece in pieces:
        offset = table + 32 * len(pieces) + len(content)
        segments.append(struct.pack("<8I", 1, offset, 0x20000000, address, len(piece), len(piece) or 64, 6, 4))
        content += piece
    header = struct.pack("<16sHHIIIIIHHHHHH", identity, 2, machine, 1, 0, table, 0, 0, 52, 32, len(pieces), 0, 0, 0)
    return header + b"".join(segments) + content


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "a program.elf"
    path.write_bytes(elf((F405.flash_begin + 6, b"later"), (F405.flash_begin, b"code"), (0x20000000, b"")))
    return path


def plant(folder: Path, name: str, script: str) -> None:
    """A program of that name, in Python."""
    folder.mkdir(exist_ok=True)
    tool = folder / name
    tool.write_text(f"#!{sys.executable}\nimport sys, json, os\n{script}\n")
    tool.chmod(0o755)


def test_pieces_go_where_they_are_loaded(program: Path) -> None:
    assert flash_image(F405, program) == b"code\xff\xfflater"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x7fELF",
        b"#!/bin/sh\n" * 20,
        elf(),
        elf((F405.flash_begin, b"")),
        elf((F405.flash_begin, b"code"), machine=62),
        elf((F405.flash_begin, b"code"), identity=b"\x7fELF\2\1\1"),
        elf((F405.flash_begin, b"code" * 9))[:-5],
    ],
)
def test_what_is_no_program(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(EdgepipeError, match=r"is no program for a microcontroller: expected an ELF file, as make"):
        flash_image(F405, path)


@pytest.mark.parametrize("address", [0, F405.flash_begin - 1, F405.flash_begin + F405.flash - 3, 0xFFFFFFF0])
def test_a_program_for_another_board(address: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(elf((address, b"code")))
    with pytest.raises(EdgepipeError, match=rf"4 bytes for {address:#010x}, outside of the flash of stm32f405: build"):
        flash_image(F405, path)


@pytest.mark.parametrize("board", WRITABLE, ids=lambda board: board.name)
def test_commands_name_the_program(board, program: Path) -> None:
    words = flash_command(board, program, Path("image.bin"))
    assert words[0] in ("openocd", "picotool", "st-flash")
    assert any(str(program) in word or word == "image.bin" for word in words)
    assert not any("{elf" in word or "{bin" in word or "{flash" in word for word in words)


def test_boards_that_are_emulated_only() -> None:
    with pytest.raises(
        EdgepipeError, match=r"no tool writes to netduinoplus2: run it with --device qemu:netduinoplus2"
    ):
        flash_command(find_board("netduinoplus2"), Path("x"), Path("x"))


def test_a_tool_gets_the_command(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path / "bin", "st-flash", "open(os.environ['SEEN'], 'w').write(json.dumps(sys.argv[1:]))")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    write_flash(flash_command(F405, program, tmp_path / "an image.bin"))
    expected = f'["--connect-under-reset", "--reset", "write", "{tmp_path}/an image.bin", "0x08000000"]'
    assert (tmp_path / "seen").read_text() == expected


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "Connecting ...\nError: the chip is locked\n** Programming Failed **\nshutdown command invoked",
            "the chip is",
        ),
        ("2026-01-01T00:00:00 WARN usb.c: Couldn't find any ST-Link devices", "Couldn't find any ST-Link devices"),
        ("ERROR: Unable to connect to the device", "Unable to connect to the device"),
        ("No accessible RP-series devices in BOOTSEL mode were found.", "No accessible RP-series devices in BOOTSEL"),
        ("", "code 7"),
    ],
)
def test_a_tool_that_fails(said: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path / "bin", "picotool", f"print({said!r}, file=sys.stderr)\nsys.exit(7)")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(
        DeviceUnreachable, match=rf"^picotool fails \({reason}[^\n]*\): see that board and probe"
    ) as error:
        write_flash(["picotool", "load"])
    assert error.value.exit_code == 4


@pytest.mark.parametrize("tool", ["openocd", "picotool", "st-flash"])
def test_it_says_which_tool_to_install(tool: str) -> None:
    package = "stlink-tools" if tool == "st-flash" else tool
    with pytest.raises(EdgepipeError, match=rf"^{tool} is not installed, .+: apt install {package}") as error:
        write_flash([tool])
    assert error.value.exit_code == 1


# Probes that nobody has: these commands must not write to one that happens to be plugged in.
@pytest.mark.parametrize(
    ("flasher", "reason"),
    [
        ("st-flash --serial 0123456789ABCDEF01234567 write {bin} {flash_begin}", "ST-Link"),
        (
            "openocd -f interface/cmsis-dap.cfg -c 'adapter serial nobody' -f target/nrf52.cfg "
            "-c init -c 'flash write_image erase {{{elf}}}' -c shutdown",
            "unable to find a matching CMSIS-DAP device",
        ),
    ],
)
def test_a_real_tool_without_a_probe(flasher: str, reason: str, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", PATH)
    tool = flasher.partition(" ")[0]
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}")
    with pytest.raises(DeviceUnreachable, match=reason):
        write_flash(flash_command(replace(F405, flasher=flasher), program, program))


def test_openocd_itself_writes_a_file_with_a_space_in_its_name(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into its own faux flash, behind its dummy adapter; the rest of the command is that of a board."""
    monkeypatch.setenv("PATH", PATH)
    if shutil.which("openocd") is None:
        pytest.skip("no openocd")
    chip = (
        "adapter driver dummy; transport select jtag; adapter speed 100; jtag newtap chip cpu -irlen 4; "
        "target create core testee -chain-position chip.cpu; "
        f"flash bank bank faux {F405.flash_begin:#x} {F405.flash:#x} 0 0 core x"
    )
    command = flash_command(find_board("nrf52840"), program, program)
    begin = command.index("flash write_image erase {" + str(program) + "}") - 1
    write_flash(["openocd", "-c", chip, "-c", "init", *command[begin : begin + 2], "-c", "shutdown"])
    with pytest.raises(DeviceUnreachable, match="couldn.t open no-such-file"):
        write_flash(["openocd", "-c", chip, "-c", "init", "-c", "flash write_image no-such-file", "-c", "shutdown"])
