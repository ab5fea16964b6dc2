"""Raspberry Pi: what the firmware says through `vcgencmd`, which knows more than the kernel."""

from __future__ import annotations

import re
import shutil
import subprocess

from edgepipe.devices.readings import Unreadable

TIMEOUT_S = 5

# Bits of `vcgencmd get_throttled`. The upper four stay set until the next boot.
NOW = {0: "under-voltage", 1: "Arm frequency capped", 2: "throttled", 3: "soft temperature limit"}
SINCE_BOOT = {bit + 16: name for bit, name in NOW.items()}


def temperature_c() -> float:
    """Temperature of the chip, in degrees Celsius."""
    return float(_ask("measure_temp", r"temp=(-?[\d.]+)"))


def arm_clock_mhz() -> float:
    """The clock that the Arm cores run at, throttling included."""
    return int(_ask("measure_clock", r"frequency\(\d+\)=(\d+)", "arm")) / 1e6


def throttled_bits() -> int:
    """The bits of `get_throttled`: `NOW` and `SINCE_BOOT` name them."""
    return int(_ask("get_throttled", r"throttled=(0x[0-9a-fA-F]+)"), 16)


def _ask(command: str, pattern: str, *arguments: str) -> str:
    """What ``pattern`` captures in the answer to a command."""
    program = shutil.which("vcgencmd")
    if program is None:
        raise Unreadable("vcgencmd is not on PATH (it comes with Raspberry Pi OS)")
    asked = f"vcgencmd {' '.join([command, *arguments])}"
    try:
        answer = subprocess.run(
            [program, command, *arguments], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise Unreadable(f"{asked} did not answer within {TIMEOUT_S} s") from None
    except OSError as error:
        raise Unreadable(f"{asked} cannot be run: {error.strerror}") from None
    found = re.search(pattern, answer.stdout)
    if answer.returncode or found is None:
        said = " ".join((answer.stderr or answer.stdout).split())[:120]
        raise Unreadable(f"{asked} failed (exit code {answer.returncode}): {said or 'it said nothing'}")
    return found[1]
