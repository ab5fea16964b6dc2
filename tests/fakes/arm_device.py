"""ARM computers under emulation, as scripts/arm64_rootfs.sh serves them: Debian, and one shaped like Termux."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ssh_server import SshServer  # of this folder, loaded before by `fake`

from edgepipe.devices.end_with_parent import ending_with_this

SCRIPT = str(Path(__file__).parents[2] / "scripts/arm64_rootfs.sh")
HOMES = {"pi": "root", "termux": "data/data/com.termux/files/home"}
# What the script ends with where rights, programs or packages are missing.
LACKS = 77
_START_S = 120
_ENVIRONMENT = {**os.environ, "PYTHON": sys.executable}


class Lacking(Exception):
    """This machine cannot emulate; the reason."""


def build(trees: Path) -> None:
    """Have the trees, building them if they are not there.

    Raises:
        Lacking: they cannot be built here.
    """
    done = subprocess.run([SCRIPT, "build", trees], capture_output=True, text=True, env=_ENVIRONMENT)
    if done.returncode == LACKS:
        raise Lacking(done.stderr.strip())
    assert done.returncode == 0, done.stderr


class ArmDevice(SshServer):
    """``kind`` is pi or termux; ``name`` is how `--device` calls it; ``root`` and ``home`` lead into its disk.

    It ends with this process, however that ends, and leaves nothing. ``links`` is where connections to it, and to no
    other, have their sockets.
    """

    def __init__(self, folder: Path, trees: Path, kind: str) -> None:
        self._make_client(folder)
        self._frozen, self.links = [], str(folder)
        log = folder / "log"
        with log.open("wb") as file:
            command = ending_with_this(SCRIPT, "serve", str(trees), kind, str(self.port), f"{folder}/user.pub")
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=file, env=_ENVIRONMENT)
        self._await(_START_S)
        if self._process.poll() == LACKS:
            raise Lacking(log.read_text().strip())
        assert self._process.poll() is None, log.read_text()
        process = self._process.pid
        self.sshd = int(Path(f"/proc/{process}/task/{process}/children").read_text())
        self.root = Path(f"/proc/{self.sshd}/root")
        self.home = self.root / HOMES[kind]
        self.name = f"ssh:root@127.0.0.1:{self.port}" if kind == "pi" else f"termux:u0_a123@127.0.0.1:{self.port}"
        self.disk = trees / "disk/root"  # what the root is mounted on, seen from its own namespace

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(TMPDIR=self.links, **more)

    def there(self, *words: str) -> list[int]:
        """Processes that run there and have all of the words in their command lines."""
        namespace, found = os.readlink(f"/proc/{self.sshd}/ns/pid"), []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "ns/pid") == namespace:
                    line = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                    found += [int(entry.name)] if all(word in line for word in words) else []
            except OSError:
                continue
        return found

    def freeze(self) -> None:
        """Fall asleep with all that runs there."""
        self._frozen = self.there()
        for process in self._frozen:
            os.kill(process, signal.SIGSTOP)

    def wake(self) -> None:
        """Go on."""
        for process in self._frozen:
            os.kill(process, signal.SIGCONT)
        self._frozen = []

    def outside(self, *command: str | Path) -> subprocess.CompletedProcess[bytes]:
        """Run a program of this machine among the mounts of the device."""
        return subprocess.run(["nsenter", f"--target={self.sshd}", "--mount", *command], capture_output=True)

    def stop(self) -> None:
        """Switch it off."""
        self._process.kill()
        self._process.wait()
