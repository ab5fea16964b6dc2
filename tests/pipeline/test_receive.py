"""The receiving end of a deployment, fed through a pipe that may end anywhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from edgepipe.errors import DeviceError
from edgepipe.pipeline import receive
from edgepipe.pipeline.receive import Receiver

CONTENT = {"edgepipe.json": b"{}", "target/weights.bin": bytes(range(256)) * 200, "target/empty": b""}


def wanted(content: dict[str, bytes]) -> dict[str, Any]:
    return {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in content.items()}


@contextmanager
def piped(data: bytes) -> Iterator[BinaryIO]:
    """The reading end of a pipe that holds ``data`` and then ends."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    with open(reading, "rb", buffering=0) as file:
        yield file


def deliver(root: Path, content: dict[str, bytes]) -> list[tuple[str, int]]:
    """Take in a bundle; what had to be sent."""
    receiver = Receiver(root, "net", wanted(content))
    need = receiver.needed()
    for name, offset in need:
        with piped(content[name][offset:]) as source:
            receiver.take(name, offset, source)
    receiver.finish()
    return need


def found(root: Path) -> dict[str, bytes]:
    folder = root / "bundles/net"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_is_sent_once(tmp_path: Path) -> None:
    assert deliver(tmp_path, CONTENT) == [(name, 0) for name in CONTENT]
    assert found(tmp_path) == CONTENT
    assert deliver(tmp_path, CONTENT) == []
    assert [path.name for path in (tmp_path / "bundles").iterdir()] == ["net"]


@pytest.mark.parametrize("cut", [0, 1, 51_199])
def test_what_was_cut_off_goes_on_where_it_ended(tmp_path: Path, cut: int) -> None:
    name = "target/weights.bin"
    receiver = Receiver(tmp_path, "net", wanted(CONTENT))
    receiver.needed()
    with piped(CONTENT[name][:cut]) as source, pytest.raises(SystemExit, match=f"link broke at byte {cut} of 51200"):
        receiver.take(name, 0, source)
    assert not (tmp_path / "bundles/net").exists()
    assert (name, cut) in deliver(tmp_path, CONTENT)
    assert found(tmp_path) == CONTENT


def test_the_beginning_of_one_version_is_not_that_of_another(tmp_path: Path) -> None:
    name = "target/weights.bin"
    receiver = Receiver(tmp_path, "net", wanted(CONTENT))
    receiver.needed()
    with piped(CONTENT[name][:1000]) as source, pytest.raises(SystemExit):
        receiver.take(name, 0, source)
    other = {**CONTENT, name: CONTENT[name][::-1]}
    assert (name, 0) in deliver(tmp_path, other)
    assert found(tmp_path) == other
    assert deliver(tmp_path, CONTENT) == [(name, 0)]  # the old beginning went with the version that has come
    assert found(tmp_path) == CONTENT


def test_a_file_is_gone_that_the_next_version_has_not(tmp_path: Path) -> None:
    deliver(tmp_path, {**CONTENT, "draft/weights.bin": b"draft"})
    assert deliver(tmp_path, CONTENT) == []
    # Nothing was missing, so nothing was changed: the file that is not of the bundle stays where it is.
    assert "draft/weights.bin" in found(tmp_path)
    changed = {**CONTENT, "edgepipe.json": b"{ }"}
    assert deliver(tmp_path, changed) == [("edgepipe.json", 0)]
    assert found(tmp_path) == changed


def test_damage_is_found_and_removed(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path, "net", wanted(CONTENT))
    receiver.needed()
    with piped(CONTENT["target/weights.bin"][::-1]) as source, pytest.raises(DeviceError, match="arrived damaged"):
        receiver.take("target/weights.bin", 0, source)
    assert ("target/weights.bin", 0) in receiver.needed()


def test_no_room_is_told_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "free_bytes", lambda place: 10_000)
    content = {"large": bytes(2_000_000)}
    with pytest.raises(DeviceError, match=r"2\.0 MB more are needed in .*, 0\.0 MB are free"):
        Receiver(tmp_path, "net", wanted(content)).needed()


def test_a_sender_that_is_gone_before_it_asks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgepipe.pipeline.receive", str(tmp_path), "net"]
    done = subprocess.run(command, input=b'{"fil', capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"the link broke before anything was asked for\n"
