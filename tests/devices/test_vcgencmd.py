"""What the firmware answers, and what becomes of it when it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgepipe.devices import readings
from edgepipe.devices import vcgencmd as firmware
from edgepipe.devices.readings import Unreadable

Vcgencmd = Callable[[str], None]

# Answers of a Raspberry Pi 5, in the words of its firmware.
RASPBERRY_PI_5 = """
case "$*" in
  measure_temp) echo "temp=61.5'C" ;;
  "measure_clock arm") echo "frequency(0)=2400033792" ;;
  get_throttled) echo "throttled=0x50005" ;;
  *) echo "error=1 error_msg=\\"Command not registered\\"" ;;
esac
"""


def test_answers_are_read(vcgencmd: Vcgencmd) -> None:
    vcgencmd(RASPBERRY_PI_5)
    assert firmware.temperature_c() == 61.5
    assert firmware.arm_clock_mhz() == pytest.approx(2400.033792)
    bits = firmware.throttled_bits()
    assert [name for bit, name in firmware.NOW.items() if bits >> bit & 1] == ["under-voltage", "throttled"]
    assert [bit for bit in firmware.SINCE_BOOT if bits >> bit & 1] == [16, 18]


def test_a_machine_without_it_says_so() -> None:
    with pytest.raises(Unreadable, match="not on PATH"):
        firmware.temperature_c()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'VCHI initialization failed' >&2; exit 255", "exit code 255.*VCHI initialization failed"),
        ("echo 'error=1 error_msg=\"Command not registered\"'", "Command not registered"),
        ("exit 0", "it said nothing"),
        ("exec sleep 30", "did not answer within"),
    ],
)
def test_a_failure_is_a_reason(vcgencmd: Vcgencmd, monkeypatch: pytest.MonkeyPatch, script: str, reason: str) -> None:
    monkeypatch.setattr(readings, "ASK_S", 0.2 if "sleep" in script else 5)
    vcgencmd(script)
    with pytest.raises(Unreadable, match=reason):
        firmware.throttled_bits()


def test_a_program_of_another_machine_is_a_reason(vcgencmd: Vcgencmd, tmp_path: Path) -> None:
    vcgencmd("")
    (tmp_path / "bin" / "vcgencmd").write_bytes(b"\x7fELF\0not for this machine")
    with pytest.raises(Unreadable, match="cannot be run: Exec format error"):
        firmware.temperature_c()
