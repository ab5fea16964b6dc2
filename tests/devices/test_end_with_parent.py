"""Programs started to end with this process; that they do is tested where they are used."""

from __future__ import annotations

import signal
import subprocess

import pytest

from edgepipe.devices.end_with_parent import ending_with_this


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGXFSZ])
def test_a_program_meets_signals_as_from_a_shell(number: signal.Signals) -> None:
    command = ending_with_this("/bin/sh", "-c", f"kill -{number.value} $$; echo alive")
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")
