"""The job behind `edgepipe doctor`: examine a computer, here or elsewhere, and say what to mend."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgepipe.devices.device import Device, find_device, is_board
from edgepipe.devices.examination import examine
from edgepipe.errors import RecipeError
from edgepipe.pipeline.deploy_target import Target, look, no_python
from edgepipe.pipeline.doctor_findings import Finding, findings
from edgepipe.pipeline.own_wheel import write_own_wheel
from edgepipe.pipeline.termination import termination_cleans_up

# Engines are loaded there one after the other, from a slow disk.
_EXAMINE_S = 600.0


@dataclass(frozen=True)
class Examination:
    """What was found on a device; ``facts`` are None without a Python that could tell them."""

    device: str
    findings: list[Finding]
    facts: dict[str, Any] | None

    @property
    def works(self) -> bool:
        """Whether nothing was found that will not work."""
        return all(finding.outcome != "fails" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {**asdict(self), "works": self.works}


def doctor(device: str | Device | None = None) -> Examination:
    """Examine a computer.

    Nothing is installed on it: edgepipe's wheel is copied to its folder there and run with the Python that it has.

    Args:
        device: ``local``, ``ssh:user@host``, ``termux:user@host``, ``adb:serial``; one that is not connected yet; or
            None for this computer and the edgepipe that runs now.

    Raises:
        DeviceUnreachable: it does not answer.
        RecipeError: ``device`` is wrong.
    """
    if device is None:
        facts = examine()
        return Examination("this computer", findings(facts, deployed=False), facts)
    if isinstance(device, str):
        if is_board(device):
            raise RecipeError(f"device is {device}: a board has no system to examine, edgepipe measure tells of it")
        device = find_device(device)
    with termination_cleans_up(), tempfile.TemporaryDirectory() as folder, device:
        found = look(device)
        if not found["python"]:
            remedy = "pkg install python" if device.name.startswith("termux:") else "sudo apt install python3"
            return Examination(device.name, [Finding("Python", "fails", no_python(found), remedy)], None)
        target = Target.bring(device, write_own_wheel(Path(folder)), found)
        facts = target.ask("examine", {}, _EXAMINE_S)
    return Examination(device.name, findings(facts, deployed=True), facts)
