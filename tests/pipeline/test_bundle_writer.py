"""The final name of a bundle only ever holds a whole one."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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

# Begins a bundle and does not end it.
SLEEPER = """
import signal, sys, time
from edgepipe.pipeline.bundle_writer import write_bundle
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup and background jobs have these ignored
signal.signal(signal.SIGINT, signal.default_int_handler)

with write_bundle(sys.argv[1]) as draft:
    (draft.folder / "a.txt").write_text("half")
    print("inside", flush=True)
    for _ in range(6000):  # one long sleep would outlast a signal that comes as it begins
        time.sleep(0.1)
"""

# Told to end where Python drops what signal handlers raise, and where someone swallows it; goes on to the end.
LOSER = """
import json, signal, sys
from edgepipe.pipeline.bundle_writer import write_bundle

destination, manifest, number, times = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

class Finalized:
    def __del__(self):
        signal.raise_signal(number)

with write_bundle(destination, force=True) as draft:
    draft.manifest = manifest
    (draft.folder / "a.txt").write_text("two")
    Finalized()
    try:
        signal.raise_signal(number)
    except:
        print("lost", flush=True)
    if times == 3:
        signal.raise_signal(number)
        print("lost again", flush=True)
"""

# Told to end again while it cleans up.
CLEANER = """
import signal, sys
from edgepipe.pipeline.bundle_writer import write_bundle
signal.signal(signal.SIGHUP, signal.SIG_DFL)

with write_bundle(sys.argv[1]) as draft:
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
        print("cleaned", flush=True)
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
    with pytest.raises(BundleError, match="also holds notes,"):
        write(tmp_path / "bundle", "two", force=True)
    assert content(tmp_path / "bundle") == "one"


@pytest.mark.parametrize("place", ["", "target", "target/onnx"])
@pytest.mark.parametrize(
    "stranger", ["folder", "link to a file", "link to a folder", "dangling link", "link for a file"]
)
def test_force_never_deletes_folders_and_links_of_others(
    tmp_path: Path, manifest: dict[str, Any], place: str, stranger: str
) -> None:
    bundle, outside = tmp_path / "bundle", tmp_path / "outside"
    with write_bundle(bundle) as draft:
        draft.manifest = manifest
        (draft.folder / "target" / "onnx").mkdir(parents=True)
        (draft.folder / "target" / "onnx" / "a.txt").write_text("one")
    outside.mkdir()
    (outside / "a.txt").write_text("one")
    path = bundle / place / "mine"
    if stranger == "folder":
        (path / "below").mkdir(parents=True)
    elif stranger == "link for a file":
        path = bundle / "target" / "onnx" / "a.txt"
        path.unlink()
        path.symlink_to(outside / "a.txt")
    else:
        path.symlink_to(outside / {"link to a file": "a.txt", "dangling link": "absent"}.get(stranger, ""))
    message = f"also holds {path.relative_to(bundle).as_posix()},"
    with pytest.raises(BundleError, match=message), write_bundle(bundle, force=True):
        raise AssertionError("the work began")
    assert path.is_symlink() or (path / "below").is_dir()
    assert (outside / "a.txt").read_text() == "one"


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{}", '{"files": 3}', '{"files": [[]]}', "\0"])
def test_force_never_deletes_beside_a_manifest_that_cannot_be_read(tmp_path: Path, write: Write, text: str) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "edgepipe.json").write_text(text)
    with pytest.raises(BundleError, match="edgepipe.json cannot be read"):
        write(tmp_path / "bundle", force=True)
    assert (tmp_path / "bundle" / "edgepipe.json").read_text() == text


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


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path, write: Write) -> None:
    (tmp_path / "file").write_text("")
    for name in ("bundle", "below/bundle"):
        with pytest.raises(BundleError, match=f"{tmp_path}/file is a file, not a folder; give"):
            write(tmp_path / "file" / name)


@pytest.mark.parametrize("name", ["b" * 300, "b" * 5000, "a\0b", "b" * 300 + "/bundle", "ü" * 200])
def test_a_name_that_no_folder_can_have(tmp_path: Path, write: Write, name: str) -> None:
    with pytest.raises(BundleError, match=r"cannot write .*give") as refusal:
        write(tmp_path / name)
    assert "\0" not in str(refusal.value)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", ["b" * 255, "ü" * 127, "with spaces", "-leading", "a.partial-0"])
