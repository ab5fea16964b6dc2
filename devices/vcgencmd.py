"""Raspberry Pi: what the firmware says through `vcgencmd`, which knows more than the kernel."""

from __future__ import annotations

import re

from edgepipe.devices.readings import Unreadable, ask

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
    answer = ask("vcgencmd", command, *arguments, hint="it comes with Raspberry Pi OS")
    found = re.search(pattern, answer)
    if found is None:
        said = " ".join(answer.split())[:120]
        raise Unreadable(f"vcgencmd {command} does not tell: {said or 'it said nothing'}")
    return found[1]
