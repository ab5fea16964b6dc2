"""A board without hardware: the firmware's protocol as a process, behind a serial line that may be a bad one."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

HERE = Path(__file__).parent
FIRMWARE = HERE.parents[1] / "runtimes/mcu/firmware"
OURS = ("commands.c", "crc32.c", "frame.c", "main.c", "patches.c", "profile.c", "protocol.c", "text.c")
MODEL_HASH = "0123456789abcdef" * 4
INPUT_BYTES, OUTPUT_BYTES = 90, 600

SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-DEDGEPIPE_PROFILE")


def build(folder: Path, *defines: str) -> Path | None:
    """The firmware as a program of this computer, with sanitizers; None where there is no gcc."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return None
    program = folder / "board"
    sources = [HERE / "firmware/fake_board.c", *(FIRMWARE / name for name in OURS)]
    include = (f"-I{HERE / 'firmware'}", f"-I{FIRMWARE}")
    command = [compiler, *WARNINGS, *SANITIZED, *include, *defines, *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def patch_bytes(tile: int, tiles: int) -> int:
    """As the fake model has it."""
    return INPUT_BYTES if tiles == 1 else 40 + tile * 37 % 161


def noise(tiles: int, seed: int = 0) -> list[bytes]:
    """A patch for each tile."""
    generator = random.Random(seed)
    return [generator.randbytes(patch_bytes(tile, tiles)) for tile in range(tiles)]


def expected_output(patches: Sequence[bytes]) -> bytes:
    """What the fake model gives for these patches."""
    state = 1
    for byte in b"".join(patches):
        state = (state * 6364136223846793005 + byte + 1) % 2**64
    output = bytearray()
    for _ in range(OUTPUT_BYTES):
        state = (state * 6364136223846793005 + 1) % 2**64
        output.append(state >> 56)
    return bytes(output)


class Faults:
    """What a bad line does to bytes: flips a bit, drops, doubles, or delays each with a chance of ``rate`` / 4."""

    def __init__(self, rate: float, seed: int) -> None:
        self.rate = rate
        self.count = 0
        self._random = random.Random(seed)

    def __call__(self, content: bytes) -> bytes:
        changed = bytearray()
        for byte in content:
            if self._random.random() >= self.rate:
                changed.append(byte)
                continue
            self.count += 1
            fault = self._random.randrange(4)
            if fault == 0:
                changed.append(byte ^ 1 << self._random.randrange(8))
            elif fault == 1:
                changed += bytes((byte, byte))
            elif fault == 2:
                time.sleep(0.03 if self._random.random() < 0.1 else 0.001)
                changed.append(byte)
        return bytes(changed)


class FakeBoard:
    """A running board at ``port``, a URL for pyserial. ``to_board`` and ``to_host`` are its line's two directions.

    A ``deaf`` one hears nothing while it sends; its line takes the time of 115200 baud. A tile takes ``compute_ms``.
    """

    def __init__(
        self,
        program: Path,
        tiles: int = 1000,
        *,
        rate: float = 0.0,
        seed: int = 0,
        deaf: bool = False,
        compute_ms: int = 0,
    ) -> None:
        self.program, self.tiles, self.deaf, self.compute_ms = program, tiles, deaf, compute_ms
        self.to_board, self.to_host = Faults(rate, seed), Faults(rate, seed + 1)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = f"socket://127.0.0.1:{self._server.getsockname()[1]}"
        self._client: socket.socket | None = None
        self._start()
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unplug()
        self._server.close()
        self.process.kill()
        self.process.wait()
        errors = self.process.stderr.read() if self.process.stderr else b""
        assert not errors, errors.decode()

    def reset(self) -> None:
        """Take the board's power away for a moment; the line stays."""
        self.process.kill()
        self.process.wait()
        self._start()

    def unplug(self) -> None:
        """Break the line."""
        if self._client is not None:
            self._client.close()

    def _start(self) -> None:
        environment = {"TILES": str(self.tiles), "COMPUTE_MS": str(self.compute_ms)}
        if self.deaf:
            environment["DEAF"] = "1"
        self.process = subprocess.Popen(
            [self.program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=os.environ | environment,
        )

    def _serve(self) -> None:
        while True:
            try:
                self._client, _ = self._server.accept()
            except OSError:
                return
            self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._talk, args=(self._client,), daemon=True).start()
            threading.Thread(target=self._listen, args=(self._client,), daemon=True).start()

    def _listen(self, client: socket.socket) -> None:
        while True:
            try:
                received = client.recv(4096)
            except OSError:
                return
            if not received:
                return
            size = 8 if self.deaf else len(received)
            for begin in range(0, len(received), size):
                if self.deaf:
                    time.sleep(size * 10 / 115200)
                try:
                    assert self.process.stdin is not None
                    self.process.stdin.write(self.to_board(received[begin : begin + size]))
                except OSError:  # it is being reset
                    break

    def _talk(self, client: socket.socket) -> None:
        while True:
            process = self.process
            assert process.stdout is not None
            said = os.read(process.stdout.fileno(), 4096)
            if not said:
                if client.fileno() < 0:  # unplugged
                    return
                time.sleep(0.01)  # it is being reset
                continue
            try:
                client.sendall(self.to_host(said))
            except OSError:
                return
