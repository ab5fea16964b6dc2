"""``ssh:[user@]host[:port]``: a computer reached by the system's OpenSSH.

Hosts, keys, jumps and passwords are those of ``~/.ssh/config``, the agent and the terminal. One connection is opened
and shared by all commands (``ControlMaster``); its socket is in a private folder. If this process is killed, the
connection ends by itself once it has been idle for a minute.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from edgepipe.devices.device import Device
from edgepipe.errors import DeviceUnreachable, EdgepipeError, RecipeError

CONNECT_S = 10
# A silent peer is given up after three of these.
ALIVE_S = 5
# What ssh itself exits with; our commands never do.
_BROKEN = 255
_ADDRESS = re.compile(r"(?P<host>([^@\s]+@)?(\[[0-9a-fA-F:.%\w]+\]|[^:\s\[\]]+))(:(?P<port>\d{1,5}))?")


class Ssh(Device):
    """A shared connection of OpenSSH."""

    port: int | None = None
    advice = "see that it is switched on, that sshd runs there, and that `{command}` works"

    def __init__(self, name: str) -> None:
        """``name`` is ``ssh:host``, ``ssh:user@host:2222``, or a host of ``~/.ssh/config``."""
        super().__init__(name)
        kind, _, address = name.partition(":")
        found = _ADDRESS.fullmatch(address)
        if found is None or address.startswith("-"):
            raise RecipeError(f"device is {name!r}: expected {kind}:user@host or {kind}:user@host:port")
        self.host = found["host"].replace("[", "").replace("]", "")
        if found["port"]:
            self.port = int(found["port"])
            if not 0 < self.port < 2**16:
                raise RecipeError(f"device is {name!r}: expected a port from 1 to {2**16 - 1}")
        self._folder: Path | None = None

    def connect(self) -> None:
        """Open the shared connection, asking for a password or about an unknown host on the terminal."""
        if shutil.which("ssh") is None:
            raise EdgepipeError("ssh is not installed: apt install openssh-client")
        self._folder = Path(tempfile.mkdtemp(prefix="edgepipe-"))
        options = {
            "ControlMaster": "yes",
            "ControlPersist": 60,
            "ConnectTimeout": CONNECT_S,
            "ServerAliveInterval": ALIVE_S,
            "ServerAliveCountMax": 3,
        }
        # The connection stays, and keeps its stderr open: a pipe would never end.
        with (self._folder / "said").open("w+b") as said:
            done = subprocess.run(
                [*self._ssh(options), "-f", "-N", "--", self.host],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
            said.seek(0)
            reason = _last_line(said.read().decode(errors="replace"))
        if done.returncode:
            by_hand = shlex.join(["ssh", *self._port_words(), self.host])
            raise DeviceUnreachable(
                f"{self.name} does not answer ({reason or 'ssh says nothing'}): {self.advice.format(command=by_hand)}"
            )

    def command(self, script: str) -> list[str]:
        """``ssh``; whatever the login shell is, ``sh`` runs the script."""
        return [*self._ssh({"BatchMode": "yes"}), "-T", "--", self.host, f"exec sh -c {shlex.quote(script)}"]

    def lost(self, code: int, said: str) -> str | None:
        """ssh has an exit code for it, which it also gives when the shell there was killed."""
        if code == _BROKEN or code < 0:
            return _last_line(said) or "the link broke, or the process there was killed"
        return None

    def close(self) -> None:
        """End the shared connection."""
        if self._folder is not None:
            subprocess.run([*self._ssh({}), "-O", "exit", "--", self.host], capture_output=True)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _ssh(self, options: dict[str, object]) -> list[str]:
        # What a user's configuration may ask for sessions of their own is not for ours.
        ours = {"RemoteCommand": "none", "ClearAllForwardings": "yes", "LogLevel": "ERROR"}
        shared = {"ControlPath": f"{self._folder}/link", **ours, **options}
        words = [word for key, value in shared.items() for word in ("-o", f"{key}={value}")]
        return ["ssh", *self._port_words(), *words]

    def _port_words(self) -> list[str]:
        return ["-p", str(self.port)] if self.port is not None else []


def _last_line(said: str) -> str:
    lines = said.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
