"""Reading facts that may not be there: a value, or null and the reason why."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ASK_S = 5


class Unreadable(Exception):
    """A value cannot be read here; the message is the reason."""


def read_all(probes: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Call every probe, in order.

    Returns:
        What each probe returned, or None where it raised `Unreadable`, `OSError` or (a file of an unknown form)
        `ValueError`, and under ``unreadable`` the reason for each None.
    """
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name, probe in probes.items():
        try:
            values[name] = probe()
        except (Unreadable, ValueError, OSError) as error:
            values[name], reasons[name] = None, reason(error)
    return {**values, "unreadable": reasons}


def reason(error: Exception) -> str:
    """Why a value cannot be read, in the words of the system where it is the one that refused."""
    if not isinstance(error, OSError):
        return str(error)
    return (f"{error.filename}: " if error.filename else "") + (error.strerror or str(error))


def read_text(path: Path) -> str:
    """Text of a small file of the kernel's, without the white space and NULs around it; it must hold some.

    Raises:
        Unreadable: the file is empty.
        OSError: it cannot be read.
    """
    text = path.read_text(encoding="utf-8", errors="replace").strip("\0 \t\r\n")
    if not text:
        raise Unreadable(f"{path} is empty")
    return text


def read_number(path: Path) -> int:
    """The whole number that is all of a file.

    Raises:
        Unreadable: the file holds something else.
        OSError: it cannot be read.
    """
    text = read_text(path)
    try:
        return int(text)
    except ValueError:
        raise Unreadable(f"{path} holds {text[:40]!r}, expected a number") from None


def numbered(folder: Path, prefix: str) -> list[Path]:
    """Entries of ``folder`` named ``prefix`` and a number, by number; there must be one.

    Raises:
        Unreadable: there is none.
        OSError: the folder cannot be listed.
    """
    found = {
        int(entry.name.removeprefix(prefix)): entry
        for entry in folder.iterdir()
        if entry.name.startswith(prefix) and entry.name.removeprefix(prefix).isdecimal()
    }
    if not found:
        raise Unreadable(f"{folder} has no {prefix}*")
    return [found[number] for number in sorted(found)]


def ask(program: str, *arguments: str, hint: str = "") -> str:
    """What a program says on stdout, without the white space around it.

    Args:
        program: looked for on PATH.
        arguments: for it.
        hint: where it comes from.

    Raises:
        Unreadable: it is not there, fails, or takes longer than `ASK_S`.
    """
    path = shutil.which(program)
    if path is None:
        raise Unreadable(f"{program} is not on PATH" + (f" ({hint})" if hint else ""))
    asked = " ".join([program, *arguments])
    try:
        answer = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
        )
    except subprocess.TimeoutExpired:
        raise Unreadable(f"{asked} did not answer within {ASK_S} s") from None
    except OSError as error:
        raise Unreadable(f"{asked} cannot be run: {error.strerror}") from None
    if answer.returncode:
        said = " ".join((answer.stderr or answer.stdout).split())[:120]
        raise Unreadable(f"{asked} failed (exit code {answer.returncode}): {said or 'it said nothing'}")
    return answer.stdout.strip()
