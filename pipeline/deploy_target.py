"""What `edgepipe deploy` does on a device, step by step: each looks at what is there and adds what is missing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edgepipe
from edgepipe.devices.device import Device
from edgepipe.devices.installation import FOLDER, LOCK_S, bundle_folder, python_of
from edgepipe.devices.shell import PATIENCE_S, Conversation, Finished, ended_early, run, send
from edgepipe.errors import DeviceError
from edgepipe.pipeline.bundle import CHECKSUMS, Bundle, sha256
from edgepipe.pipeline.deployed import raise_error_of
from edgepipe.pipeline.manifest import MANIFEST
from edgepipe.pipeline.progress import Progress

_INSTALL_S = 3600.0
_VERIFY_S = 3600.0
# The slowest storage whose reading is waited for, in bytes per second.
_SLOW_DISK = 5e6
_PIECE_BYTES = 2**18
# Fractions of the whole, for the bar, when these steps are done.
LOOKED, INSTALLED, COPIED = 0.05, 0.3, 0.9

_LOOK = """root={home}/{folder}; found=
for python in python3 python3.14 python3.13 python3.12 python3.11 python; do
    if command -v $python >/dev/null && $python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        found=$python; break
    fi
done
printf '{{"root": "%s", "python": "%s", "version": "%s"}}\\n' "$root" "$found" "$(python3 -V 2>&1 | head -n 1)"
"""


@dataclass(frozen=True)
class Target:
    """A connected device with edgepipe's wheel on it: ``root`` is edgepipe's folder, ``python`` the system's."""

    device: Device
    root: str
    python: str
    wheel: str
    wheel_hash: str

    @classmethod
    def find(cls, device: Device, wheel: Path) -> Target:
        """Find a Python, bring it where the device can, and bring the wheel."""
        found = look(device)
        if not found["python"]:
            device.provide(["python"])
            found = look(device)
        if not found["python"]:
            raise DeviceError(f"{device.name} has {no_python(found)}")
        return cls.bring(device, wheel, found)

    @classmethod
    def bring(cls, device: Device, wheel: Path, found: dict[str, Any]) -> Target:
        """Bring the wheel to a device on which `look` has found a Python."""
        digest = sha256(wheel)
        folder, name = f"{found['root']}/wheel", digest[:16]
        there = f"{folder}/{name}/{wheel.name}"
        if run(device, f"[ -f {shlex.quote(there)} ]").code:
            send(device, wheel, there)
            # Older ones; another deploy may be bringing this one, too.
            run(device, f'cd {shlex.quote(folder)} && for old in *; do [ "$old" = {name} ] || rm -rf "$old"; done')
        return cls(device, found["root"], found["python"], there, digest)

    def ask(self, what: str, request: dict[str, Any], patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Have `edgepipe.devices.environment` do something there."""
        script = f"PYTHONPATH={shlex.quote(self.wheel)} {self.python} -P -m edgepipe.devices.environment {what}"
        request = {"root": self.root, **request}
        done = run(self.device, script, stdin=json.dumps(request).encode(), patience_s=patience_s)
        return _answered(self.device, done.answer(), done)

    def install(self, facts: dict[str, Any], requirements: dict[str, str], wheels: Path | None, tell: Progress) -> bool:
        """Bring the environment up to date; say whether there was anything to do."""
        stamp = facts["stamp"] or {"requirements": [], "wheel": None}
        lacking = {name for name, text in requirements.items() if text not in stamp["requirements"]}
        if not lacking and stamp["wheel"] == self.wheel_hash:
            return False
        tell(LOOKED, "installing " + ", ".join(sorted(lacking) or ["edgepipe"]))
        provided = self.device.provide(lacking) if lacking else frozenset()
        request = {
            "wheel": self.wheel,
            "wheel_hash": self.wheel_hash,
            "version": edgepipe.__version__,
            "requirements": sorted(requirements.values()),
            "provided": sorted(requirements[name] for name in provided & lacking),
        }
        if wheels is None or not lacking:
            return bool(self.ask("install", request, _INSTALL_S)["changed"])
        there = f"{self.root}/wheels"
        for wheel in sorted(wheels.glob("*.whl")):
            send(self.device, wheel, f"{there}/{wheel.name}")
        try:
            return bool(self.ask("install", request | {"wheels": there}, _INSTALL_S)["changed"])
        finally:
            run(self.device, f"rm -rf {shlex.quote(there)}")

    def copy(self, bundle: Bundle, name: str, tell: Progress) -> dict[str, Any]:
        """Send what is missing of a bundle; return what the receiver says of that."""
        files = dict(bundle.manifest["files"])
        for file in (MANIFEST, CHECKSUMS):
            path = bundle.folder / file
            files[file] = {"sha256": sha256(path), "bytes": path.stat().st_size}
        reading_s = PATIENCE_S + 2 * sum(entry["bytes"] for entry in files.values()) / _SLOW_DISK
        command = [python_of(self.root), "-P", "-m", "edgepipe.pipeline.receive", self.root, name]
        with Conversation(self.device, f"exec {shlex.join(command)}") as receiver:
            receiver.send(json.dumps({"files": files}).encode() + b"\n")
            need = _answered(self.device, receiver.answer(reading_s + LOCK_S))["need"]
            total, sent = sum(files[file]["bytes"] - offset for file, offset in need), 0
            for piece in _pieces(bundle.folder, need):
                if not receiver.send(piece):
                    break
                sent += len(piece)
                tell(INSTALLED + (COPIED - INSTALLED) * sent / total, f"{sent / 1e6:.0f} of {total / 1e6:.0f} MB")
            return _answered(self.device, receiver.answer(reading_s))

    def verify(self, name: str, engine: str | None) -> str:
        """Replay the golden outputs there; return what that showed."""
        words = [python_of(self.root), "-P", "-m", "edgepipe", "run", bundle_folder(self.root, name), "--verify"]
        done = run(self.device, shlex.join(words + (["--engine", engine] if engine else [])), patience_s=_VERIFY_S)
        raise_error_of(self.device, done)
        return done.output.decode().strip()


def look(device: Device) -> dict[str, Any]:
    """``root``, where edgepipe's folder is on a device; ``python``, one that is new enough; else ``version`` of any."""
    done = run(device, _LOOK.format(home=device.home, folder=FOLDER))
    return _answered(device, done.answer(), done)


def no_python(found: dict[str, Any]) -> str:
    """What is wrong, and what to do, where `look` has found no Python that is new enough."""
    seen = found["version"] if found["version"].startswith("Python") else "no Python"
    return (
        f"{seen}, expected Python 3.11 or later: install one there; of Android, adb's shell has none: install Termux, "
        "and take --device termux:127.0.0.1 after `adb forward tcp:8022 tcp:8022`"
    )


def _answered(device: Device, answer: dict[str, Any] | None, done: Finished | None = None) -> dict[str, Any]:
    """The answer of a program on a device, unless it tells of an error or there is none."""
    if answer is None:
        assert done is not None
        raise ended_early(device, done)
    if "error" in answer:
        raise DeviceError(f"{device.name}: {answer['error']}")
    return answer


def _pieces(folder: Path, need: list[tuple[str, int]]) -> Iterator[bytes]:
    """What is to be sent, file after file, each from its offset."""
    for name, offset in need:
        with (folder / name).open("rb") as file:
            file.seek(offset)
            while piece := file.read(_PIECE_BYTES):
                yield piece
