"""A real OpenSSH server of this machine, with keys, a port and a home of its own, and a client that knows it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class SshServer:
    """An sshd on 127.0.0.1. ``client`` is a folder for PATH, whose `ssh` has the key and knows the host ``pi``."""

    def __init__(self, folder: Path, home: Path, path: str) -> None:
        assert SSHD is not None
        self.home = home
        self._make_client(folder)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "host"], check=True)
        server = {
            "Port": self.port,
            "ListenAddress": "127.0.0.1",
            "HostKey": folder / "host",
            "AuthorizedKeysFile": folder / "user.pub",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "SetEnv": f"HOME={home} PATH={path}",
        }
        (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in server.items()))
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self._process = subprocess.Popen([SSHD, "-D", "-f", folder / "sshd_config", "-E", folder / "log"])
        self._frozen: list[int] = []
        self._await(10)

    def _make_client(self, folder: Path) -> None:
        """A key, a port, and an `ssh` that uses them."""
        self.client = folder / "client"
        self.client.mkdir()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "user"], check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        host = {
            "HostName": "127.0.0.1",
            "Port": self.port,
            "IdentityFile": folder / "user",
            "UserKnownHostsFile": folder / "known_hosts",
            "StrictHostKeyChecking": "accept-new",
        }
        keys = "".join(f"    {key} {value}\n" for key, value in host.items())
        (folder / "ssh_config").write_text(f"Host pi 127.0.0.1\n{keys}")
        wrapper = self.client / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder / "ssh_config"} "$@"\n')
        wrapper.chmod(0o755)

    def _await(self, patience_s: float) -> None:
        """Wait until somebody listens on the port, or the server has ended."""
        deadline = time.monotonic() + patience_s
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a workstation that reaches this server."""
        return {**os.environ, "PATH": f"{self.client}:{os.environ['PATH']}", **more}

    def processes(self, program: str, *words: str) -> list[int]:
        """Processes of this machine whose program's name ends so, and whose command line has all of the words."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command, *arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            name, _, title = command.partition(" ")  # a shared connection changes its title, to "ssh: /path [mux]"
            line = " ".join([title, *arguments])
            if name.rstrip(":").endswith(program) and all(word in line for word in words):
                found.append(int(entry.name))
        return found

    def kill(self, program: str, *words: str) -> int:
        """kill -9 those; how many there were."""
        victims = self.processes(program, *words)
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        return len(victims)

    def freeze(self) -> None:
        """Let open connections go silent, as those of a phone that sleeps."""
        for session in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            os.kill(int(session), signal.SIGSTOP)
            self._frozen.append(int(session))

    def stop(self) -> None:
        """End the server; connections that are open go on."""
        for session in self._frozen:
            os.kill(session, signal.SIGKILL)
        self._process.terminate()
        self._process.wait()
