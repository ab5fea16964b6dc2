"""An `adb` whose one device, ``emulator-5554``, is a folder of this computer."""

from __future__ import annotations

import sys
from pathlib import Path

ADB = """#!{python}
import os, sys
from pathlib import Path
words = sys.argv[1:]
serial = words[1] if words[0] == "-s" else None
if serial != "emulator-5554" or Path({unplugged!r}).exists():
    sys.exit(f"error: device '{{serial}}' not found")
verb = words[2]
if verb == "get-state":
    print("device")
elif verb == "features":
    print({features!r})
elif verb == "shell":
    assert words[3] == "-T"
    os.chdir({home!r})
    os.execve("/bin/sh", ["sh", "-c", " ".join(words[4:])], {{"HOME": {home!r}, "PATH": {path!r}}})
"""


def plant(folder: Path, home: Path, path: str, features: str = "shell_v2\ncmd\nabb") -> Path:
    """Put an `adb` into ``folder``; return the file whose existence unplugs the device."""
    unplugged = folder / "unplugged"
    text = ADB.format(python=sys.executable, home=str(home), path=path, features=features, unplugged=str(unplugged))
    (folder / "adb").write_text(text)
    (folder / "adb").chmod(0o755)
    return unplugged
