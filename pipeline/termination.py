"""Letting clean-up run when the process is told to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

# What `kill`, service managers and closing terminals send; Windows has no hang-up.
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def termination_cleans_up() -> Iterator[None]:
    """Turn a signal that ends the process into SystemExit, so that ``finally`` blocks run; the code is 128 + signal.

    A signal that somebody else handles or ignores (as `nohup` does) is left to them. Python hands signals to the main
    thread alone: in another thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for each in ours:  # a second signal must not end the clean-up
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
