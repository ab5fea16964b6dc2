"""``adb:serial``: a device reached by the Android Debug Bridge, for boards whose Linux has an adbd.

A plain Android gives adb's shell no Python; there, Termux is the way (``termux:``), also over USB.
"""

from __future__ import annotations

import re
import shutil
import subprocess

from edgepipe.devices.device import Device
from edgepipe.errors import DeviceError, DeviceUnreachable, EdgepipeError, RecipeError

ANSWER_S = 30


class Adb(Device):
    """The shell of one serial."""

    # On Android the one folder in which adb's shell may write and run programs.
    home = '"$([ -w /data/local/tmp ] && echo /data/local/tmp || echo "$HOME")"'

    def __init__(self, name: str) -> None:
        """``name`` is ``adb:SERIAL``, a serial as `adb devices` lists it."""
        super().__init__(name)
        self.serial = name.partition(":")[2]
        if not re.fullmatch(r"[^\s-]\S*", self.serial):
            raise RecipeError(f"device is {name!r}: expected adb:SERIAL; `adb devices` lists serials")

    def connect(self) -> None:
        """See that the device is there, and that its shell keeps stdout, stderr and exit codes apart."""
        if shutil.which("adb") is None:
            raise EdgepipeError("adb is not installed: apt install adb")
        if reason := self._absent():
            raise DeviceUnreachable(
                f"{self.name} does not answer ({reason}): plug it in, allow debugging on it, see `adb devices`"
            )
        if "shell_v2" not in self._ask("features").stdout.split():
            raise DeviceError(f"{self.name} has an adbd without exit codes: expected that of Android 7 or later")

    def command(self, script: str) -> list[str]:
        """``adb shell`` without a terminal, which would change line ends."""
        return ["adb", "-s", self.serial, "shell", "-T", script]

    def lost(self, code: int, said: str) -> str | None:
        """adb's exit codes do not tell, its view of the device does."""
        return self._absent()

    def close(self) -> None:
        """The bridge's server stays for others."""

    def _absent(self) -> str | None:
        done = self._ask("get-state")
        if done.returncode == 0 and done.stdout.strip() == "device":
            return None
        return " ".join((done.stderr or done.stdout).split()).removeprefix("error: ") or "adb says nothing"

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["adb", "-s", self.serial, *words]
        try:
            return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", f"adb is silent for {ANSWER_S} s")
