"""Devices without hardware: a computer of its own in a folder, with a link that misbehaves as it is told.

Every fault is of the link or the disk; what runs behind it, shell, Python, pip and edgepipe, is real. A fault strikes
once, in the first command that sends more than ``after`` bytes, and leaves a mark so that it does not strike again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from edgepipe.devices.device import Device
from edgepipe.errors import DeviceUnreachable


@dataclass(frozen=True)
class Fault:
    """What goes wrong after a number of bytes: ``kind`` is drop, truncate, damage or stall."""

    kind: str
    after: int


class FakeDevice(Device):
    """A folder that is a home. ``largest_file``: bytes after which its disk, whatever it claims, takes no more."""

    def __init__(self, home: Path, path: str, fault: Fault | None = None, largest_file: int | None = None) -> None:
        super().__init__("fake")
        self.home_folder, self.path, self.fault, self.largest_file = home, path, fault, largest_file
        self.is_on = True

    def connect(self) -> None:
        if not self.is_on:
            raise DeviceUnreachable("fake does not answer: switch it on")

    def command(self, script: str) -> list[str]:
        told = {
            "home": str(self.home_folder),
            "path": self.path,
            "fault": asdict(self.fault) if self.fault else None,
            "largest_file": self.largest_file,
        }
        return [sys.executable, __file__, json.dumps(told), script]

    def lost(self, code: int, said: str) -> str | None:
        return "Connection reset by peer" if code == 255 else None

    def close(self) -> None:
        """Nothing was opened."""


def link(told: dict, script: str) -> int:
    """Run a script behind the link; its exit code, or 255 for a broken link."""
    if told["largest_file"] is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (told["largest_file"], told["largest_file"]))
    environment = {"HOME": told["home"], "PATH": told["path"], "LANG": "C"}
    process = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, env=environment, cwd=told["home"])
    assert process.stdin is not None
    mark, passed = Path(told["home"], ".struck"), 0
    fault = told["fault"] if told["fault"] and not mark.exists() else {"kind": None, "after": 0}
    while piece := os.read(0, 2**16):
        if fault["kind"] and passed + len(piece) > fault["after"]:
            mark.touch()
            if fault["kind"] == "damage":
                piece = piece[:-1] + bytes([piece[-1] ^ 1])
                fault["kind"] = None
            elif fault["kind"] == "stall":
                time.sleep(3600)
            else:
                process.stdin.close()
                code = process.wait()
                return 255 if fault["kind"] == "drop" else code
        try:
            process.stdin.write(piece)
            process.stdin.flush()
        except BrokenPipeError:
            break
        passed += len(piece)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    return process.wait()


if __name__ == "__main__":
    sys.exit(link(json.loads(sys.argv[1]), sys.argv[2]))
