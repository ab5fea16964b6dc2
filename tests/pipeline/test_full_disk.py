"""A full disk is named, whatever a library made of the system's error; nothing else is."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepipe.errors import BundleError
from edgepipe.pipeline.full_disk import told_if_full


def write(code: int) -> None:
    raise OSError(code, os.strerror(code))


def wrapping(code: int) -> None:
    try:
        write(code)
    except OSError as error:
        raise RuntimeError("cannot write") from error


def failing_to_close(code: int) -> None:
    try:
        wrapping(code)
    finally:
        raise ValueError("cannot close while writing")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("library", [write, wrapping, failing_to_close])
def test_it_is_named(code: int, library: Callable[[int], None]) -> None:
    with pytest.raises(BundleError) as told, told_if_full(Path("there"), "free some"):
        library(code)
    assert str(told.value) == f"cannot write there: {os.strerror(code)}; free some"


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "no"), ValueError("no"), KeyboardInterrupt()])
def test_another_error_is_left_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as told, told_if_full(Path("there"), "free some"):
        raise error
    assert told.value is error
