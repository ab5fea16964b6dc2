"""The list of boards."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from edgepipe.devices.boards import boards, find_board
from edgepipe.errors import EdgepipeError

QEMU = shutil.which("qemu-system-arm")


def test_memory_is_that_of_the_data_sheets():
    assert {name: (board.sram, board.flash) for name, board in boards().items()} == {
        "netduinoplus2": (192 * 1024, 1024 * 1024),
        "stm32f405": (128 * 1024, 1024 * 1024),
        "stm32f746": (320 * 1024, 1024 * 1024),
        "stm32h743": (512 * 1024, 2048 * 1024),
        "nrf52840": (256 * 1024, 1024 * 1024),
        "rp2040": (264 * 1024, 2048 * 1024),
        "mps3-an547": (512 * 1024, 2048 * 1024),
        "mps2-an500": (4096 * 1024, 4096 * 1024),
    }


def test_a_board_is_found_by_name_in_any_case():
    assert find_board("nRF52840").core == "Cortex-M4F"


def test_an_unknown_board_suggests_what_was_meant():
    with pytest.raises(EdgepipeError, match="did you mean nrf52840"):
        find_board("nrf52480")
    with pytest.raises(EdgepipeError, match="expected one of netduinoplus2"):
        find_board("abacus")


@pytest.mark.skipif(QEMU is None, reason="qemu-system-arm is not installed")
def test_emulated_boards_are_machines_of_qemu():
    listed = subprocess.run([QEMU, "-M", "help"], capture_output=True, text=True, check=True).stdout
    machines = {line.split()[0] for line in listed.splitlines() if line.strip()}
    emulated = {board.qemu for board in boards().values() if board.qemu}
    assert emulated
    assert emulated <= machines
