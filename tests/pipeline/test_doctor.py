"""What the doctor says of machines as their owners have published them, and as a user meets it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgepipe.devices import vcgencmd
from edgepipe.devices.readings import Unreadable
from edgepipe.pipeline import cli
from edgepipe.pipeline import doctor as job
from edgepipe.pipeline.doctor_findings import Finding, findings

# The Features lines of /proc/cpuinfo on a Raspberry Pi 4 (Cortex-A72) and 5 (Cortex-A76), 64 bits.
PI_4_FEATURES = ["fp", "asimd", "evtstrm", "crc32", "cpuid"]
PI_5_FEATURES = [
    *("fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp", "asimdhp", "cpuid"),
    *("asimdrdm", "lrcpc", "dcpop", "asimddp"),
]


def machine(**changes: Any) -> dict[str, Any]:
    """A Raspberry Pi 5 in the best of health; changes go to the facts, the device or the conditions that have them."""
    facts: dict[str, Any] = {
        "architecture": "aarch64",
        "bits": 64,
        "libc": "glibc",
        "platform": "linux",
        "python": "3.13.5",
        "makes_environments": True,
        "place": "/home/pi/.edgepipe",
        "free_bytes": 20 * 2**30,
        "installed": {"requirements": []},
        "engines": {"onnxruntime": {"version": "1.32.0", "signal": None, "error": None}},
        "core_groups": [{"cpus": [0, 1, 2, 3], "core": "Cortex-A76", "max_mhz": 2400.0, "capacity": 1024}],
        "android_api": None,
        "unreadable": {"android_api": "this is no Android"},
        "device": {
            "board": "Raspberry Pi 5 Model B Rev 1.0",
            "cpu_model": "4 x Cortex-A76",
            "cpu_features": PI_5_FEATURES,
            "cores": 4,
            "usable_cores": 4,
            "memory_bytes": 8 * 2**30,
            "os": "Debian GNU/Linux 13 (trixie)",
            "kernel": "6.12.47+rpt-rpi-2712",
            "unreadable": {},
        },
        "conditions": {
            "clocks": [{"cpus": "0 1 2 3", "governor": "performance", "current_mhz": 2400.0, "full_mhz": 2400.0}],
            "throttled_bits": 0,
            "thermal_status": None,
            "battery": None,
            "temperature_c": 48.3,
            "load_average_1min": 0.1,
            "memory_available_bytes": 7 * 2**30,
            "unreadable": {"thermal_status": "Permission Denial", "battery": "pkg install termux-api"},
        },
    }
    for name, value in changes.items():
        place = next(part for part in (facts, facts["device"], facts["conditions"]) if name in part)
        place[name] = value
    return facts


def check(name: str, facts: dict[str, Any], *, deployed: bool = True) -> Finding:
    (found,) = (finding for finding in findings(facts, deployed=deployed) if finding.check == name)
    return found


def test_a_healthy_raspberry_pi_5() -> None:
    found = findings(machine(), deployed=True)
    assert {finding.outcome for finding in found} == {"ok"}
    assert [finding.remedy for finding in found] == [None] * len(found)
    assert "asimddp" in check("instruction sets", machine()).found


def test_a_raspberry_pi_4_on_which_onnxruntime_dies() -> None:
    illegal = {"onnxruntime": {"version": "1.21.0", "signal": 4, "error": None}}
    facts = machine(cpu_features=PI_4_FEATURES, cpu_model="4 x Cortex-A72", engines=illegal)
    found = check("onnxruntime", facts)
    assert found.outcome == "fails"
    assert "illegal instruction" in found.found
    assert found.remedy is not None
    assert "onnxruntime>=1.29" in found.remedy
    assert check("instruction sets", facts).outcome == "advice"
    assert "without dotprod" in check("instruction sets", facts).found


@pytest.mark.parametrize("changes", [{"bits": 32}, {"architecture": "armv7l", "bits": 32}, {"architecture": "riscv64"}])
def test_a_system_that_no_engine_is_built_for(changes: dict[str, Any]) -> None:
    assert check("system", machine(**changes)).outcome == "fails"


def test_alpine_has_no_glibc() -> None:
    assert "glibc" in check("system", machine(libc="")).found


# Documented at raspberrypi.com/documentation/computers/os.html#get_throttled.
@pytest.mark.parametrize(
    ("bits", "said"),
    [
        (0x1, "under-voltage now"),
        (0x50000, "under-voltage since boot, throttled since boot"),
        (0x50005, "under-voltage now, throttled now, under-voltage since boot, throttled since boot"),
        (0x80008, "soft temperature limit now, soft temperature limit since boot"),
        (0x20002, "Arm frequency capped now, Arm frequency capped since boot"),
    ],
)
def test_throttle_bits(bits: int, said: str) -> None:
    found = check("throttling", machine(throttled_bits=bits))
    assert found.outcome == "advice"
    assert found.found == f"{bits:#x}: {said}"
    assert found.remedy is not None
    assert ("power supply" in found.remedy) == bool(bits & 0x10001)


def test_big_and_little_cores_want_threads_for_the_big_ones() -> None:
    groups = [
        {"cpus": [4, 5, 6, 7], "core": "Cortex-A76", "max_mhz": 2352.0, "capacity": 1024},
        {"cpus": [0, 1, 2, 3], "core": "Cortex-A55", "max_mhz": 1800.0, "capacity": 530},
    ]
    found = check("cores", machine(core_groups=groups, cores=8, usable_cores=8))
    assert found.outcome == "advice"
    assert "with more than 4 threads the slowest core sets the pace" in found.found
    assert found.remedy == "edgepipe run BUNDLE --threads auto"


@pytest.mark.parametrize(
    ("name", "outcome", "remedy", "changes"),
    [
        ("Python", "fails", "apt install python3-venv", {"makes_environments": False}),
        ("disk", "fails", "apt clean", {"free_bytes": 50_000_000, "installed": None}),
        ("disk", "advice", "delete what is not used", {"free_bytes": 0}),
        ("disk", "advice", "mv BUNDLE ~/", {"place": "/storage/emulated/0/Download"}),
        ("memory", "advice", "ps aux", {"memory_available_bytes": 2**28}),
        ("memory", "unknown", "", {"memory_bytes": None}),
        ("governor", "advice", "echo performance", {"clocks": [
            {"cpus": "0 1 2 3", "governor": "ondemand", "current_mhz": 600.0, "full_mhz": 1800.0}]}),
        ("temperature", "advice", "--cool-to", {"temperature_c": 78.0}),
        ("load", "advice", "top", {"load_average_1min": 3.0}),
        ("engines", "advice", "edgepipe deploy", {"engines": {}}),
        ("onnxruntime", "fails", "--force-reinstall", {"engines": {
            "onnxruntime": {"version": "1.29.0", "signal": None, "error": "ImportError: no"}}}),
    ],
)  # fmt: skip
def test_each_check(name: str, outcome: str, remedy: str, changes: dict[str, Any]) -> None:
    found = check(name, machine(**changes))
    assert found.outcome == outcome
    assert remedy in (found.remedy or "")


def test_a_computer_without_an_engine_runs_nothing() -> None:
    found = check("engines", machine(engines={}, installed=None), deployed=False)
    assert (found.outcome, found.remedy) == ("fails", "pip install onnxruntime")


def test_a_phone() -> None:
    battery = {"percentage": 12, "status": "discharging", "temperature_c": 31.0}
    phone = machine(platform="android", libc="libc", android_api=34, thermal_status=2, battery=battery)
    found = {finding.check: finding for finding in findings(phone, deployed=True)}
    assert "settings_enable_monitor_phantom_procs false" in (found["phantom processes"].remedy or "")
    assert found["sleep"].remedy == "termux-wake-lock"
    assert (found["thermal status"].outcome, found["thermal status"].found) == ("advice", "moderate")
    assert (found["battery"].outcome, found["battery"].remedy) == ("advice", "plug it in")
    older = {finding.check for finding in findings(machine(platform="android", android_api=30), deployed=True)}
    assert "phantom processes" not in older
    assert check("battery", machine(platform="android", android_api=34)).found == "pkg install termux-api"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as caught:
        cli.main(["doctor", *words])
    assert isinstance(caught.value.code, int)
    return caught.value.code, capsys.readouterr().out


def test_this_computer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> int:
        raise Unreadable("the firmware does not answer")

    monkeypatch.setattr(vcgencmd, "throttled_bits", silent)
    code, out = run(capsys, "--json")
    told = json.loads(out)
    assert code == (0 if told["works"] else 1)
    assert told["facts"]["engines"]["onnxruntime"]["version"]
    (throttling,) = (finding for finding in told["findings"] if finding["check"] == "throttling")
    assert throttling == {
        "check": "throttling",
        "outcome": "unknown",
        "found": "the firmware does not answer",
        "remedy": None,
    }


def test_the_exit_code_is_1_where_something_will_not_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "examine", lambda: machine(load_average_1min=4.0))
    code, out = run(capsys)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()].count("advice") == 1
    monkeypatch.setattr(job, "examine", lambda: machine(bits=32))
    assert run(capsys)[0] == 1
    assert run(capsys, "--json")[0] == 1


def test_a_board_has_nothing_to_examine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["doctor", "--device", "qemu:mps3-an547"])
    assert caught.value.code == 1
    assert "a board has no system" in capsys.readouterr().err
