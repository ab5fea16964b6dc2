"""A file that a user named: whole, or as it was; what is no file stays what it is."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from edgepipe.errors import EdgepipeError
from edgepipe.pipeline.whole_file import write_whole


def test_a_file_is_written_and_replaced_without_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "ü 'page\".html"
    for content in (b"a long first one", b"second"):
        write_whole(path, content, "--html")
        assert path.read_bytes() == content
    longest = tmp_path / ("x" * 255)  # as long as a name may be
    write_whole(longest, b"third", "--html")
    assert sorted(tmp_path.iterdir()) == sorted([path, longest])


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "page.html")
    for content in (b"first", b"second"):  # to nothing, to a file
        write_whole(tmp_path / "link", content, "--html")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "page.html").read_bytes() == content


def test_a_pipe_is_written_into_and_stays_one(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_whole(pipe, b"through it", "--html")
    reader.join(10)
    assert read == [b"through it"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["absent/page.html", "a file/page.html", "", ".", "a folder", "x" * 300, "a\0b"])
def test_what_cannot_be_written_is_told_by_its_own_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "a folder").mkdir()
    with pytest.raises(EdgepipeError) as caught:
        write_whole(tmp_path / name, b"page", "--html")
    assert str(caught.value).startswith(f"cannot write {tmp_path / name} (")
    assert str(caught.value).endswith("give another place with --html")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a file", "a folder"]
    assert not list((tmp_path / "a folder").iterdir())
