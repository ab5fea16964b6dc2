"""How devices are named, and what is done with any of them, on this computer."""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgepipe.devices.device import DEVICES, find_device, is_board
from edgepipe.devices.local import Local
from edgepipe.devices.shell import Conversation, Finished, ended_early, run, send
from edgepipe.devices.ssh import Ssh
from edgepipe.errors import DeviceError, DeviceUnreachable, EdgepipeError, RecipeError


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@pytest.mark.parametrize(
    ("name", "host", "port"),
    [
        ("ssh:pi", "pi", None),
        ("ssh:pi@raspberrypi.local", "pi@raspberrypi.local", None),
        ("ssh:pi@10.0.0.7:2222", "pi@10.0.0.7", 2222),
        ("ssh:pi@[fe80::1%eth0]:2222", "pi@fe80::1%eth0", 2222),
        ("termux:phone", "phone", 8022),
        ("termux:u0_a123@10.0.0.8:9000", "u0_a123@10.0.0.8", 9000),
    ],
)
def test_an_address_is_a_host_and_a_port(name: str, host: str, port: int | None) -> None:
    device = find_device(name)
    assert isinstance(device, Ssh)
    assert (device.name, device.host, device.port) == (name, host, port)


@pytest.mark.parametrize(
    "name",
    [
        "ssh:",
        "ssh",
        "ssh:-oProxyCommand=id",
        "ssh:a b",
        "ssh:pi:port",
        "ssh:pi:",
        "ssh:pi:0",
        "ssh:pi:65536",
        "termux:phone:99999",
        "termux:",
        "adb:",
        "adb:-s",
        "local:x",
    ],
)
def test_what_is_no_address_is_told_what_one_is(name: str) -> None:
    with pytest.raises(RecipeError, match=r"^device is .*: (expected (\w+:|a port)|this computer is just local)"):
        find_device(name)


def test_an_unknown_kind_is_told_all_kinds() -> None:
    with pytest.raises(RecipeError) as caught:
        find_device("sssh:pi")
    assert all(kind in str(caught.value) for kind in (*DEVICES, "mcu", "qemu"))


def test_boards_are_no_computers() -> None:
    assert [is_board(name) for name in ("mcu:/dev/ttyACM0", "qemu:mps2-an386", "ssh:mcu", "local")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("kind", ["ssh:pi", "adb:1234"])
def test_a_program_that_is_not_installed(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EdgepipeError, match=r"(ssh|adb) is not installed: apt install"), find_device(kind):
        pass


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_script_passes_the_login_shell_as_it_is(shell: str) -> None:
    script = "printf '%s|' 'a  b' \"$((1 + 2))\" '\"' \"it's\" '$HOME'; exit 7"
    words = Ssh("ssh:pi").command(script)
    assert words[-2] == "pi"
    done = subprocess.run([shell, "-c", words[-1]], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("a  b|3|\"|it's|$HOME|", 7)


def test_ssh_tells_a_broken_link_from_a_failed_command() -> None:
    device = Ssh("ssh:pi")
    assert device.lost(1, "no such file") is None
    assert device.lost(137, "") is None
    assert device.lost(255, "debug\nclient_loop: send disconnect: Broken pipe\n\n") == (
        "client_loop: send disconnect: Broken pipe"
    )
    assert device.lost(-9, "")


def test_run_keeps_output_and_errors_apart() -> None:
    with Local("local") as device:
        done = run(device, "cat; echo no >&2; exit 3", stdin=b"\x00\xff\r\n")
        assert (done.code, done.output, done.said) == (3, b"\x00\xff\r\n", "no\n")
        with pytest.raises(DeviceUnreachable, match="has not answered within 0 s"):
            run(device, "sleep 5", patience_s=0.2)


def test_a_file_is_sent_whole_or_not_at_all(tmp_path: Path) -> None:
    class Short(Local):
        """A link that swallows the end of what it is given."""

        def command(self, script: str) -> list[str]:
            return ["sh", "-c", f"head -c 1000 | sh -c {shlex.quote(script)}"]

    content, place = bytes(range(256)) * 40, tmp_path / "new folder" / "it's"
    (tmp_path / "file").write_bytes(content)
    send(Local("local"), tmp_path / "file", str(place))
    assert place.read_bytes() == content
    with pytest.raises(DeviceError, match="cannot write"):
        send(Short("local"), tmp_path / "file", str(place))
    assert place.read_bytes() == content
    assert [path.name for path in place.parent.iterdir()] == ["it's"]


def test_answers_are_lines_of_json_whatever_the_login_shell_says_before() -> None:
    script = """echo 'Welcome {you}'; echo '{ ~~~ }'; echo '{"cut'
        read line; printf '{"heard": %s}\\n{"and": 2}\\n' "$line"; exit 3"""
    with Conversation(Local("local"), script) as talk:
        assert talk.send(b"41\n")
        assert talk.answer() == {"heard": 41}
        assert talk.answer() == {"and": 2}
        with pytest.raises(DeviceError, match="ended early"):
            talk.answer()
        assert not talk.send(bytes(10**6))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", "exit code 2"),
        ("one\n  two  \n\n", "two"),
        ("ERROR: no such package\nnotice: a new pip\n", "no such package"),
    ],
)
def test_a_failure_has_a_reason(said: str, reason: str) -> None:
    assert Finished(2, b"", said).reason() == reason


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"", None),
        (b"hello\n", None),
        (b'{"a": 1}\n{"a": [[', None),
        (b"{ ~~ }\n", None),
        (b'x\n{"a": 1}\n{"a": 2}\n', {"a": 2}),
    ],
)
def test_the_last_object_is_the_answer(output: bytes, expected: Any) -> None:
    assert Finished(0, output, "").answer() == expected


def test_a_killed_program_is_told_as_such() -> None:
    assert "was killed" in str(ended_early(Local("local"), Finished(137, b"", "")))


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh: apt install openssh-client")
def test_who_is_not_reached_is_to_be_tried_at_the_same_port() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        port = closed.getsockname()[1]
        for kind in ("ssh", "termux"):
            with (
                pytest.raises(DeviceUnreachable, match=f"`ssh -p {port} 127.0.0.1`"),
                find_device(f"{kind}:127.0.0.1:{port}"),
            ):
                pass
