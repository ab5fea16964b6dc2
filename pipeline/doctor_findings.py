"""What an examination shows, check by check, and the command that mends it.

Sources of the traps: onnxruntime issues 23957 and 24112 (illegal instruction on a Raspberry Pi 4), 24511 (no 32-bit
wheels); llama.cpp issues 7176 (eight threads slower than four) and
7016 (models in shared storage are slow); termux-app issue 2366 (the phantom-process killer);
Raspberry Pi's documentation of get_throttled.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from edgepipe.devices.android import THERMAL_STATUS
from edgepipe.devices.vcgencmd import NOW, SINCE_BOOT
from edgepipe.pipeline.deploy import ARCHITECTURES
from edgepipe.pipeline.gates import MAX_LOAD_PER_CORE, MAX_TEMPERATURE_C
from edgepipe.pipeline.markdown_parts import size
from edgepipe.pipeline.report_markdown import TELLING_FEATURES
from edgepipe.pipeline.requirements import ENGINE_BYTES, ENVIRONMENT_BYTES

Outcome = Literal["ok", "advice", "fails", "unknown"]

WARM_C = 70.0  # a Raspberry Pi throttles at 80 °C, and a run adds ten degrees or more
TIGHT_MEMORY_BYTES = 2**29
TIGHT_DISK_BYTES = 2**26  # pip, reports and small bundles need about so much
LOW_BATTERY = 20  # percent; battery savers lower clocks from about there
_SHARED_STORAGE = ("/storage/", "/sdcard", "/mnt/sdcard")
# What runs on a Raspberry Pi 4: 1.21.0 was built for newer cores by mistake, later ones were mended.
_BUILT_FOR_ALL = {"onnxruntime": "'onnxruntime>=1.29'"}
_ANDROID_12, _ANDROID_12L = 31, 32
_SET_GOVERNOR = "echo performance | sudo tee /sys/devices/system/cpu/cpufreq/policy*/scaling_governor"


@dataclass(frozen=True)
class Finding:
    """One check: ``fails`` will not work, ``advice`` works less well. ``remedy`` is a command, or what to do."""

    check: str
    outcome: Outcome
    found: str
    remedy: str | None = None


def findings(facts: dict[str, Any], *, deployed: bool) -> list[Finding]:
    """All checks.

    Args:
        facts: as `edgepipe.devices.examination.examine` gives them.
        deployed: whether `edgepipe deploy` installs there, so that what is missing may still come.
    """
    return [
        _system(facts),
        _python(facts),
        _disk(facts, deployed),
        _memory(facts),
        _processor(facts),
        _cores(facts),
        *_engines(facts, deployed),
        _governor(facts),
        _temperature(facts),
        _throttling(facts),
        _load(facts),
        *_android(facts),
    ]


def _system(facts: dict[str, Any]) -> Finding:
    device = facts["device"]
    board = f"{device['board']}, " if device["board"] else ""
    found = f"{board}{device['os']}, kernel {device['kernel']}, {facts['architecture']}, {facts['bits']} bits"
    if facts["bits"] != 64 or facts["architecture"].lower() not in ARCHITECTURES:
        return Finding(
            "system",
            "fails",
            f"{found}: the engines need 64 bits of aarch64 or x86_64",
            "install the 64-bit image of its system: rpi-imager has Raspberry Pi OS (64-bit)",
        )
    if facts["platform"] == "linux" and facts["libc"] != "glibc":
        return Finding(
            "system",
            "fails",
            f"{found}, without glibc: the engines' wheels need it",
            "install a system with glibc, such as Debian",
        )
    return Finding("system", "ok", found)


def _python(facts: dict[str, Any]) -> Finding:
    if not facts["makes_environments"]:
        remedy = "pkg install python-ensurepip-wheels" if _is_android(facts) else "sudo apt install python3-venv"
        return Finding("Python", "fails", f"{facts['python']}, which makes no environments", remedy)
    return Finding("Python", "ok", facts["python"])


def _disk(facts: dict[str, Any], deployed: bool) -> Finding:
    free = facts["free_bytes"]
    needed = 0 if facts["installed"] or not deployed else ENVIRONMENT_BYTES + ENGINE_BYTES["onnxruntime"]
    found = f"{size(free)} free"
    if free < needed:
        return Finding(
            "disk", "fails", f"{found}, an environment takes {size(needed)}", "sudo apt clean; delete what is not used"
        )
    if free < TIGHT_DISK_BYTES:
        return Finding("disk", "advice", f"{found}: bundles and reports must fit", "delete what is not used")
    if facts["place"].startswith(_SHARED_STORAGE):
        return Finding(
            "disk", "advice", f"{found}, in {facts['place']}: Android's shared storage is slow", "mv BUNDLE ~/ && cd ~"
        )
    return Finding("disk", "ok", found)


def _memory(facts: dict[str, Any]) -> Finding:
    total, free = facts["device"]["memory_bytes"], facts["conditions"]["memory_available_bytes"]
    if total is None or free is None:
        return _unknown("memory", facts["device"] if total is None else facts["conditions"], "memory")
    found = f"{size(free)} of {size(total)} available"
    if free < TIGHT_MEMORY_BYTES:
        return Finding(
            "memory",
            "advice",
            f"{found}: weights and cache must fit",
            "ps aux --sort -rss | head  # and end what is large",
        )
    return Finding("memory", "ok", found)


def _processor(facts: dict[str, Any]) -> Finding:
    device = facts["device"]
    if device["cpu_features"] is None:
        return _unknown("instruction sets", device, "cpu_features")
    features = set(device["cpu_features"])
    told = ", ".join(name for name in TELLING_FEATURES if name in features) or "none that kernels ask for"
    found = f"{device['cpu_model'] or facts['architecture']}: {told}"
    if facts["architecture"] in ("aarch64", "arm64") and "asimddp" not in features:
        return Finding(
            "instruction sets",
            "advice",
            f"{found}; without dotprod (asimddp) int4 and int8 run several times slower than on a Cortex-A76",
            "nothing mends this: take a small model, and edgepipe export --precision int4",
        )
    return Finding("instruction sets", "ok", found)


def _cores(facts: dict[str, Any]) -> Finding:
    """Big and little cores: a thread on a little one keeps all others waiting."""
    groups, device = facts["core_groups"], facts["device"]
    if groups is None:
        return _unknown("cores", facts, "core_groups")
    kinds = [
        f"{len(group['cpus'])} x {group['core']}"
        + (f" up to {group['max_mhz']:.0f} MHz" if group["max_mhz"] else "")
        for group in groups
    ]  # fmt: skip
    found, usable = " + ".join(kinds), device["usable_cores"]
    if usable is not None and device["cores"] is not None and usable < device["cores"]:
        found += f", of which this process may use {usable}"
    if len(groups) > 1:
        fast = groups[0]["cpus"]
        return Finding(
            "cores",
            "advice",
            f"{found}: with more than {len(fast)} threads the slowest core sets the pace",
            "edgepipe run BUNDLE --threads auto",
        )
    return Finding("cores", "ok", found)


def _engines(facts: dict[str, Any], deployed: bool) -> Iterator[Finding]:
    if not facts["engines"]:
        if deployed:
            yield Finding("engines", "advice", "none installed", "edgepipe deploy BUNDLE --device DEVICE")
        else:
            remedy = "pkg install python-onnxruntime" if _is_android(facts) else "pip install onnxruntime"
            yield Finding("engines", "fails", "none installed", remedy)
    pip = "~/.edgepipe/venv/bin/pip" if facts["installed"] else "pip"
    for name, state in facts["engines"].items():
        if state["signal"] is None and state["error"] is None:
            yield Finding(name, "ok", state["version"])
        elif state["signal"] == signal.SIGILL:
            yield Finding(
                name,
                "fails",
                f"{state['version']}: loading it ends with an illegal instruction, it is built for newer cores",
                f"{pip} install --force-reinstall {_BUILT_FOR_ALL.get(name, name)}; or another engine: "
                "edgepipe deploy BUNDLE --device DEVICE --engine litert",
            )
        else:
            reason = f"{state['version']}: {state['error'] or 'loading it ends with signal ' + str(state['signal'])}"
            reinstall = f"{pip} install --force-reinstall {name}"
            if _is_android(facts):
                reinstall = "pkg upgrade && pkg reinstall python-onnxruntime"
            yield Finding(name, "fails", reason, reinstall)


def _governor(facts: dict[str, Any]) -> Finding:
    clocks = facts["conditions"]["clocks"]
    if clocks is None:
        return _unknown("governor", facts["conditions"], "clocks")
    names = sorted({policy["governor"] for policy in clocks})
    found = (
        ", ".join(names)
        + "; "
        + ", ".join(
            f"CPUs {policy['cpus']} at {policy['current_mhz']:.0f} of {policy['full_mhz']:.0f} MHz" for policy in clocks
        )
    )
    if "performance" not in names and not _is_x86(facts) and not _is_android(facts):
        return Finding("governor", "advice", f"{found}: clocks rise late, figures spread", _SET_GOVERNOR)
    return Finding("governor", "ok", found)


def _temperature(facts: dict[str, Any]) -> Finding:
    heat = facts["conditions"]["temperature_c"]
    if heat is None:
        return _unknown("temperature", facts["conditions"], "temperature_c")
    if heat > WARM_C:
        said = "it throttles now" if heat > MAX_TEMPERATURE_C else "a run will make it throttle"
        return Finding(
            "temperature", "advice", f"{heat:.1f} °C: {said}", "give it a fan, and edgepipe measure --cool-to 55"
        )
    return Finding("temperature", "ok", f"{heat:.1f} °C")


def _throttling(facts: dict[str, Any]) -> Finding:
    bits = facts["conditions"]["throttled_bits"]
    if bits is None:
        return _unknown("throttling", facts["conditions"], "throttled_bits")
    names = [f"{name} now" for bit, name in NOW.items() if bits >> bit & 1]
    names += [f"{name} since boot" for bit, name in SINCE_BOOT.items() if bits >> bit & 1]
    if not names:
        return Finding("throttling", "ok", f"{bits:#x}: none since boot")
    weak = any("under-voltage" in name for name in names)
    supply = "take the power supply of its maker (27 W for a Raspberry Pi 5, 15 W for a 4) and a short cable"
    remedy = supply if weak else "give it a fan"
    return Finding("throttling", "advice", f"{bits:#x}: {', '.join(names)}", f"{remedy}; then sudo reboot")


def _load(facts: dict[str, Any]) -> Finding:
    load, cores = facts["conditions"]["load_average_1min"], facts["device"]["cores"]
    if load is None or cores is None:
        return _unknown("load", facts["conditions"], "load_average_1min")
    found = f"{load:.2f} on {cores} cores"
    if load > MAX_LOAD_PER_CORE * cores:
        return Finding("load", "advice", f"{found}: others take time from edgepipe", "top  # and end what is busy")
    return Finding("load", "ok", found)


def _android(facts: dict[str, Any]) -> Iterator[Finding]:
    if not _is_android(facts):
        return
    level = facts["android_api"]
    if level is None:
        yield _unknown("phantom processes", facts, "android_api")
    elif level >= _ANDROID_12:
        setting = "settings put global settings_enable_monitor_phantom_procs false"
        if level < _ANDROID_12L:
            setting = "device_config put activity_manager max_phantom_processes 2147483647"
        yield Finding(
            "phantom processes",
            "advice",
            f"Android of API {level} kills programs (signal 9) that compute in the background, and those beyond 32",
            f"adb shell {setting}",
        )
    yield Finding("sleep", "advice", "a phone that sleeps stops or slows Termux", "termux-wake-lock")
    conditions = facts["conditions"]
    status, battery = conditions["thermal_status"], conditions["battery"]
    if status is None:
        yield _unknown("thermal status", conditions, "thermal_status")
    else:
        found = THERMAL_STATUS[min(status, len(THERMAL_STATUS) - 1)]
        remedy = "let it cool down, out of its case" if status else None
        yield Finding("thermal status", "advice" if status else "ok", found, remedy)
    if battery is None:
        yield _unknown("battery", conditions, "battery")
    else:
        found = f"{battery['percentage']}%, {battery['status']}, {battery['temperature_c']:.1f} °C"
        low = battery["percentage"] < LOW_BATTERY and battery["status"] == "discharging"
        yield Finding("battery", "advice" if low else "ok", found, "plug it in" if low else None)


def _is_android(facts: dict[str, Any]) -> bool:
    return facts["platform"] == "android" or facts["android_api"] is not None


def _is_x86(facts: dict[str, Any]) -> bool:
    """There the drivers' governors raise clocks at once, whatever their name."""
    return facts["architecture"].lower() in ("x86_64", "amd64")


def _unknown(check: str, readings: dict[str, Any], reading: str) -> Finding:
    reason = next((why for name, why in readings["unreadable"].items() if name.startswith(reading)), "not readable")
    return Finding(check, "unknown", reason)
