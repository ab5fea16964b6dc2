"""Names, instruction sets and clocks, from files as real machines have them (shortened)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from edgepipe.devices.cpu import clocks, cpu_features, cpu_model
from edgepipe.devices.readings import Unreadable

Tree = Callable[[Mapping[str, str]], Path]

X86 = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) N100
flags\t\t: fpu sse2 fma avx2 avx_vnni

processor\t: 1
vendor_id\t: GenuineIntel
model name\t: Intel(R) N100
flags\t\t: fpu sse2 fma avx2 avx_vnni
"""

ARM_CORE = """\
processor\t: {index}
BogoMIPS\t: 108.00
Features\t: {features}
CPU implementer\t: {implementer}
CPU architecture: 8
CPU variant\t: 0x4
CPU part\t: {part}
CPU revision\t: 1

"""


def arm(*cores: tuple[str, str, str]) -> str:
    return "".join(
        ARM_CORE.format(index=index, implementer=implementer, part=part, features=features)
        for index, (implementer, part, features) in enumerate(cores)
    )


def test_x86(tree: Tree) -> None:
    root = tree({"proc/cpuinfo": X86})
    assert cpu_model(root) == "Intel(R) N100"
    assert cpu_features(root) == ["avx2", "avx_vnni", "fma", "fpu", "sse2"]


def test_raspberry_pi_5(tree: Tree) -> None:
    board = "Revision\t: d04170\nSerial\t\t: 0000\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0\n"
    root = tree({"proc/cpuinfo": arm(*[("0x41", "0xd0b", "fp asimd asimddp")] * 4) + board})
    assert cpu_model(root) == "4 x Cortex-A76"
    assert cpu_features(root) == ["asimd", "asimddp", "fp"]


def test_a_phone_has_cores_of_several_types_and_their_common_features(tree: Tree) -> None:
    little, big = ("0x41", "0xd05", "fp asimd"), ("0x41", "0xd44", "fp asimd i8mm")
    unknown = ("0x51", "0x001", "fp asimd i8mm")
    root = tree({"proc/cpuinfo": arm(*[little] * 4, big, unknown)})
    assert cpu_model(root) == "4 x Cortex-A55 + 1 x Cortex-X1 + 1 x core of implementer 0x51, part 0x001"
    assert cpu_features(root) == ["asimd", "fp"]


def test_an_arm_kernel_that_says_only_armv7_processor_is_not_believed(tree: Tree) -> None:
    core = arm(("0x41", "0xd08", "neon")).replace("BogoMIPS", "model name\t: ARMv7 Processor rev 3 (v7l)\nBogoMIPS")
    assert cpu_model(tree({"proc/cpuinfo": core})) == "1 x Cortex-A72"


def test_an_unhelpful_cpuinfo_is_a_reason(tree: Tree) -> None:
    root = tree({"proc/cpuinfo": "processor\t: 0\nhart\t: 0\n"})
    with pytest.raises(Unreadable, match="names neither a model nor CPU parts"):
        cpu_model(root)
    with pytest.raises(Unreadable, match="no flags or Features"):
        cpu_features(root)


CPUFREQ = "sys/devices/system/cpu/cpufreq"


def policy(number: int, cpus: str, current: int, allowed: int, most: int, **more: int) -> dict[str, str]:
    files = {"affected_cpus": cpus, "scaling_governor": "ondemand", "scaling_cur_freq": current}
    files |= {"scaling_max_freq": allowed, "cpuinfo_max_freq": most, **more}
    return {f"{CPUFREQ}/policy{number}/{name}": f"{value}\n" for name, value in files.items()}


def test_clocks_of_all_groups_in_order(tree: Tree) -> None:
    offline = policy(4, "", 0, 1, 1)
    root = tree(policy(10, "10", 2900000, 2800000, 3000000) | policy(0, "0 1", 600000, 1800000, 1800000) | offline)
    assert clocks(root) == [
        {
            "cpus": "0 1",
            "governor": "ondemand",
            "current_mhz": 600.0,
            "full_mhz": 1800.0,
            "hardware_max_mhz": 1800.0,
        },
        {
            "cpus": "10",
            "governor": "ondemand",
            "current_mhz": 2900.0,
            "full_mhz": 2800.0,
            "hardware_max_mhz": 3000.0,
        },
    ]


@pytest.mark.parametrize(("allowed", "full_mhz"), [(4700000, 2100.0), (1500000, 1500.0)])
def test_a_turbo_clock_is_no_full_clock(tree: Tree, allowed: int, full_mhz: float) -> None:
    root = tree(policy(0, "0", 1400000, allowed, 4700000, base_frequency=2100000))
    assert clocks(root)[0]["full_mhz"] == full_mhz
