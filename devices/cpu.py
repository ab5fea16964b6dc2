"""The processor: its name, its instruction sets and its clocks, from /proc and /sys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgepipe.devices.readings import Unreadable, numbered, read_number, read_text

# Part numbers of MIDR_EL1 (or MIDR) for implementer 0x41, Arm Ltd.
_ARM_CORES = {
    0xB76: "ARM1176",
    0xC07: "Cortex-A7",
    0xC08: "Cortex-A8",
    0xC09: "Cortex-A9",
    0xC0F: "Cortex-A15",
    0xD03: "Cortex-A53",
    0xD04: "Cortex-A35",
    0xD05: "Cortex-A55",
    0xD07: "Cortex-A57",
    0xD08: "Cortex-A72",
    0xD09: "Cortex-A73",
    0xD0A: "Cortex-A75",
    0xD0B: "Cortex-A76",
    0xD0C: "Neoverse-N1",
    0xD0D: "Cortex-A77",
    0xD40: "Neoverse-V1",
    0xD41: "Cortex-A78",
    0xD44: "Cortex-X1",
    0xD46: "Cortex-A510",
    0xD47: "Cortex-A710",
    0xD48: "Cortex-X2",
    0xD49: "Neoverse-N2",
    0xD4D: "Cortex-A715",
    0xD4E: "Cortex-X3",
    0xD4F: "Neoverse-V2",
    0xD80: "Cortex-A520",
    0xD81: "Cortex-A720",
    0xD82: "Cortex-X4",
}


def cpu_model(root: Path) -> str:
    """Name of the processor: ``model name`` on x86, on Arm the cores by type, as ``4 x Cortex-A55 + 4 x Cortex-A76``.

    A core that the table lacks is given by its numbers.
    """
    cores = list(_cpuinfo(root))
    counts = Counter(
        _arm_core(core["CPU implementer"], core["CPU part"])
        for core in cores
        if "CPU implementer" in core and "CPU part" in core
    )
    if counts:
        return " + ".join(f"{count} x {name}" for name, count in counts.items())
    for core in cores:
        if name := core.get("model name"):
            return name
    raise Unreadable(f"{root / 'proc/cpuinfo'} names neither a model nor CPU parts")


def cpu_features(root: Path) -> list[str]:
    """Instruction sets that every core has, by name."""
    sets = [set(flags.split()) for core in _cpuinfo(root) if (flags := core.get("flags") or core.get("Features"))]
    if not sets:
        raise Unreadable(f"{root / 'proc/cpuinfo'} lists no flags or Features")
    return sorted(set.intersection(*sets))


def clocks(root: Path) -> list[dict[str, Any]]:
    """Clocks and governor of each group of cores that share them (a cpufreq policy).

    ``full_mhz`` is the clock that the group is expected to hold under load: the base clock where the driver names
    one (turbo clocks are not held by all cores), else the highest that the governor may choose.
    """
    policies = []
    for policy in numbered(root / "sys/devices/system/cpu/cpufreq", "policy"):
        online = (policy / "affected_cpus").read_text().strip()
        if not online:
            continue
        allowed = read_number(policy / "scaling_max_freq")
        base = policy / "base_frequency"
        policies.append(
            {
                "cpus": online,
                "governor": read_text(policy / "scaling_governor"),
                "current_mhz": read_number(policy / "scaling_cur_freq") / 1e3,
                "full_mhz": (min(allowed, read_number(base)) if base.exists() else allowed) / 1e3,
                "hardware_max_mhz": read_number(policy / "cpuinfo_max_freq") / 1e3,
            }
        )
    return policies


def core_groups(root: Path) -> list[dict[str, Any]]:
    """Cores of one kind, the fastest kind first: ``cpus`` (their numbers), ``core``, ``max_mhz``, ``capacity``.

    ``capacity`` is the kernel's measure of what a core gets done, of 1024; with ``max_mhz`` it is None where the kernel
    does not tell. Without a device tree, or on cores that are all the same, there is one group.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for core in _cpuinfo(root):
        if not core.get("processor", "").isdecimal():
            continue
        number = int(core["processor"])
        folder = root / f"sys/devices/system/cpu/cpu{number}"
        arm = "CPU implementer" in core and "CPU part" in core
        name = _arm_core(core["CPU implementer"], core["CPU part"]) if arm else core.get("model name", "core")
        clock = _number_or_none(folder / "cpufreq/cpuinfo_max_freq")
        kind = (_number_or_none(folder / "cpu_capacity"), clock and clock / 1e3, name)
        groups.setdefault(kind, []).append(number)
    if not groups:
        raise Unreadable(f"{root / 'proc/cpuinfo'} lists no processors")
    order = sorted(groups, key=lambda kind: (kind[0] or 0, kind[1] or 0), reverse=True)
    return [{"cpus": groups[kind], "core": kind[2], "max_mhz": kind[1], "capacity": kind[0]} for kind in order]


def _number_or_none(path: Path) -> int | None:
    try:
        return read_number(path)
    except (OSError, Unreadable):
        return None


def _cpuinfo(root: Path) -> Iterator[dict[str, str]]:
    """The blocks of /proc/cpuinfo, one a core and perhaps one for the board."""
    for block in read_text(root / "proc/cpuinfo").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        yield {key.strip(): value.strip() for key, _, value in pairs}


def _arm_core(implementer: str, part: str) -> str:
    if implementer == "0x41" and int(part, 16) in _ARM_CORES:
        return _ARM_CORES[int(part, 16)]
    return f"core of implementer {implementer}, part {part}"
