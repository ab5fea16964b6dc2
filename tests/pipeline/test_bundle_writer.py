"""The final name of a bundle only ever holds a whole one."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgepipe.errors import BundleError
from edgepipe.pipeline import exchange as exchange_module
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.bundle_writer import write_bundle

# Writes a bundle of many small files, slowly enough to be killed at any stage, then does it again.
WRITER = """
import json, sys
from pathlib import Path
from edgepipe.pipeline.bundle_writer import write_bundle

destination, marker, manifest = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
print("ready", flush=True)
while True:
    with write_bundle(destination, force=True) as draft:
        draft.manifest = json.loads(manifest)
        for index in range(30):
            (draft.folder / f"{index}.txt").write_text(marker * 1000)
    print("written", flush=True)
"""

Write = Callable[..., None]


@pytest.fixture
def write(manifest: dict[str, Any]) -> Write:
    """``write(destination, text, force)`` writes a bundle with one file."""

    def write(destination: Path, text: str = "one", force: bool = False) -> None:
        with write_bundle(destination, force) as draft:
            draft.manifest = manifest
            (draft.folder / "a.txt").write_text(text)

    return write


def content(destination: Path) -> str:
    return Bundle.open(destination).path("a.txt").read_text()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@contextmanager
def writer(destination: Path, marker: str, manifest: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Another process that keeps writing a bundle, until the block ends or it is killed."""
    command = [sys.executable, "-c", WRITER, str(destination), marker, json.dumps(manifest)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_nothing_stays_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), write_bundle(tmp_path / "bundle") as draft:
        (draft.folder / "a.txt").write_text("half")
        raise ZeroDivisionError
    assert names(tmp_path) == set()


def test_an_existing_bundle_is_refused_before_any_work(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "bundle")
    with pytest.raises(BundleError, match="--force"), write_bundle(tmp_path / "bundle"):
        raise AssertionError("the work began")
    assert content(tmp_path / "bundle") == "one"


@pytest.mark.parametrize("at_once", [True, False])
def test_force_replaces_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool, write: Write) -> None:
    if not at_once:
        monkeypatch.setattr(exchange_module, "_exchange_at_once", lambda first, second: False)
    write(tmp_path / "bundle")
    write(tmp_path / "bundle", "two", force=True)
    assert content(tmp_path / "bundle") == "two"
    assert names(tmp_path) == {"bundle"}


def test_force_keeps_the_old_bundle_when_the_new_one_fails(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "bundle")
    with pytest.raises(ZeroDivisionError), write_bundle(tmp_path / "bundle", force=True):
        raise ZeroDivisionError
    assert content(tmp_path / "bundle") == "one"
    assert names(tmp_path) == {"bundle"}


def test_force_never_deletes_what_is_no_bundle(tmp_path: Path, write: Write) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.txt").write_text("years of work")
    with pytest.raises(BundleError, match="is no bundle"):
        write(folder, force=True)
    (folder / "edgepipe.json").write_text("not JSON")
    with pytest.raises(BundleError, match="edgepipe.json"):
        write(folder, force=True)
    assert (folder / "chapter.txt").read_text() == "years of work"


def test_force_never_deletes_a_stranger_among_the_files(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "bundle")
    (tmp_path / "bundle" / "notes").mkdir()
    (tmp_path / "bundle" / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(BundleError, match="notes/mine.txt"):
        write(tmp_path / "bundle", "two", force=True)
    assert content(tmp_path / "bundle") == "one"


def test_a_stranger_that_comes_during_the_work_is_kept(tmp_path: Path, write: Write, manifest: dict[str, Any]) -> None:
    write(tmp_path / "bundle")
    with pytest.raises(BundleError, match="late.txt"), write_bundle(tmp_path / "bundle", force=True) as draft:
        draft.manifest = manifest
        (tmp_path / "bundle" / "late.txt").write_text("late")
    assert (tmp_path / "bundle" / "late.txt").read_text() == "late"
    assert content(tmp_path / "bundle") == "one"


def test_force_takes_an_empty_folder(tmp_path: Path, write: Write) -> None:
    (tmp_path / "bundle").mkdir()
    write(tmp_path / "bundle", force=True)
    assert content(tmp_path / "bundle") == "one"


def test_a_file_as_destination(tmp_path: Path, write: Write) -> None:
    (tmp_path / "bundle").write_text("")
    with pytest.raises(BundleError, match="is a file"):
        write(tmp_path / "bundle", force=True)


def test_a_destination_that_cannot_be_written(tmp_path: Path, write: Write) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="cannot write into"):
        write(tmp_path / "file" / "below" / "bundle")


def test_a_link_to_a_bundle_stays_a_link(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", "two", force=True)
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "real") == "two"


def test_a_living_writer_is_left_alone(tmp_path: Path, write: Write) -> None:
    with pytest.raises(ZeroDivisionError), write_bundle(tmp_path / "bundle") as draft:
        write(tmp_path / "bundle")
        assert draft.folder.exists()
        raise ZeroDivisionError
    assert content(tmp_path / "bundle") == "one"


def test_the_later_of_two_writers_is_refused(tmp_path: Path, write: Write, manifest: dict[str, Any]) -> None:
    with pytest.raises(BundleError, match="--force"), write_bundle(tmp_path / "bundle") as draft:
        write(tmp_path / "bundle")
        draft.manifest = manifest
    assert content(tmp_path / "bundle") == "one"
    assert names(tmp_path) == {"bundle"}


def test_kill_leaves_no_half_bundle(tmp_path: Path, manifest: dict[str, Any]) -> None:
    """Killed at random moments, the final name holds a whole bundle of one writer."""
    chance = random.Random(0)
    destination = tmp_path / "bundle"
    with writer(destination, "first", manifest) as process:
        started = time.monotonic()
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        duration = time.monotonic() - started
    partial = False
    for marker in "abcdefgh":
        with writer(destination, marker, manifest) as process:
            time.sleep(chance.uniform(0, 2 * duration))
            process.send_signal(signal.SIGKILL)
            process.wait()
        partial |= any(name.startswith(".bundle.partial-") for name in names(tmp_path))
        written = Bundle.open(destination).folder.glob("*.txt")
        assert len({path.read_text() for path in written}) == 1
    assert partial, "no writer was killed at work: the kills tested nothing"
    with write_bundle(destination, force=True) as draft:
        draft.manifest = manifest
        assert names(tmp_path) == {"bundle", draft.folder.name}, "folders of dead writers are still there"
