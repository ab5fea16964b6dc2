"""A path holds something, or nothing, or it cannot be known: the same on every Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.is_there import is_there


def test_something_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    for name, expected in {
        ".": True,
        "file": True,
        "link": True,
        "dangling": False,
        "nothing": False,
        "file/below": False,
        "a\0b": False,
    }.items():
        assert is_there(tmp_path / name) is expected


def test_a_name_that_none_can_have(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        is_there(tmp_path / ("b" * 300))


@pytest.fixture
def forbidden(tmp_path: Path) -> Iterator[Path]:
    """What stands in a folder that nobody but root may search, while this process is not root."""
    (tmp_path / "closed").mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield tmp_path / "closed/bundle"
    finally:
        os.seteuid(user)


@pytest.mark.skipif(sys.platform == "win32", reason="folders there are closed otherwise")
def test_a_folder_that_may_not_be_searched(forbidden: Path) -> None:
    with pytest.raises(PermissionError):
        is_there(forbidden)
    with pytest.raises(PermissionError):  # not that it is no bundle
        Bundle.open(forbidden)