def test_any_name_that_a_folder_can_have(tmp_path: Path, write: Write, name: str) -> None:
    write(tmp_path / name)
    assert content(tmp_path / name) == "one"
    assert names(tmp_path) == {name}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_where_and_what_to_do(tmp_path: Path, code: int) -> None:
    message = f"cannot write {tmp_path}/bundle: {os.strerror(code)}; free some"
    with pytest.raises(BundleError, match=message), write_bundle(tmp_path / "bundle"):
        raise OSError(code, os.strerror(code))
    assert names(tmp_path) == set()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_disk_that_is_full_while_sealing(tmp_path: Path, manifest: dict[str, Any]) -> None:
    with pytest.raises(BundleError, match="free some"), write_bundle(tmp_path / "bundle") as draft:
        draft.manifest = manifest
        (draft.folder / "README.md").symlink_to("/dev/full")
    assert names(tmp_path) == set()


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_ends_the_process_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", SLEEPER, str(tmp_path / "bundle")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        assert len(names(tmp_path)) == 1
        process.send_signal(number)
        code = process.wait(timeout=60)
    # Nobody catches the interrupt in this process: Python then dies of the signal itself.
    assert code == (-number if number == signal.SIGINT else 128 + number)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_whose_exception_gets_lost(
    tmp_path: Path, write: Write, manifest: dict[str, Any], number: signal.Signals, times: int
) -> None:
    """The old bundle stays, whether it is the end of the work that raises it again or another signal."""
    write(tmp_path / "bundle")
    arguments = [str(tmp_path / "bundle"), json.dumps(manifest), str(int(number)), str(times)]
    done = subprocess.run([sys.executable, "-c", LOSER, *arguments], capture_output=True, text=True, timeout=60)
    assert "Exception ignored" in done.stderr, "no exception got lost"
    assert done.stdout == "lost\n"
    assert done.returncode == (-number if number == signal.SIGINT else 128 + number)
    assert content(tmp_path / "bundle") == "one"
    assert names(tmp_path) == {"bundle"}


def test_another_signal_does_not_end_the_clean_up(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLEANER, str(tmp_path / "bundle")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "cleaned\n")
    assert names(tmp_path) == set()


def test_signals_are_as_before(tmp_path: Path, write: Write) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    write(tmp_path / "bundle")
    with pytest.raises(BundleError):
        write(tmp_path / "bundle")
    assert {number: signal.getsignal(number) for number in before} == before


def test_signals_that_are_handled_or_ignored_are_left_alone(tmp_path: Path) -> None:
    def handler(number: int, frame: object) -> None: ...

    before = [signal.signal(signal.SIGTERM, handler), signal.signal(signal.SIGHUP, signal.SIG_IGN)]
    try:
        with pytest.raises(ZeroDivisionError), write_bundle(tmp_path / "bundle"):
            assert signal.getsignal(signal.SIGTERM) is handler
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            raise ZeroDivisionError
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGHUP, before[1])


def test_it_works_in_a_thread(tmp_path: Path, write: Write) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write, tmp_path / "bundle").result()
    assert content(tmp_path / "bundle") == "one"


def test_what_dead_writers_of_other_bundles_left_is_removed(tmp_path: Path, write: Write) -> None:
    abandoned = tmp_path / ".other.edgepipe-partial-0123abcd"
    similar = [tmp_path / name for name in (".other.partial-0123abcd", "other.edgepipe-partial-0123abcd")]
    for folder in (abandoned, *similar):
        folder.mkdir()
        (folder / "a.txt").write_text("half")
    with write_bundle(tmp_path / "living") as draft:
        write(tmp_path / "bundle")
        assert draft.folder.exists()
        assert not abandoned.exists()
        draft.manifest = Bundle.open(tmp_path / "bundle").manifest
        del draft.manifest["files"], draft.manifest["bundle_id"]
    assert names(tmp_path) == {"bundle", "living", *(folder.name for folder in similar)}


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
        partial |= any(name.startswith(".bundle.edgepipe-partial-") for name in names(tmp_path))
        written = Bundle.open(destination).folder.glob("*.txt")
        assert len({path.read_text() for path in written}) == 1
    assert partial, "no writer was killed at work: the kills tested nothing"
    with write_bundle(destination, force=True) as draft:
        draft.manifest = manifest
        assert names(tmp_path) == {"bundle", draft.folder.name}, "folders of dead writers are still there"
