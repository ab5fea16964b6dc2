"""Saying of a full disk where it is and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgepipe.errors import BundleError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def told_if_full(place: Path, remedy: str) -> Iterator[None]:
    """Name ``place``, which the block writes to, and ``remedy`` when its disk or quota is full.

    Raises:
        BundleError: it is full, whatever a library made of the system's error.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno in NO_SPACE:
                raise BundleError(f"cannot write {place}: {cause.strerror}; {remedy}") from error
            cause = cause.__cause__ or cause.__context__
        raise
