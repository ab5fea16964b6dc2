"""The baud rates that boards can have, and those that a build refuses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from edgepipe.devices.boards import boards, find_board
from edgepipe.runtimes import mcu

FIRMWARE = Path(mcu.__file__).with_name("firmware")

pytestmark = pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="no arm-none-eabi-gcc")


def compiled(source: Path, board: str, baud: int) -> str:
    """What the compiler says."""
    found = find_board(board)
    options = f"-std=c11 -Wall -Wextra -Werror -fsyntax-only -mthumb {found.compiler} -I{FIRMWARE}".split()
    defines = (f"-DEDGEPIPE_CLOCK_MHZ={found.clock_mhz}", f"-DEDGEPIPE_BAUD={baud}")
    done = subprocess.run(["arm-none-eabi-gcc", *options, *defines, source], capture_output=True, text=True)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("board", boards())
def test_every_board_has_the_usual_rates(board: str) -> None:
    for baud in (115200, 230400, 460800, 921600, 1_000_000):
        assert compiled(FIRMWARE / f"boards/{find_board(board).chip}.c", board, baud) == ""


@pytest.mark.parametrize(
    ("board", "baud"),
    [
        *((board, 10**7) for board in boards()),
        ("nrf52840", 2 * 10**6),  # its manual ends at a megabaud
        ("mps2-an500", 1_600_000),  # a sixteenth of 25 MHz is 1,562,500
        ("stm32f405", 5_100_000),  # 84 MHz by 17 is 4.94, by 16 5.25 Mbaud
        ("stm32f405", 2**32 + 115200),
    ],
)
def test_a_rate_that_a_board_cannot_have(board: str, baud: int) -> None:
    said = compiled(FIRMWARE / f"boards/{find_board(board).chip}.c", board, baud)
    assert 'error: static assertion failed: "the serial port of this board has no such BAUD"' in said


@pytest.mark.parametrize(("hertz", "baud"), [(32_000_000, 921600), (84_000_000, 921600), (25_000_000, 460800)])
def test_a_divisor_is_the_nearest(hertz: int, baud: int, tmp_path: Path) -> None:
    """Cut off, it would be 2.1 % off for 921,600 baud of 32 MHz."""
    source = tmp_path / "divisor.c"
    nearest = min(range(1, 1000), key=lambda divisor: abs(hertz / divisor - baud))
    source.write_text(
        f'#include "board.h"\n_Static_assert(EDGEPIPE_DIVISOR({hertz}u) == {nearest}, "");\n', encoding="ascii"
    )
    assert compiled(source, "stm32f405", baud) == ""
