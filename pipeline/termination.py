"""Letting clean-up run when the process is told to end."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# What `kill`, service managers and closing terminals send, and Ctrl-C, with who handles it if nobody cares.
_HANDLERS = {"SIGTERM": signal.SIG_DFL, "SIGHUP": signal.SIG_DFL, "SIGINT": signal.default_int_handler}


@contextmanager
def termination_cleans_up() -> Iterator[Callable[[], None]]:
    """Turn a signal that ends the process into SystemExit, so that ``finally`` blocks run; the code is 128 + signal.

    Python drops what a handler raises within a ``__del__`` or a callback from C, and a bare ``except`` swallows it. So
    a signal is remembered: the end of the block raises SystemExit again, and what is yielded does so anywhere, to be
    called between steps and before what cannot be undone; it raises a lost KeyboardInterrupt again, too. Another signal
    raises again, too, but while the first one's clean-up runs: that is only ended by another Ctrl-C.

    A signal that somebody else handles or ignores (as `nohup` does) is left to them. Python hands signals to the main
    thread alone: in another thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    there_are = {signal.Signals[name]: handler for name, handler in _HANDLERS.items() if hasattr(signal, name)}
    ours = {number: handler for number, handler in there_are.items() if signal.getsignal(number) is handler}
    asked: list[BaseException] = []

    def end(number: int, frame: FrameType | None) -> None:
        cleans_up = any(error in asked for error in _handled_now())
        asked.append(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number))
        if number == signal.SIGINT or not cleans_up:
            raise asked[-1]

    def stop_if_asked() -> None:
        if asked:
            raise asked[-1]

    for number in ours:
        signal.signal(number, end)
    try:
        yield stop_if_asked
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for error in asked:
            if isinstance(error, SystemExit):  # an interrupt may have been handled, as what ends an answer
                raise error


def _handled_now() -> Iterator[BaseException]:
    """The exceptions for which ``except`` and ``finally`` blocks are running."""
    error = sys.exception()
    while error is not None:
        yield error
        error = error.__context__
