"""Battery and heat as Android's programs tell of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepipe.devices import android
from edgepipe.devices.probes import device_conditions
from edgepipe.devices.readings import Unreadable

Programs = Callable[..., None]

# The example in the documentation of termux-api.
TERMUX_BATTERY = """cat <<'END'
{"present": true, "technology": "Li-ion", "health": "GOOD", "plugged": "UNPLUGGED", "status": "DISCHARGING",
 "temperature": "22.3", "voltage": 4099, "current": -820000, "percentage": 85, "level": 85, "scale": 100}
END"""
# A Samsung A52, as its owner shows it at android.stackexchange.com/questions/246774, but for the status.
THERMALSERVICE = """cat <<'END'
IsStatusOverride: false
ThermalEventListeners:
        callbacks: 1
Thermal Status: 3
Cached temperatures:
        Temperature{mValue=25.6, mType=0, mName=AP, mStatus=0}
HAL Ready: true
END"""
# The form of BatteryService.dump in Android's sources.
DUMPSYS_BATTERY = """[ "$1" = battery ] && cat <<'END'
Current Battery Service state:
  AC powered: false
  USB powered: true
  Max charging current: 500000
  status: 2
  health: 2
  present: true
  level: 57
  scale: 100
  voltage: 3912
  temperature: 314
  technology: Li-ion
END"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """``programs(getprop="echo 34")`` puts shell scripts of these names on PATH, ``_`` for ``-``."""

    def plant(**scripts: str) -> None:
        for name, script in scripts.items():
            program = tmp_path / name.replace("_", "-")
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    return plant


def test_termux(programs: Programs) -> None:
    programs(getprop="echo 34", termux_battery_status=TERMUX_BATTERY)
    assert android.battery() == {"percentage": 85, "status": "discharging", "temperature_c": 22.3}
    assert android.api_level() == 34


def test_the_shell_of_adb(programs: Programs) -> None:
    programs(getprop="echo 31", dumpsys=DUMPSYS_BATTERY)
    assert android.battery() == {"percentage": 57, "status": "charging", "temperature_c": 31.4}
    programs(dumpsys=THERMALSERVICE)
    assert android.THERMAL_STATUS[android.thermal_status()] == "severe"


def test_what_termux_may_not_ask_is_null_with_a_reason(programs: Programs) -> None:
    programs(getprop="echo 34", dumpsys='echo "Can\'t find service: $1"')
    found = device_conditions()
    assert found["thermal_status"] is None
    assert "Can't find service: thermalservice" in found["unreadable"]["thermal_status"]
    assert found["battery"] is None
    assert "tells neither level nor status" in found["unreadable"]["battery"]


def test_a_computer_is_no_android() -> None:
    for probe in (android.battery, android.thermal_status, android.api_level):
        with pytest.raises(Unreadable, match="no Android"):
            probe()
