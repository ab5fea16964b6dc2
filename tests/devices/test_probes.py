"""Facts and conditions: read, or null with a reason; never an exception, never a guess."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgepipe.devices import probes
from edgepipe.devices.cpu import core_groups
from edgepipe.devices.probes import device_conditions, device_facts, peak_rss_bytes
from edgepipe.devices.readings import read_all

Tree = Callable[[Mapping[str, str]], Path]

FACTS = {
    *("board", "cpu_model", "cpu_features", "architecture", "cores", "usable_cores", "memory_bytes"),
    *("os", "kernel", "platform", "python", "packages", "unreadable"),
}
CONDITIONS = {
    *("clocks", "arm_clock_mhz", "busy_core_s", "throttled_bits", "temperature_c", "load_average_1min"),
    *("memory_available_bytes", "thermal_status", "battery", "unreadable"),
}
NO_PI_NOR_PHONE = {"arm_clock_mhz", "throttled_bits", "thermal_status", "battery"}

RASPBERRY_PI = {
    "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
    "proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd08\n",
    "proc/meminfo": "MemTotal:        3884376 kB\nMemFree:          100 kB\nMemAvailable:    3000000 kB\n",
    "proc/loadavg": "0.52 0.40 0.30 1/200 1234\n",
    "proc/stat": "cpu  1000 200 300 90000 50 10 20 30 7 7\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n",
    "etc/os-release": 'NAME="Debian GNU/Linux"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "sys/class/thermal/thermal_zone0/temp": "48312\n",
    "sys/devices/system/cpu/cpufreq/policy0/affected_cpus": "0 1 2 3\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "ondemand\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "1500000\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": "1800000\n",
    "sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq": "1800000\n",
}


def test_facts_of_a_raspberry_pi(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    facts = device_facts(tree(RASPBERRY_PI))
    assert set(facts) == FACTS
    assert facts["board"] == "Raspberry Pi 4 Model B Rev 1.4"
    assert facts["cpu_model"] == "1 x Cortex-A72"
    assert facts["memory_bytes"] == 3884376 * 1024
    assert facts["os"] == "Debian GNU/Linux 12 (bookworm)"
    assert facts["packages"]["numpy"] == np.__version__
    assert "cpu_model" not in facts["unreadable"]


def test_conditions_of_a_raspberry_pi(tree: Tree) -> None:
    conditions = device_conditions(tree(RASPBERRY_PI))
    assert set(conditions) == CONDITIONS
    assert conditions["temperature_c"] == 48.312
    assert conditions["load_average_1min"] == 0.52
    # user, nice, system, irq, softirq and steal; guests are already in user
    assert conditions["busy_core_s"] == (1000 + 200 + 300 + 10 + 20 + 30) / os.sysconf("SC_CLK_TCK")
    assert conditions["memory_available_bytes"] == 3000000 * 1024
    assert conditions["clocks"][0]["current_mhz"] == 1500.0
    assert set(conditions["unreadable"]) == NO_PI_NOR_PHONE


def test_the_firmware_knows_the_temperature_better(tree: Tree, vcgencmd: Callable[[str], None]) -> None:
    vcgencmd("""echo "temp=50.1'C" """)
    assert device_conditions(tree(RASPBERRY_PI))["temperature_c"] == 50.1


def test_an_empty_machine_gives_nulls_with_reasons(tmp_path: Path) -> None:
    conditions = device_conditions(tmp_path)
    assert set(conditions) == CONDITIONS
    assert all(value is None for name, value in conditions.items() if name != "unreadable")
    assert set(conditions["unreadable"]) == CONDITIONS - {"unreadable"}
    facts = device_facts(tmp_path)
    missing = {name for name in FACTS - {"unreadable"} if facts[name] is None}
    assert missing >= {"board", "cpu_model", "cpu_features", "memory_bytes"}
    assert set(facts["unreadable"]) == missing
    assert all(facts["unreadable"].values())
    reasons = {**conditions["unreadable"], **facts["unreadable"]}
    assert not [reason for reason in reasons.values() if "Errno" in reason], "those of people, not of Python"


@pytest.mark.parametrize("junk", ["", "\0", "²", "nan", "-1", "9" * 30, "a: b", ":", "{key}", "{key}:", "{key}: x kB"])
def test_no_file_of_the_kernel_can_stop_the_others(tree: Tree, junk: str) -> None:
    for name, text in RASPBERRY_PI.items():
        garbled = junk.replace("{key}", text.partition(":")[0].strip())
        root = tree(RASPBERRY_PI | {name: garbled})
        assert set(device_facts(root)) == FACTS
        assert set(device_conditions(root)) == CONDITIONS
        read_all({"core_groups": lambda root=root: core_groups(root)})


@pytest.mark.parametrize(
    ("name", "text", "reading"),
    [
        ("proc/stat", "", "busy_core_s"),
        ("proc/stat", "intr 5\n", "busy_core_s"),
        ("proc/stat", "cpu 1 2 three 4 5 6 7 8\n", "busy_core_s"),
        ("proc/loadavg", "none\n", "load_average_1min"),
        ("proc/meminfo", "MemTotal: 5 kB\n", "memory_available_bytes"),
        ("sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq", "<unknown>\n", "clocks"),
    ],
)
def test_a_file_of_unknown_form_costs_its_reading_only(tree: Tree, name: str, text: str, reading: str) -> None:
    conditions = device_conditions(tree(RASPBERRY_PI | {name: text}))
    assert conditions[reading] is None
    assert set(conditions["unreadable"]) == NO_PI_NOR_PHONE | {reading}


def test_denied_files_of_a_phone_are_reasons(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Android denies an app /proc/stat, /proc/loadavg and much of /sys."""
    root = tree(RASPBERRY_PI)
    read_text, iterdir = Path.read_text, Path.iterdir

    def deny(path: Path) -> None:
        if path.is_relative_to(root / "sys") or path.name in ("stat", "loadavg"):
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", lambda path, *a, **k: (deny(path), read_text(path, *a, **k))[1])
    monkeypatch.setattr(Path, "iterdir", lambda path: (deny(path), iterdir(path))[1])
    conditions = device_conditions(root)
    for reading in ("busy_core_s", "load_average_1min", "clocks", "temperature_c"):
        assert conditions[reading] is None
        assert "Permission denied" in conditions["unreadable"][reading]
    assert conditions["memory_available_bytes"] is not None


