"""Every verb against ARM computers: real aarch64 wheels and a real sshd, the processor emulated by QEMU.

What they compute is what an ARM core computes; how fast, says nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepipe.devices.installation import folder_bytes

pytestmark = pytest.mark.slow

Ballasted = Callable[..., Path]
IsWhole = Callable[[Path], bool]

MB = 1_000_000
MOMENTS = 20
KINDS = ("pi", "termux")
# Every token of its answer leads by more than a logit, which int8 products of other instructions do not change.
QUESTION, ANSWER = "What is the capital city of Japan?", "The capital city of Japan is Tokyo."
ENDLESS = ("fox", "-n", "1000000", "--policy", "window", "--budget", "64", "--drafter", "none")
AARCH64 = 183  # e_machine in the ELF header


def start(device: Any, verb: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "edgepipe", verb, *map(str, arguments), "--device", device.name]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=device.environment()
    )


def edgepipe(device: Any, verb: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    process = start(device, verb, *arguments)
    output, said = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output.decode(), said.decode())


@pytest.fixture(scope="module")
def deployed(arm_device: Callable[[str], Any], smollm2_int4_bundle: Path) -> Callable[[str], Any]:
    """``deployed(kind)`` → the computer, with SmolLM2 on it, and what `deploy` has said in ``deployment``."""

    def ready(kind: str) -> Any:
        device = arm_device(kind)
        if not hasattr(device, "deployment"):
            done = edgepipe(device, "deploy", smollm2_int4_bundle, "--json")
            assert done.returncode == 0, done.stdout + done.stderr
            device.deployment = json.loads(done.stdout)
        return device

    return ready


@pytest.fixture
def phone(deployed: Callable[[str], Any]) -> Any:
    return deployed("termux")


@pytest.fixture
def pi(deployed: Callable[[str], Any]) -> Any:
    return deployed("pi")


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_exported_here_gives_the_same_text_there(
    deployed: Callable[[str], Any], smollm2_int4_bundle: Path, is_whole: IsWhole, cli: Any, kind: str
) -> None:
    device = deployed(kind)
    total = sum(path.stat().st_size for path in smollm2_int4_bundle.rglob("*") if path.is_file())
    assert device.deployment["copied_bytes"] == total
    assert "48 greedy tokens" in device.deployment["verified"]
    assert is_whole(device.home / ".edgepipe/bundles" / smollm2_int4_bundle.name)
    flags = (QUESTION, "-n", "12", "--drafter", "none", "--json")
    there, here = edgepipe(device, "run", smollm2_int4_bundle, *flags), cli("run", smollm2_int4_bundle, *flags)
    assert there.returncode == 0, there.stderr
    ours, theirs = json.loads(here.stdout), json.loads(there.stdout)
    assert theirs["text"] == ours["text"] == ANSWER
    assert theirs["tokens"] == ours["tokens"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_deploy_copies_nothing(deployed: Callable[[str], Any], smollm2_int4_bundle: Path, kind: str) -> None:
    done = edgepipe(deployed(kind), "deploy", smollm2_int4_bundle, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    again = json.loads(done.stdout)
    assert (again["copied_bytes"], again["copied_files"], again["installed"]) == (0, 0, False)


def test_engines_are_those_of_the_architecture(pi: Any, phone: Any) -> None:
    ours = pi.home / ".edgepipe/venv"
    theirs = phone.home / ".edgepipe/venv"
    engine = next(ours.glob("lib/python3*/site-packages/onnxruntime/capi/*.so"))
    assert int.from_bytes(engine.read_bytes()[18:20], "little") == AARCH64
    for environment in (ours, theirs):
        installed = {path.name for path in environment.glob("lib/python3*/site-packages/*")}
        assert {"edgepipe", "click", "jinja2", "rich"} <= installed
        assert not {"tokenizers", "torch"} & installed
    # What a phone's package manager brings is not brought by pip, which has no wheels for it.
    assert not {"numpy", "onnxruntime"} & installed
    assert (phone.home.parent / "pkg.log").read_text().splitlines() == [
        "install -y python python-ensurepip-wheels python-numpy python-onnxruntime"
    ]


def test_a_pi_that_lacks_power_measures_and_says_so(pi: Any, smollm2_int4_bundle: Path, tmp_path: Path) -> None:
    firmware = pi.root / "usr/bin/vcgencmd"
    firmware.write_text("#!/bin/sh\n[ $1 = get_throttled ] && echo throttled=0x50005\n")
    firmware.chmod(0o755)
    try:
        small = ("--prompt-lengths", "8", "-n", "4", "--repeats", "1", "--max-width", "1")
        done = edgepipe(pi, "measure", smollm2_int4_bundle, *small, "--drafter", "none", "-o", tmp_path / "report")
        seen = edgepipe(pi, "doctor", "--json")
    finally:
        firmware.unlink()
    assert done.returncode == 5, done.stderr
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert report["status"] == "untrustworthy"
    assert [gate["outcome"] for gate in report["gates"] if gate["gate"] == "throttling"] == ["failed"]
    known = report["device"]
    assert (known["architecture"], known["platform"]) == ("aarch64", "linux")
    assert re.fullmatch(r"\d+ x Cortex-A76", known["cpu_model"])
    assert "asimddp" in known["cpu_features"]

    examined = json.loads(seen.stdout)
    outcomes = {finding["check"]: finding["outcome"] for finding in examined["findings"]}
    assert outcomes["throttling"] == "advice"
    assert outcomes["onnxruntime"] == "ok"
    assert seen.returncode == 0, seen.stdout


def test_a_phone_tells_what_it_can(phone: Any, smollm2_int4_bundle: Path, tmp_path: Path) -> None:
    small = ("--prompt-lengths", "8", "-n", "4", "--repeats", "1", "--max-width", "1")
    done = edgepipe(phone, "measure", smollm2_int4_bundle, *small, "--drafter", "none", "-o", tmp_path / "report")
    assert done.returncode in (0, 5), done.stderr
    report = json.loads((tmp_path / "report/report.json").read_text())
    known, before = report["device"], report["conditions"]["before"]
    assert (known["architecture"], known["platform"]) == ("aarch64", "android")
    assert known["packages"]["onnxruntime"].startswith("1.29.")
    for reading in ("busy_core_s", "clocks", "temperature_c", "throttled_bits"):
        assert before[reading] is None
        assert before["unreadable"][reading]
    assert "Permission denied" in before["unreadable"]["busy_core_s"]
    seen = edgepipe(phone, "doctor", "--json")
    assert seen.returncode == 0, seen.stdout + seen.stderr
    outcomes = {finding["check"]: finding["outcome"] for finding in json.loads(seen.stdout)["findings"]}
    assert (outcomes["onnxruntime"], outcomes["temperature"]) == ("ok", "unknown")


def test_a_phone_that_falls_asleep(phone: Any, smollm2_int4_bundle: Path) -> None:
    process = start(phone, "run", smollm2_int4_bundle, *ENDLESS)
    assert process.stdout is not None
    assert process.stdout.read(1)
    phone.freeze()
    try:
        _, said = process.communicate(timeout=120)
        asleep = edgepipe(phone, "run", smollm2_int4_bundle, "fox")
    finally:
        phone.wake()
    assert process.returncode == 4
    assert said.splitlines()[-1].startswith(f"error: {phone.name}: the link is lost".encode())
    assert asleep.returncode == 4
    assert "termux-wake-lock" in asleep.stderr


def test_killed_at_random_moments_the_next_deploy_ends_in_a_verified_bundle(
    pi: Any, ballasted: Ballasted, is_whole: IsWhole
) -> None:
    """Whatever is killed, and whenever: the name holds nothing, or all of one version."""
    size, bundles, generator = 12 * MB, pi.home / ".edgepipe/bundles", random.Random(7)
    versions = [ballasted(seed, size) for seed in (1, 2)]
    there, incoming = bundles / "heavy", bundles / ".heavy.incoming"
    sums = [(version / "SHA256SUMS").read_text() for version in versions]
    struck = dict.fromkeys(("workstation", "ssh", "there"), 0)
    for moment in range(MOMENTS):
        process = start(pi, "deploy", versions[moment // 2 % 2])
        victim, share, seconds = generator.choice(list(struck)), generator.uniform(0, 1), generator.uniform(1, 6)
        deadline = time.monotonic() + (seconds if moment % 4 == 0 else 120)  # some before anything has come
        while process.poll() is None and time.monotonic() < deadline and folder_bytes(incoming) < share * size:
            time.sleep(0.002)
        if victim == "workstation":
            struck[victim] += process.poll() is None
            process.kill()
        elif victim == "ssh":
            struck[victim] += bool(pi.kill("ssh", pi.links))
        else:
            victims = pi.there("python", ".edgepipe")
            for each in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            struck[victim] += bool(victims)
        _, said = process.communicate(timeout=300)
        assert b"Traceback" not in said, said.decode()
        assert process.returncode in (0, 4, -9), said.decode()
        while pi.there("edgepipe.pipeline.receive"):  # whose workstation is gone; it may be swapping folders
            time.sleep(0.01)
        if there.exists():
            assert is_whole(there)
            assert (there / "SHA256SUMS").read_text() in sums
    assert sum(struck.values()) >= MOMENTS // 2, struck
    assert min(struck.values()) > 0, struck
    done = edgepipe(pi, "deploy", versions[0])
    assert done.returncode == 0, done.stderr
    assert "verified target" in done.stdout
    assert is_whole(there)
    assert (there / "SHA256SUMS").read_text() == sums[0]
    assert not list(bundles.glob(".heavy*"))


def test_a_disk_of_50_mib_is_reported_with_the_numbers(pi: Any, ballasted: Ballasted) -> None:
    bundle = ballasted(3, 60 * MB)
    needed = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) / 1e6
    folder = pi.disk / "root/.edgepipe"
    environment = pi.home / ".edgepipe/venv"
    environment.rename(pi.home / "venv")
    try:
        mounted = pi.outside("mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", folder)
        assert mounted.returncode == 0, mounted.stderr
        try:
            environment.symlink_to("../venv")
            done = edgepipe(pi, "deploy", bundle)
            assert not (pi.home / ".edgepipe/bundles").exists()
        finally:
            assert pi.outside("umount", folder).returncode == 0
    finally:
        (pi.home / "venv").rename(environment)
    assert (done.returncode, done.stdout) == (4, "")
    place = re.escape(f"/{pi.home.relative_to(pi.root)}/.edgepipe")
    told = re.search(rf"the disk is full: ([\d.]+) MB more are needed in {place}, ([\d.]+) MB are free", done.stderr)
    assert told, done.stderr
    assert float(told[1]) == pytest.approx(needed, abs=0.1)
    assert 45 < float(told[2]) < 50 * 2**20 / MB


def test_nothing_is_left_when_its_owner_is_killed(arm_trees: Path, tmp_path: Path) -> None:
    """Its processes end with the one that has switched it on, and its mounts were never seen outside."""
    fakes = Path(__file__).parents[2] / "fakes"
    owner = (
        f"import sys; sys.path.insert(0, {str(fakes)!r}); from pathlib import Path; from arm_device import ArmDevice; "
        f"device = ArmDevice(Path({str(tmp_path)!r}), Path({str(arm_trees)!r}), 'pi'); "
        "print(device.sshd, device.port, flush=True); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", owner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    sshd, port = process.stdout.readline().split()
    assert Path(f"/proc/{sshd}").exists()
    assert str(arm_trees) not in Path("/proc/mounts").read_text()
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{sshd}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{sshd}").exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), timeout=5)
