"""Serial ports as the system has them: pseudo-terminals that are busy, closed to us, mute or pulled out."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from edgepipe.devices.mcu import Mcu, open_mcu
from edgepipe.devices.mcu_line import McuLine
from edgepipe.errors import DeviceUnreachable

serial = pytest.importorskip("serial")
pty = pytest.importorskip("pty")


class Terminal:
    """A pseudo-terminal whose other side is the fake board."""

    def __init__(self, program: Path, tiles: int) -> None:
        self.ours, theirs = pty.openpty()
        self.port = os.ttyname(theirs)
        environment = os.environ | {"TILES": str(tiles)}
        self.board = subprocess.Popen([program], stdin=self.ours, stdout=self.ours, env=environment)
        self._theirs = [theirs]

    def pull_out(self) -> None:
        """Cut the board off; what the system still holds of it goes, too."""
        self.board.kill()
        self.board.wait()
        for side in (self.ours, *self._theirs):
            with contextlib.suppress(OSError):
                os.close(side)


@pytest.fixture
def plug_in(board_program: Path) -> Iterator[Callable[[int], Terminal]]:
    """``plug_in(tiles)`` → the fake board on a pseudo-terminal."""
    plugged: list[Terminal] = []

    def plug(tiles: int) -> Terminal:
        plugged.append(Terminal(board_program, tiles))
        return plugged[-1]

    yield plug
    for terminal in plugged:
        terminal.pull_out()


@pytest.mark.parametrize("pulled", [0, 10, 19])
def test_pulled_out_half_way(plug_in: Callable[[int], Terminal], fake: ModuleType, pulled: int) -> None:
    terminal = plug_in(20)

    def patches() -> Iterator[bytes]:
        for index, patch in enumerate(fake.noise(20)):
            if index == pulled:
                terminal.pull_out()
            yield patch

    line = McuLine(terminal.port, silence_s=0.5)
    with Mcu(line, fake.MODEL_HASH) as mcu, pytest.raises(DeviceUnreachable) as said:
        mcu.infer(patches)
    assert str(said.value).startswith(f"{terminal.port} is gone (")
    assert str(said.value).endswith("): plug the board in and run again")


def test_pulled_out_while_it_computes(plug_in: Callable[[int], Terminal], fake: ModuleType) -> None:
    terminal = plug_in(3)
    with Mcu(McuLine(terminal.port), fake.MODEL_HASH) as mcu:
        terminal.board.kill()  # It takes the request with it.
        threading.Timer(0.1, terminal.pull_out).start()
        with pytest.raises(DeviceUnreachable, match=r"is gone \([^\n]+\): plug the board in and run again$"):
            mcu.infer(lambda: fake.noise(3))


def test_two_programs_do_not_share_a_port(plug_in: Callable[[int], Terminal], fake: ModuleType) -> None:
    """Each would hear half of what the board says."""
    terminal = plug_in(6)
    patches = fake.noise(6)
    with open_mcu(terminal.port, 115200, fake.MODEL_HASH) as mcu:
        with pytest.raises(DeviceUnreachable, match=r"cannot be opened \(.+\): another program uses it, close that$"):
            open_mcu(terminal.port, 115200, fake.MODEL_HASH)
        assert mcu.infer(lambda: patches).output == fake.expected_output(patches)
    with open_mcu(terminal.port, 115200, fake.MODEL_HASH) as mcu:
        assert mcu.infer(lambda: patches).output == fake.expected_output(patches)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, r"sudo usermod -aG \w+ \$USER, then log in again"),
        (errno.EBUSY, "another program uses it, close that"),
        (errno.ENOENT, "(the ports here are /dev.+|no serial port is here, plug the board in)"),
    ],
)
def test_a_port_that_the_system_does_not_give(
    number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(port: str, **options: object) -> None:
        raise serial.SerialException(
            number, f"could not open port {port}: [Errno {number}] {os.strerror(number)}: {port}"
        )

    monkeypatch.setattr(serial, "serial_for_url", refuse)
    with pytest.raises(DeviceUnreachable, match=rf"^{tmp_path} cannot be opened \({os.strerror(number)}\): {advice}$"):
        open_mcu(str(tmp_path), 115200, None)


def test_what_is_no_serial_port(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for port, reason in (
        (tmp_path / "file", "Inappropriate ioctl for device"),
        (tmp_path, "Is a directory"),
        ("socket://nobody.invalid:9", "[^()]+"),
        ("a\0b", "[^()]*embedded null [^()]+"),
    ):
        with pytest.raises(DeviceUnreachable, match=rf"cannot be opened \({reason}\): [^\n]+$"):
            open_mcu(str(port), 115200, None)


@pytest.mark.parametrize("baud", [10**11, 2**31])
def test_a_baud_rate_that_no_port_has(plug_in: Callable[[int], Terminal], baud: int) -> None:
    with pytest.raises(DeviceUnreachable, match=r"cannot be opened \([^()\n]+\): "):
        open_mcu(plug_in(1).port, baud, None)


def test_another_baud_rate_than_the_boards(fake: ModuleType) -> None:
    """What comes is noise, whatever was said: bytes without any frame, and text without sense."""
    ours, theirs = pty.openpty()
    stop = threading.Event()

    def make_noise() -> None:
        noise = fake.noise(1)[0]
        while not stop.wait(0.01):
            os.write(ours, noise)

    thread = threading.Thread(target=make_noise)
    thread.start()
    try:
        line = McuLine(os.ttyname(theirs), 230400, answer_s=0.02, silence_s=0.5, most_tries=20)
        with pytest.raises(
            DeviceUnreachable, match=r"does not answer at 230400 baud: see that the board is on, that its baud"
        ):
            Mcu(line, None)
    finally:
        stop.set()
        thread.join()
        os.close(ours)
        os.close(theirs)
