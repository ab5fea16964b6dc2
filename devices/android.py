"""Android: what its services tell of battery and heat, through the programs of Termux:API and of adb's shell."""

from __future__ import annotations

import json
import re
import shutil
import sys
from typing import Any

from edgepipe.devices.readings import Unreadable, ask

# https://developer.android.com/reference/android/os/PowerManager: THERMAL_STATUS_NONE and what follows it.
THERMAL_STATUS = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
# https://developer.android.com/reference/android/os/BatteryManager: BATTERY_STATUS_UNKNOWN is 1.
_BATTERY_STATUS = ("unknown", "charging", "discharging", "not charging", "full")


def battery() -> dict[str, Any]:
    """``percentage``, ``status`` (in lower-case words) and ``temperature_c`` of the battery.

    Raises:
        Unreadable: this is no Android, or neither program answers.
    """
    _require_android()
    if shutil.which("termux-battery-status"):
        told = json.loads(ask("termux-battery-status"))
        return {
            "percentage": int(told["percentage"]),
            "status": str(told["status"]).lower().replace("_", " "),
            "temperature_c": float(told["temperature"]),
        }
    text = ask("dumpsys", "battery", hint="pkg install termux-api, and the app Termux:API, tell of the battery")
    numbers = {key: int(value) for key, value in re.findall(r"^\s*(level|status|temperature): (-?\d+)$", text, re.M)}
    if len(numbers) < 3:
        raise Unreadable(f"dumpsys battery tells neither level nor status: {' '.join(text.split())[:80]!r}")
    status = numbers["status"] - 1
    return {
        "percentage": numbers["level"],
        "status": _BATTERY_STATUS[status if 0 <= status < len(_BATTERY_STATUS) else 0],
        "temperature_c": numbers["temperature"] / 10,
    }


def thermal_status() -> int:
    """How much Android throttles for heat: `THERMAL_STATUS` names it.

    Raises:
        Unreadable: this is no Android, or its service does not answer: Termux may not ask it, adb's shell may.
    """
    _require_android()
    text = ask("dumpsys", "thermalservice")
    found = re.search(r"^Thermal Status: (\d)$", text, re.M)
    if found is None:
        raise Unreadable(f"dumpsys thermalservice does not tell: {' '.join(text.split())[:80]!r}")
    return int(found[1])


def api_level() -> int:
    """Android's API level: 31 is Android 12.

    Raises:
        Unreadable: this is no Android.
    """
    _require_android()
    return int(ask("getprop", "ro.build.version.sdk"))


def _require_android() -> None:
    # Adb's shell has a Python only on boards, whose sys.platform may be linux.
    if sys.platform != "android" and shutil.which("getprop") is None:
        raise Unreadable("this is no Android")
