"""``local``: this computer, treated as any other device."""

from __future__ import annotations

from edgepipe.devices.device import Device
from edgepipe.errors import RecipeError


class Local(Device):
    """The shell of this computer."""

    def __init__(self, name: str) -> None:
        """``name`` is ``local``."""
        super().__init__(name)
        if name != "local":
            raise RecipeError(f"device is {name!r}: this computer is just local")

    def connect(self) -> None:
        """Nothing is opened."""

    def command(self, script: str) -> list[str]:
        """``sh``."""
        return ["sh", "-c", script]

    def lost(self, code: int, said: str) -> str | None:
        """There is no link."""
        return None

    def close(self) -> None:
        """Nothing was opened."""
