"""What is done with a device: a command and its outcome, a file sent, a conversation, a program joined to this one."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from edgepipe.devices.device import Device
from edgepipe.errors import DeviceError, DeviceUnreachable

# How long a device that should be busy with us may say and take nothing.
PATIENCE_S = 60.0
# How long a program that was told to end may go on.
_GRACE_S = 10.0
_KILLED = 128 + 9


@dataclass(frozen=True)
class Finished:
    """A command that ended on a device: its exit code, its stdout, and its stderr as text."""

    code: int
    output: bytes
    said: str

    def answer(self) -> dict[str, Any] | None:
        """The last line of stdout that is a JSON object; None when there is none, or it was cut off."""
        lines = [line for line in self.output.splitlines() if line.startswith(b"{")]
        return _object(lines[-1]) if lines else None

    def reason(self) -> str:
        """Why it failed: pip's last error, or the last line of stderr."""
        lines = [" ".join(line.split()) for line in self.said.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
        return (errors or lines or [f"exit code {self.code}"])[-1]


def _object(line: bytes) -> dict[str, Any] | None:
    """The JSON object that a line is; None for what a login shell says, and for one that was cut off."""
    try:
        found = json.loads(line) if line.startswith(b"{") else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def run(
    device: Device, script: str, *, stdin: bytes | IO[bytes] = b"", patience_s: float | None = PATIENCE_S
) -> Finished:
    """Run a script to its end.

    Args:
        device: connected.
        script: for the device's ``sh``.
        stdin: what it reads, or an open file.
        patience_s: the longest it may take.

    Raises:
        DeviceUnreachable: the link broke, or it took longer.
    """
    given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    try:
        done = subprocess.run(device.command(script), capture_output=True, timeout=patience_s, **given)
    except subprocess.TimeoutExpired:
        raise DeviceUnreachable(f"{device.name} has not answered within {patience_s:.0f} s: try again") from None
    said = done.stderr.decode(errors="replace")
    if done.returncode:
        raise_if_lost(device, done.returncode, said)
    return Finished(done.returncode, done.stdout, said)


def send(device: Device, file: Path, destination: str) -> None:
    """Copy one small file; ``destination`` has its old content, or none, until all of it is there.

    Several may copy to it at once.

    Raises:
        DeviceUnreachable: the link broke.
        DeviceError: the file cannot be written there.
    """
    size, there = file.stat().st_size, shlex.quote(destination)
    partial = shlex.quote(f"{destination}.{secrets.token_hex(4)}")
    whole = f'[ "$(wc -c < {partial})" -eq {size} ]'
    folder = shlex.quote(destination.rpartition("/")[0])
    script = f"mkdir -p {folder} && cat > {partial} && {whole} && mv {partial} {there}; c=$?; rm -f {partial}; exit $c"
    with file.open("rb") as stdin:
        done = run(device, script, stdin=stdin, patience_s=PATIENCE_S + size / 1e5)
    if done.code:
        raise DeviceError(f"{device.name}: cannot write {destination} ({done.reason()}): see that its disk has room")


class Conversation:
    """A process on a device that answers what it is sent with lines of JSON; to be used as a context manager."""

    def __init__(self, device: Device, script: str) -> None:
        """Start it."""
        self.device = device
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this
        self._process = subprocess.Popen(
            device.command(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        self._unread = b""

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        self._said.close()

    def send(self, data: bytes) -> bool:
        """Send all of ``data``; False when the other side reads no more: what it says tells why.

        Raises:
            DeviceUnreachable: for a minute it takes nothing.
        """
        view = memoryview(data)
        while view:
            if not select.select([], [self._stdin], [], PATIENCE_S)[1]:
                raise DeviceUnreachable(f"{self.device.name} has taken no byte for {PATIENCE_S:.0f} s: try again")
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return False
        return True

    def answer(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next line.

        Raises:
            DeviceUnreachable: the link broke, or for ``patience_s`` there is no line.
            DeviceError: the process ended without one.
        """
        while (line := self._line()) is None:
            if not select.select([self._stdout], [], [], patience_s)[0]:
                raise DeviceUnreachable(f"{self.device.name} has said nothing for {patience_s:.0f} s: try again")
            piece = os.read(self._stdout, 2**16)
            if not piece:
                raise self._ended()
            self._unread += piece
        return line

    def _line(self) -> dict[str, Any] | None:
        """The next line of JSON that has come; what a login shell says before it is left out."""
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            if (answer := _object(line)) is not None:
                return answer
        return None

    def _ended(self) -> Exception:
        code = self._process.wait(_GRACE_S)
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        raise_if_lost(self.device, code, said)
        return ended_early(self.device, Finished(code, b"", said))


def attach(device: Device, script: str, pid_file: str, *, stdin: Any = None, stdout: Any = None) -> int:
    """Run a program whose stdin, stdout and stderr are those of this process; return its exit code.

    Ctrl-C, or whatever else ends the wait, interrupts the program there; its last words still come.

    Args:
        device: connected.
        script: the program, one command.
        pid_file: path on the device that tells its process, removed at the end.
        stdin: as `subprocess.Popen` takes it; None for the one of this process.
        stdout: the same.

    Raises:
        DeviceUnreachable: the link broke.
        DeviceError: the program was killed.
    """
    place = shlex.quote(pid_file)
    inner = shlex.quote(f"echo $$ > {place}; exec {script}")
    command = device.command(f"sh -c {inner}; code=$?; rm -f {place}; exit $code")
    # In a session of its own, so that Ctrl-C does not end the link before the program.
    process = subprocess.Popen(command, stdin=stdin, stdout=stdout, start_new_session=True)
    try:
        code = process.wait()
    except BaseException as reason:
        with contextlib.suppress(DeviceUnreachable):
            run(device, f"kill -INT $(cat {place})")
        code = _wait(process)
        if not isinstance(reason, KeyboardInterrupt):
            raise
    raise_if_lost(device, code, "")
    if code == _KILLED:
        raise ended_early(device, Finished(code, b"", ""))
    return code


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Exit code of a program that was told to end; a second Ctrl-C, or too long a wait, ends the link."""
    try:
        return process.wait(_GRACE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
        raise KeyboardInterrupt from None


def raise_if_lost(device: Device, code: int, said: str) -> None:
    """Raise DeviceUnreachable if a command ended because the link broke."""
    if (reason := device.lost(code, said)) is not None:
        raise DeviceUnreachable(f"{device.name}: the link is lost ({reason}): type the same again")


def ended_early(device: Device, done: Finished) -> DeviceError:
    """The error of a program that ended otherwise than it should."""
    if done.code in (_KILLED, -9):
        return DeviceError(
            f"{device.name}: the program there was killed: out of memory (a smaller --budget or model), or by Android, "
            "whose limit on background programs `adb shell settings put global settings_enable_monitor_phantom_procs "
            "false` lifts"
        )
    return DeviceError(f"{device.name}: the program there ended early ({done.reason()}): type the same again")


@contextlib.contextmanager
def sent_for_now(device: Device, file: Path, folder: str) -> Iterator[str]:
    """Path on the device of a copy of ``file``, in a folder of its own that is removed at the end."""
    own = f"{folder}/{secrets.token_hex(4)}"
    there = f"{own}/{file.name}"
    try:
        send(device, file, there)
        yield there
    finally:
        with contextlib.suppress(DeviceUnreachable):
            run(device, f"rm -rf {shlex.quote(own)}")
