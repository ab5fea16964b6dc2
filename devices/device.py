"""The contract of a device: a computer elsewhere that runs shell commands for us.

A device is named as the user types it, ``KIND:ADDRESS``; each kind is one file with one class of five methods. What is
done with a device, whatever its kind, is in `edgepipe.devices.shell`.

Microcontrollers (``mcu:``, ``qemu:``) are none of these: they have no shell, no files and no Python, only a firmware
that answers on a serial line. They are in `edgepipe.devices.mcu`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from types import TracebackType
from typing import Self

from edgepipe.errors import RecipeError
from edgepipe.lazy import load

# kind -> its class
DEVICES = {
    "local": "edgepipe.devices.local:Local",
    "ssh": "edgepipe.devices.ssh:Ssh",
    "termux": "edgepipe.devices.termux:Termux",
    "adb": "edgepipe.devices.adb:Adb",
}
BOARDS = ("mcu", "qemu")

_EXAMPLES = "local, ssh:user@host, termux:user@host, adb:serial, mcu:port or qemu:board"


class Device(ABC):
    """A computer with a POSIX shell; to be used as a context manager.

    Attributes:
        name: as the user typed it.
        home: shell expression for the folder in which edgepipe's own folder is made there.
    """

    home = '"$HOME"'

    def __init__(self, name: str) -> None:
        """``name`` is ``KIND:ADDRESS``, or ``KIND`` alone.

        Raises:
            RecipeError: the address is not one of this kind.
        """
        self.name = name

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def connect(self) -> None:
        """Open what later commands share, and see that the device answers.

        Raises:
            DeviceUnreachable: it does not; the reason, and what to do.
            EdgepipeError: the program that reaches it is not installed here.
        """

    @abstractmethod
    def command(self, script: str) -> list[str]:
        """The command of this computer that has the device's shell run ``script``.

        Its stdin, stdout, stderr and exit code are those of the script, byte for byte.
        """

    @abstractmethod
    def lost(self, code: int, said: str) -> str | None:
        """Why the link broke, if a command that ended with exit code ``code`` ended because of that; else None.

        Args:
            code: of the command, negative for a signal, as `subprocess` has it.
            said: the end of its stderr.
        """

    def provide(self, packages: Collection[str]) -> frozenset[str]:
        """Have the device's own package manager install what pip cannot bring there.

        Args:
            packages: names as on PyPI, and ``"python"``.

        Returns:
            Those that are now there. None by default: pip brings everything, and the user brings Python.

        Raises:
            DeviceError: the package manager failed.
        """
        return frozenset()

    @abstractmethod
    def close(self) -> None:
        """Close what `connect` opened; may be called again."""


def is_board(name: str) -> bool:
    """Whether a user's ``--device`` names a microcontroller."""
    return name.partition(":")[0] in BOARDS


def find_device(name: str) -> Device:
    """The device that a user's ``--device`` names, not yet connected.

    Raises:
        RecipeError: there is no such kind, or the address is not one of this kind.
    """
    kind, _, _ = name.partition(":")
    if kind not in DEVICES:
        raise RecipeError(f"device is {name!r}: expected {_EXAMPLES}")
    device: Device = load(DEVICES[kind])(name)
    return device
