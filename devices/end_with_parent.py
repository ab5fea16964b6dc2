"""Become another program, which Linux kills when the thread that started it ends: PARENT_PID PROGRAM ARGUMENT...

Run as a script, in a process of its own: to do this between fork and exec is not safe where other threads run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def ending_with_this(program: str, *arguments: str) -> list[str]:
    """The command of a process that ends, on Linux, with the thread that starts it, even when that is killed.

    ``program``: its path.
    """
    launcher = [sys.executable, "-IS", __file__, str(os.getpid())] if sys.platform == "linux" else []
    return [*launcher, program, *arguments]


def main(parent: str, program: str, *arguments: str) -> None:
    """Does not return."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and programs hand that on
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(parent):  # else it has ended already
        os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
