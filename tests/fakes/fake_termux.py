"""A phone with Termux in a folder: a prefix with a Python of its own, `pkg`, and an `ssh` that leads there.

Nothing of the system's folders is on its PATH but links to a few tools. `pkg` puts Python's packages into the prefix,
where only environments that see the system's packages find them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

TOOLS = ("sh", "cat", "env", "head", "mkdir", "mv", "rm", "wc")
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"

SSH = """#!{python}
import os, sys
from pathlib import Path
root, words = Path({root!r}), sys.argv[1:]
(root / "ssh.log").open("a").write(repr(words) + "\\n")
if (root / "asleep").exists():
    sys.exit(print("ssh: connect to host phone port 8022: Connection timed out", file=sys.stderr) or 255)
if "-O" in words or "-N" in words:
    sys.exit(0)
command = words[words.index("--") + 2]
environment = {{"HOME": str(root / "home"), "PREFIX": str(root / "usr"), "PATH": str(root / "usr/bin")}}
os.chdir(root / "home")
os.execve(root / "usr/bin/sh", ["sh", "-c", command], environment)
"""
PKG = """#!{python}
import sys
sys.path.insert(0, {here!r})
from fake_termux import Termux
Termux.at({root!r}).pkg(sys.argv[1:])
"""
# package of pkg -> the distributions of PyPI that are in it, with what they need
PACKAGES = {
    "python-numpy": ["numpy"],
    "python-onnxruntime": ["onnxruntime", "flatbuffers", "packaging", "protobuf"],
    "python-pillow": ["pillow"],
    "python-ensurepip-wheels": [],
}


class Termux:
    """The phone. ``client`` is a folder for PATH with the `ssh` to it; a file ``asleep`` in ``root`` silences it."""

    def __init__(self, root: Path) -> None:
        self.root, self.usr, self.client = root, root / "usr", root / "client"

    @classmethod
    def at(cls, root: str) -> Termux:
        return cls(Path(root))

    def make(self) -> None:
        """Make what a fresh Termux has: no Python."""
        for folder in (self.root / "home", self.usr / "bin", self.client):
            folder.mkdir(parents=True)
        for tool in TOOLS:
            (self.usr / "bin" / tool).symlink_to(shutil.which(tool) or "")
        here = str(Path(__file__).parent)
        for path, text in ((self.client / "ssh", SSH), (self.usr / "bin/pkg", PKG)):
            path.write_text(text.format(python=sys.executable, root=str(self.root), here=here))
            path.chmod(0o755)

    def pkg(self, words: list[str]) -> None:
        """``pkg install -y NAME...``."""
        with (self.root / "pkg.log").open("a") as log:
            log.write(" ".join(words) + "\n")
        assert words[:2] == ["install", "-y"]
        for name in words[2:]:
            if name == "python":
                self._install_python()
            elif name in PACKAGES:
                for distribution in PACKAGES[name]:
                    self._install(distribution)
            else:
                sys.exit(f"E: Unable to locate package {name}")

    def has_own_python(self) -> bool:
        """Whether a copied interpreter takes its libraries from where it stands."""
        self._install_python()
        shown = subprocess.run([self.usr / "bin/python3", "-c", "import sys; print(sys.prefix)"], capture_output=True)
        for path in (self.usr / "bin").glob("python*"):
            path.unlink()
        return shown.stdout.decode().strip() == str(self.usr)

    def _install_python(self) -> None:
        """An interpreter whose prefix is ``usr``: its own copy, the library by links, packages of its own."""
        base = Path(os.path.realpath(sys.executable))
        library, ours = Path(os.__file__).parent, self.usr / "lib" / VERSION
        self._packages().mkdir(parents=True, exist_ok=True)
        for entry in library.iterdir():
            if entry.name not in ("site-packages", "dist-packages", "__pycache__") and not (ours / entry.name).exists():
                (ours / entry.name).symlink_to(entry)
        shutil.copy(base, self.usr / "bin" / VERSION)
        for name in ("python", "python3"):
            (self.usr / "bin" / name).unlink(missing_ok=True)
            (self.usr / "bin" / name).symlink_to(VERSION)

    def _install(self, name: str) -> None:
        for entry in {file.parts[0] for file in metadata.distribution(name).files or () if ".." not in file.parts}:
            place = self._packages() / entry
            if not place.exists():
                place.symlink_to(metadata.distribution(name).locate_file(entry))

    def _packages(self) -> Path:
        """Where the interpreter looks for the system's packages; Debian's has a place of its own."""
        debian = Path("/etc/debian_version").exists() and str(Path(os.__file__)).startswith("/usr/lib")
        return self.usr / "lib" / ("python3/dist-packages" if debian else f"{VERSION}/site-packages")
