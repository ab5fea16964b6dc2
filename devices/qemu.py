"""A board emulated by QEMU: its firmware runs, its serial port is a socket."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from edgepipe.devices.end_with_parent import ending_with_this
from edgepipe.errors import DeviceUnreachable, EdgepipeError
from edgepipe.runtimes.mcu.board import Board

QEMU = "qemu-system-arm"

# Nanoseconds of emulated time for an instruction, as a power of two: what the board times in microseconds are
# thousands of instructions.
_ICOUNT_SHIFT = 0
INSTRUCTIONS_PER_US = 1000 >> _ICOUNT_SHIFT

# An emulated board may wait for a processor of this computer.
SLOWNESS = 12.0

# A process that breaks a connection by ending has ended so soon after.
_GRACE_S = 0.5

# Kill, terminate, interrupt: what comes from outside. Windows does not name them all.
_FROM_OUTSIDE = (9, 15, 2)


class Emulator:
    """A running emulator, to be used as a context manager. ``port``: a URL for the board's serial port.

    It counts instructions, and ends with this, and on Linux with the process even when that is killed.
    """

    def __init__(self, board: Board, firmware: Path) -> None:
        """Start a board with a firmware.

        Args:
            board: its ``qemu`` says which machine it is.
            firmware: an ELF file.

        Raises:
            EdgepipeError: QEMU does not know the board, or is not installed.
        """
        if board.qemu is None:
            raise EdgepipeError(f"QEMU emulates no {board.name}: take another board, or --device mcu:PORT")
        qemu = shutil.which(QEMU)
        if qemu is None:
            raise EdgepipeError(f"{QEMU} is not installed: apt install qemu-system-arm, or brew install qemu")
        self.board, self.firmware = board, firmware
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = f"socket://127.0.0.1:{server.getsockname()[1]}"
            arguments = {
                "-machine": board.qemu,
                "-kernel": str(firmware),
                "-icount": f"shift={_ICOUNT_SHIFT}",
                "-chardev": f"socket,id=serial,fd={server.fileno()},server=on,wait=on,nodelay=on",
                "-serial": "chardev:serial",
                "-monitor": "none",
                "-display": "none",
            }
            self._process = subprocess.Popen(
                ending_with_this(qemu, *chain.from_iterable(arguments.items())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(server.fileno(),),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it. An error that came because it had ended by itself becomes one that says why."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S if isinstance(error, DeviceUnreachable) else 0)
        ended = self._process.poll() is not None
        self._process.kill()
        _, said = self._process.communicate()
        if ended and isinstance(error, DeviceUnreachable):
            lines = [line for line in said.decode(errors="replace").splitlines() if line and " info: " not in line]
            if -self._process.returncode in _FROM_OUTSIDE:
                raise DeviceUnreachable(f"something has ended {QEMU}: run again") from error
            reason = lines[0] if lines else f"code {self._process.returncode}"
            raise DeviceUnreachable(f"{QEMU} has ended ({reason}): see that it emulates {self.board.qemu}") from error


def qemu_version() -> str:
    """The first line of what it says of itself.

    Raises:
        OSError: it is not installed.
    """
    said = subprocess.run([QEMU, "--version"], capture_output=True, text=True, errors="replace")
    return said.stdout.partition("\n")[0]