def test_a_phone_names_itself(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    phone = SimpleNamespace(release="14", api_level=34, manufacturer="Google", model="Pixel 8")
    monkeypatch.setattr(sys, "platform", "android")
    monkeypatch.setattr(probes.platform, "android_ver", lambda: phone, raising=False)
    facts = device_facts(tree({"proc/cpuinfo": RASPBERRY_PI["proc/cpuinfo"]}))
    assert facts["platform"] == "android"
    assert facts["board"] == "Google Pixel 8"
    assert facts["os"] == "Android 14 (API 34)"


def zones(**zones: str) -> dict[str, str]:
    files = {}
    for index, (kind, celsius) in enumerate(zones.items()):
        files[f"sys/class/thermal/thermal_zone{index}/type"] = kind.replace("_", "-")
        files[f"sys/class/thermal/thermal_zone{index}/temp"] = celsius
    return files


def test_the_hottest_zone_of_the_processor_counts(tree: Tree) -> None:
    root = tree(zones(battery="61000", cpu_0_0="45000", cpu_1_0="52500", broken="", cpu_1_1="49000"))
    assert device_conditions(root)["temperature_c"] == 52.5


def test_a_battery_is_no_processor(tree: Tree) -> None:
    conditions = device_conditions(tree(zones(battery="31000", skin="33000")))
    assert conditions["temperature_c"] is None
    assert "found battery, skin" in conditions["unreadable"]["temperature_c"]


def test_peak_rss_grows_by_what_is_touched_and_never_shrinks() -> None:
    size = 64 * 2**20
    code = f"""
from edgepipe.devices.probes import peak_rss_bytes
before = peak_rss_bytes()
block = bytearray(b"x") * {size}
with_block = peak_rss_bytes()
del block
print(with_block - before, peak_rss_bytes() - with_block)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    grown, after = map(int, done.stdout.split())
    assert 0.9 * size < grown < 1.1 * size
    assert after > -(2**20)  # the kernel's counters of resident pages are approximate


def test_peak_rss_falls_back_to_getrusage_in_its_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(sys, "platform", "android")
    assert peak_rss_bytes(tmp_path) >= peak * 1024
    monkeypatch.setattr(sys, "platform", "darwin")
    assert peak <= peak_rss_bytes(tmp_path) < 2 * peak


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="VmHWM is Linux's")
def test_peak_rss_of_a_child_is_not_its_parents() -> None:
    """getrusage would report at least the parent's: Linux hands ru_maxrss on at exec."""
    block = np.ones(128 * 2**20, np.uint8)
    code = "from edgepipe.devices.probes import peak_rss_bytes; print(peak_rss_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < block.size


def test_this_machine_answers() -> None:
    """Whatever machine the tests run on, every reading is a value or has a reason."""
    for readings in (device_facts(), device_conditions()):
        nulls = {name for name, value in readings.items() if value is None}
        assert set(readings["unreadable"]) == nulls
