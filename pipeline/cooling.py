"""Waiting until a device is as cool as a measurement wants it: to a temperature, not for a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from edgepipe.devices.probes import temperature_c
from edgepipe.devices.readings import Unreadable, reason
from edgepipe.errors import EdgepipeError, RecipeError

EVERY_S = 5.0


def cool_down(
    target_c: float,
    limit_s: float,
    progress: Callable[[str], None],
    read: Callable[[], float] = temperature_c,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the processor is at ``target_c`` or below.

    Args:
        target_c: degrees Celsius.
        limit_s: the longest wait, in seconds.
        progress: called with what it waits for.
        read: gives the temperature.
        wait: sleeps for so many seconds.

    Raises:
        RecipeError: ``target_c`` or ``limit_s`` is no number.
        EdgepipeError: the temperature cannot be read, or is above ``target_c`` after ``limit_s``.
    """
    if math.isnan(target_c) or math.isnan(limit_s):
        raise RecipeError(f"cool_to_c is {target_c:g} and cool_limit_s is {limit_s:g}: expected numbers")
    waited = 0.0
    while True:
        try:
            now = read()
        except (Unreadable, OSError, ValueError) as error:
            raise EdgepipeError(
                f"cool_to_c is {target_c:g}, and no temperature can be read ({reason(error)}): leave it out"
            ) from None
        if now <= target_c:
            return
        if waited >= limit_s:
            raise EdgepipeError(
                f"the processor has {now:.1f} °C after {waited:.0f} s, expected {target_c:g}: give it a fan, end what "
                "keeps it busy, or set a higher --cool-to or --cool-limit"
            )
        progress(f"cooling down: {now:.1f} °C, to {target_c:g} °C")
        wait(EVERY_S)
        waited += EVERY_S
