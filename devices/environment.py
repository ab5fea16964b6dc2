"""Makes edgepipe's environment on a device; runs there, from the wheel itself, with the device's own Python:

    PYTHONPATH=edgepipe-0.1.0-py3-none-any.whl python3 -m edgepipe.devices.environment facts|install|examine

The request is one JSON object on stdin; so is the answer, on stdout: what was asked for, or ``{"error": message}``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from edgepipe.devices.examination import examine
from edgepipe.devices.installation import STAMP, facts, free_bytes, locked, python_of, read_stamp
from edgepipe.errors import DeviceError

# What executorch asks for without a wheel for every processor, quickly made of its source: no compiler is needed.
_PURE_PYTHON = "antlr4-python3-runtime,coremltools"


def install(
    root: Path,
    wheel: Path,
    wheel_hash: str,
    version: str,
    requirements: list[str],
    provided: list[str],
    wheels: str | None = None,
) -> bool:
    """See to it that ``root/venv`` has edgepipe's wheel and its requirements; say whether anything was to be done.

    An environment that was not finished, as its missing stamp tells, is made anew.

    Args:
        root: edgepipe's folder on the device.
        wheel: edgepipe's wheel there.
        wheel_hash: its SHA-256.
        version: edgepipe's.
        requirements: what must be there besides.
        provided: those of them that the system's package manager has just installed; the environment sees its packages.
        wheels: a folder that pip takes instead of an index.

    Raises:
        DeviceError: pip or venv failed; the environment is as before, or removed if it was not finished.
    """
    with locked(root):
        stamp = read_stamp(root)
        if stamp and provided and not stamp["system_packages"]:
            stamp = None
        system_packages = bool(provided or (stamp and stamp["system_packages"]))
        present = {*provided, *(stamp["requirements"] if stamp else ())}
        missing = sorted(set(requirements) - present)
        if stamp and not missing and stamp["wheel"] == wheel_hash:
            return False
        venv = root / "venv"
        if stamp is None:
            shutil.rmtree(venv, ignore_errors=True)
        (root / STAMP).unlink(missing_ok=True)
        try:
            if stamp is None:
                _run([sys.executable, "-m", "venv", *(["--system-site-packages"] if system_packages else []), venv])
            pip = [python_of(root), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]
            if missing:
                _run([*pip, *sources(system_packages, wheels), *missing])
            _run([*pip, "--no-deps", "--no-index", "--force-reinstall", str(wheel)])
        except subprocess.CalledProcessError as error:
            if stamp is None:
                shutil.rmtree(venv, ignore_errors=True)
            elif error.returncode > 0:  # pip has undone what it began
                _write_stamp(root, stamp)
            raise DeviceError(_failure(error, root)) from None
        stamp = {
            "wheel": wheel_hash,
            "version": version,
            "requirements": sorted(present | set(requirements)),
            "system_packages": system_packages,
        }
        _write_stamp(root, stamp)
        return True


def sources(system_packages: bool, wheels: str | None) -> list[str]:
    """pip's options for where packages come from: numpy and engines are not compiled on a device, that takes hours."""
    if wheels:
        return ["--no-index", "--find-links", wheels, "--only-binary", ":all:"]
    if system_packages:
        return ["--prefer-binary"]
    return ["--only-binary", ":all:", "--no-binary", _PURE_PYTHON]


def _write_stamp(root: Path, stamp: dict[str, Any]) -> None:
    partial = root / f"{STAMP}.partial"
    partial.write_text(json.dumps(stamp))
    os.replace(partial, root / STAMP)


def _run(command: list[Any]) -> None:
    # Children keep the lock if this process is killed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # that of the wheel
    subprocess.run(
        command,
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        close_fds=False,
        env=environment,
    )


def _failure(error: subprocess.CalledProcessError, root: Path) -> str:
    """One line of what went wrong."""
    said = f"{error.stdout}\n{error.stderr}"
    if "No space left on device" in said or "Disk quota exceeded" in said:
        return f"the disk is full: installing stopped with {free_bytes(root) / 1e6:.0f} MB free now"
    lines = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    reason = lines[-1] if lines else " ".join(said.split())[-300:] or f"exit code {error.returncode}"
    if "pip" not in error.cmd:
        return f"no environment can be made there: {reason}"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"pip failed: {reason}; without an index there, `pip download` wheels for its Python {version} here and give "
        "--wheels FOLDER"
    )


def main() -> int:
    """Answer one request."""
    request = json.load(sys.stdin)
    try:
        if sys.argv[1] == "facts":
            answer: Any = facts(Path(request["root"]), request["bundle"])
        elif sys.argv[1] == "examine":
            answer = examine(Path(request["root"]))
        else:
            root, wheel = Path(request.pop("root")), Path(request.pop("wheel"))
            answer = {"changed": install(root, wheel, **request)}
    except (DeviceError, OSError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
