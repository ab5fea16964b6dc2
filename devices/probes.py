"""What the device is, and the conditions it is in: every value is read, or null with a reason, never guessed.

``root`` is where ``/proc``, ``/sys`` and ``/etc`` are found; tests point it at a tree of their own.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from edgepipe.devices import android, vcgencmd
from edgepipe.devices.cpu import clocks, cpu_features, cpu_model
from edgepipe.devices.readings import Unreadable, numbered, read_all, read_number, read_text, reason

ROOT = Path("/")
ENGINES = ("onnxruntime", "executorch", "ai-edge-litert", "tflite-runtime")

# Types of thermal zones that are the processor's: Raspberry Pi, Qualcomm and Exynos and Tensor phones, Intel.
_CPU_ZONES = ("cpu", "soc", "x86_pkg", "big", "mid", "little", "tsens")


def device_facts(root: Path = ROOT) -> dict[str, Any]:
    """What does not change while a program runs.

    Returns:
        ``board``, ``cpu_model``, ``cpu_features`` (list), ``architecture``, ``cores`` (of the machine),
        ``usable_cores`` (that this process may run on), ``memory_bytes``, ``os``, ``kernel``, ``platform`` (as
        Python names it), ``python``, ``packages`` (versions of numpy and the engines installed) and ``unreadable``.
    """
    return read_all(
        {
            "board": lambda: _board(root),
            "cpu_model": lambda: cpu_model(root),
            "cpu_features": lambda: cpu_features(root),
            "architecture": platform.machine,
            "cores": _cores,
            "usable_cores": _usable_cores,
            "memory_bytes": lambda: _meminfo(root, "MemTotal"),
            "os": lambda: _os(root),
            "kernel": platform.release,
            "platform": lambda: sys.platform,
            "python": platform.python_version,
            "packages": _packages,
        }
    )


def device_conditions(root: Path = ROOT) -> dict[str, Any]:
    """What changes while a program runs.

    Clocks are read first: a governor lowers them soon after the load ends.

    Returns:
        ``clocks`` (a list as `edgepipe.devices.cpu.clocks` gives it), ``arm_clock_mhz`` and ``throttled_bits`` (the
        Raspberry Pi's firmware), ``temperature_c``, ``load_average_1min``, ``busy_core_s`` (seconds of all cores
        since boot), ``memory_available_bytes``, ``thermal_status`` and ``battery`` (of Android, as
        `edgepipe.devices.android` gives them) and ``unreadable``.
    """
    return read_all(
        {
            "clocks": lambda: clocks(root),
            "arm_clock_mhz": vcgencmd.arm_clock_mhz,
            "busy_core_s": lambda: _busy_core_s(root),
            "throttled_bits": vcgencmd.throttled_bits,
            "thermal_status": android.thermal_status,
            "temperature_c": lambda: temperature_c(root),
            "load_average_1min": lambda: float(read_text(root / "proc/loadavg").split()[0]),
            "memory_available_bytes": lambda: _meminfo(root, "MemAvailable"),
            "battery": android.battery,
        }
    )


def peak_rss_bytes(root: Path = ROOT) -> int:
    """The most physical memory that this process has had.

    Linux's ``VmHWM`` where it can be read; else ``ru_maxrss``, which a child process inherits from its parent on
    Linux, and which macOS counts in bytes and others in KiB.

    Raises:
        Unreadable: the platform tells neither.
    """
    try:
        return _kib_field(root / "proc/self/status", "VmHWM")
    except (OSError, Unreadable):
        pass
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:
        raise Unreadable(f"{sys.platform} has neither /proc/self/status nor getrusage") from None
    peak = getrusage(RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def temperature_c(root: Path = ROOT) -> float:
    """The processor's temperature: the firmware's on a Raspberry Pi, else the hottest zone that is the processor's.

    Raises:
        Unreadable: neither tells.
    """
    try:
        return vcgencmd.temperature_c()
    except Unreadable as error:
        firmware = str(error)
    try:
        zones = _zones(root)
    except (OSError, Unreadable) as error:
        raise Unreadable(f"{firmware}; {reason(error)}") from None
    ours = [celsius for kind, celsius in zones if kind.lower().startswith(_CPU_ZONES)]
    if not ours:
        kinds = ", ".join(sorted({kind for kind, _ in zones})) or "none that answers"
        raise Unreadable(f"{firmware}; no thermal zone is named for the processor: found {kinds}")
    return max(ours)


def _board(root: Path) -> str:
    if sys.platform == "android" and hasattr(platform, "android_ver"):
        phone = platform.android_ver()
        return f"{phone.manufacturer} {phone.model}".strip()
    for source in ("proc/device-tree/model", "sys/devices/virtual/dmi/id/product_name"):
        if (root / source).exists():
            return read_text(root / source)
    raise Unreadable(f"neither {root / 'proc/device-tree/model'} nor a DMI product name")


def _cores() -> int:
    cores = os.cpu_count()
    if cores is None:
        raise Unreadable(f"{sys.platform} does not tell the number of cores")
    return cores


def _usable_cores() -> int:
    if not hasattr(os, "sched_getaffinity"):
        raise Unreadable(f"{sys.platform} has no CPU affinity")
    return len(os.sched_getaffinity(0))


def _os(root: Path) -> str:
    if sys.platform == "android" and hasattr(platform, "android_ver"):
        phone = platform.android_ver()
        return f"Android {phone.release} (API {phone.api_level})"
    if (root / "etc/os-release").exists():
        for line in read_text(root / "etc/os-release").splitlines():
            key, _, value = line.partition("=")
            if key == "PRETTY_NAME":
                return value.strip("\"'")
    return platform.platform()


def _packages() -> dict[str, str]:
    versions = {}
    for name in ("numpy", *ENGINES):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            # A distribution's own package may lack pip's metadata.
            loaded = getattr(sys.modules.get(name.replace("-", "_")), "__version__", None)
            if loaded:
                versions[name] = str(loaded)
    return versions


def _meminfo(root: Path, key: str) -> int:
    return _kib_field(root / "proc/meminfo", key)


def _kib_field(path: Path, key: str) -> int:
    """Bytes of a line ``key:  1234 kB``."""
    for line in read_text(path).splitlines():
        name, _, value = line.partition(":")
        if name == key and value.split():
            return int(value.split()[0]) * 1024
    raise Unreadable(f"{path} does not tell {key}")


def _busy_core_s(root: Path) -> float:
    """Seconds that all cores together were not idle: user, nice, system, interrupts and steal (guests are in user)."""
    path = root / "proc/stat"
    name, *ticks = read_text(path).splitlines()[0].split()
    if name != "cpu" or len(ticks) < 8:
        raise Unreadable(f"{path} does not begin with the line of all cores")
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(tick) for tick in ticks[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _zones(root: Path) -> list[tuple[str, float]]:
    """Type and temperature of the thermal zones that can be read: some phones deny single ones."""
    zones = []
    for zone in numbered(root / "sys/class/thermal", "thermal_zone"):
        try:
            zones.append((read_text(zone / "type"), read_number(zone / "temp") / 1e3))
        except (OSError, Unreadable):
            continue
    return zones
