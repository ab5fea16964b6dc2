"""`deploy`, `run` and `measure` over a real OpenSSH server, and what is left when any part of it is killed."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

Ballasted = Callable[..., Path]
Cli = Callable[..., subprocess.CompletedProcess[str]]
IsWhole = Callable[[Path], bool]

MB = 1_000_000
MOMENTS = 20
# How processes are known: the interpreter on the device, the socket of the shared connection.
THERE, LINK = "venv/bin/python", "/edgepipe-"
# Text without end, under a constant budget.
ENDLESS = ("run", "fox", "-n", "1000000", "--policy", "window", "--budget", "64", "--drafter", "none")


@pytest.fixture(scope="module")
def versions(ballasted: Ballasted) -> list[Path]:
    """Two bundles of one name and size."""
    return [ballasted(seed, 40 * MB) for seed in (1, 2)]


@pytest.fixture
def deployed(ssh_server: Any, tiny_bundle: Path, cli: Cli) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``deployed(verb, *arguments)``: `cli` with `tiny_bundle`, which is on the device."""

    def run(verb: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return cli(verb, tiny_bundle, *arguments, "--device", "ssh:pi", environment=ssh_server.environment())

    done = run("deploy")
    assert done.returncode == 0, done.stderr
    return run


def start(server: Any, *arguments: str | Path, device: str = "ssh:pi") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "edgepipe", *map(str, arguments), "--device", device]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=server.environment()
    )


@pytest.fixture
def endless(ssh_server: Any, deployed: Any, tiny_bundle: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`run` on the device, which has begun to answer and will not end by itself."""
    process = start(ssh_server, ENDLESS[0], tiny_bundle, *ENDLESS[1:])
    assert process.stdout is not None
    assert process.stdout.read(1)
    yield process
    process.kill()
    process.communicate()


def test_it_deploys_and_answers_as_the_workstation_does(deployed: Any, tiny_bundle: Path, cli: Cli) -> None:
    flags = ("The quick brown fox", "-n", "24", "--policy", "h2o", "--budget", "32")
    there, here = deployed("run", *flags, "--json"), cli("run", tiny_bundle, *flags, "--json")
    assert (there.returncode, there.stderr) == (0, "")
    ours, theirs = json.loads(here.stdout), json.loads(there.stdout)
    assert len(theirs["tokens"]) > 8
    assert [theirs[key] for key in ("text", "tokens", "kv_bytes")] == [
        ours[key] for key in ("text", "tokens", "kv_bytes")
    ]
    streamed = deployed("run", *flags)
    assert (streamed.returncode, streamed.stdout) == (0, ours["text"] + "\n")
    assert "tokens/s" in streamed.stderr


def test_a_prompt_may_hold_anything(deployed: Any, tiny_bundle: Path, cli: Cli, tmp_path: Path) -> None:
    prompt = "'quotes' \"$HOME\" `id` größe 東京\n  second line"
    (tmp_path / "prompt.txt").write_text(prompt, "utf-8")
    here = json.loads(cli("run", tiny_bundle, prompt, "-n", "8", "--json").stdout)
    for arguments in ([prompt], ["--file", tmp_path / "prompt.txt"]):
        there = deployed("run", *arguments, "-n", "8", "--json")
        assert there.returncode == 0, there.stderr
        assert json.loads(there.stdout)["tokens"] == here["tokens"]


def test_errors_and_exit_codes_are_those_of_the_verb_there(deployed: Any) -> None:
    done = deployed("run", "fox", "--policy", "window")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: policy window needs a budget")
    done = deployed("measure", "--policy", "window", "-o", "report", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["message"].startswith("ssh:pi: policy window needs a budget")


def test_images_go_along(
    ssh_server: Any, vision_bundle: Path, cli: Cli, home: Path, tmp_path: Path, wheels: Path
) -> None:
    np.save(tmp_path / "image.npy", np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8))
    done = cli("deploy", vision_bundle, "--device", "ssh:pi", "--wheels", wheels, environment=ssh_server.environment())
    assert done.returncode == 0, done.stderr
    flags = ("--image", tmp_path / "image.npy", "--engine", "onnx", "--json")
    there = cli("run", vision_bundle, *flags, "--device", "ssh:pi", environment=ssh_server.environment())
    assert (there.returncode, there.stderr) == (0, "")
    here = cli("run", vision_bundle, *flags)
    assert json.loads(there.stdout)["output"] == json.loads(here.stdout)["output"]
    assert list((home / ".edgepipe/inbox").iterdir()) == []
    (tmp_path / "it's no image.png").touch()
    done = cli(
        *("run", vision_bundle, "--image", tmp_path / "it's no image.png", "--device", "ssh:pi"),
        environment=ssh_server.environment(),
    )
    assert done.returncode == 1
    assert "/it's no image.png is no image" in done.stderr, "the user's name of it"
    stamp = json.loads((home / ".edgepipe/venv/edgepipe.json").read_text())  # of a text model's, with one package more
    assert {"onnxruntime", "pillow"} <= {requirement.partition(">")[0] for requirement in stamp["requirements"]}


def test_what_is_to_be_typed_is_as_a_shell_takes_it(
    ssh_server: Any, vision_bundle: Path, cli: Cli, tmp_path: Path, wheels: Path
) -> None:
    bundle = shutil.copytree(vision_bundle, tmp_path / "it's a bundle")
    there = {"environment": ssh_server.environment()}
    done = cli("run", bundle, "--verify", "--device", "ssh:pi", **there)
    assert done.returncode == 4
    typed = shlex.split(done.stderr.strip().rpartition(": edgepipe ")[2])
    assert typed == ["deploy", str(bundle), "--device", "ssh:pi"]
    done = cli(*typed, "--wheels", wheels, **there)
    assert done.returncode == 0, done.stderr
    assert shlex.split(done.stderr.strip().rpartition("edgepipe ")[2]) == ["run", str(bundle), "--device", "ssh:pi"]
    done = cli("run", bundle, "--verify", "--device", "ssh:pi", "--engine", "litert", **there)
    assert done.returncode == 4, "only onnx was installed"
    assert shlex.split(done.stderr.strip().rpartition(": edgepipe ")[2]) == [*typed, "--engine", "litert"]


def test_measure_brings_the_report_back(deployed: Any, tmp_path: Path) -> None:
    small = ("--prompt-lengths", "8,16", "-n", "8", "--repeats", "2", "--max-width", "2")
    done = deployed("measure", *small, "-o", tmp_path / "report")
    assert done.returncode in (0, 5), done.stderr  # 5: the machine is busy
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert [prompt["prompt_tokens"] for prompt in report["prompts"]] == [8, 16]
    assert ".edgepipe/bundles/" in report["bundle"]["folder"]
    assert (tmp_path / "report/report.md").is_file()
    assert f"{tmp_path}/report/report.json" in done.stdout


def test_ctrl_c_ends_the_program_there_and_its_last_words_come(
    endless: subprocess.Popen[bytes], ssh_server: Any
) -> None:
    assert ssh_server.processes(THERE, "edgepipe run", "1000000", str(ssh_server.home))
    endless.send_signal(signal.SIGINT)
    output, said = endless.communicate(timeout=60)
    assert endless.returncode == 130
    assert b"(interrupted)" in said
    assert output.endswith(b"\n")
    assert b"Traceback" not in said
    assert not ssh_server.processes(THERE, "edgepipe run", "1000000", str(ssh_server.home))
    assert not list(ssh_server.home.glob(".edgepipe/.run-*"))


def test_a_program_that_is_killed_there(endless: subprocess.Popen[bytes], ssh_server: Any) -> None:
    assert ssh_server.kill(THERE, "edgepipe run", "1000000", str(ssh_server.home))
    _, said = endless.communicate(timeout=60)
    assert endless.returncode == 4
    assert b"the program there was killed" in said


def test_a_link_that_is_killed(endless: subprocess.Popen[bytes], ssh_server: Any) -> None:
    assert ssh_server.kill("ssh", LINK, "1000000")
    _, said = endless.communicate(timeout=60)
    assert endless.returncode == 4
    assert said.splitlines()[-1].startswith(b"error: ssh:pi: the link is lost")


def test_a_device_that_falls_asleep(endless: subprocess.Popen[bytes], ssh_server: Any) -> None:
    """Its packets are taken, and nothing comes back; ssh asks every five seconds, three times."""
    ssh_server.freeze()
    _, said = endless.communicate(timeout=120)
    assert endless.returncode == 4
    assert said.splitlines()[-1].startswith(b"error: ssh:pi: the link is lost")


def test_no_connection_outlives_the_command(deployed: Any, ssh_server: Any) -> None:
    assert deployed("run", "fox", "-n", "2").returncode == 0
    assert not ssh_server.processes("ssh", LINK)


def test_another_bundle_of_that_name_is_not_taken_for_this(ssh_server: Any, versions: list[Path], cli: Cli) -> None:
    first, second = versions
    done = cli("run", second, "fox", "--device", "ssh:pi", environment=ssh_server.environment())
    assert (done.returncode, done.stdout) == (4, "")
    assert f"heavy is not on ssh:pi, or not whole: edgepipe deploy {second} --device ssh:pi" in done.stderr
    assert cli("deploy", first, "--device", "ssh:pi", environment=ssh_server.environment()).returncode == 0
    done = cli("run", second, "fox", "--device", "ssh:pi", environment=ssh_server.environment())
    assert done.returncode == 4
    assert "ssh:pi has another heavy than this one" in done.stderr


def test_a_server_that_is_not_there(ssh_server: Any, versions: list[Path], cli: Cli) -> None:
    ssh_server.stop()
    for verb in (["deploy"], ["run", "fox"], ["measure"]):
        done = cli(
            verb[0], versions[0], *verb[1:], "--device", "ssh:pi", "--json", environment=ssh_server.environment()
        )
        assert done.returncode == 4
        error = json.loads(done.stdout)["error"]
        assert error["type"] == "DeviceUnreachable"
        assert "Connection refused" in error["message"]


def test_killed_at_random_moments_the_next_deploy_ends_in_a_verified_bundle(
    ssh_server: Any, versions: list[Path], cli: Cli, is_whole: IsWhole
) -> None:
    """Whatever is killed, and whenever: the name holds nothing, or all of one version."""
    bundles, generator = ssh_server.home / ".edgepipe/bundles", random.Random(7)
    there, sums = bundles / "heavy", [(version / "SHA256SUMS").read_text() for version in versions]
    receiver = (THERE, "edgepipe.pipeline.receive", str(ssh_server.home))
    struck = dict.fromkeys(("workstation", "ssh", "receiver"), 0)
    for moment in range(MOMENTS):
        version = moment // 2 % 2  # the same version twice, to go on with what has arrived, then the other
        process = start(ssh_server, "deploy", versions[version])
        victim, share = generator.choice(list(struck)), generator.uniform(0, 1.2)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline and arrived(bundles) < share * 40 * MB:
            time.sleep(0.001)
        if victim == "workstation":
            struck[victim] += process.poll() is None
            process.kill()
        else:
            words = {"ssh": ("ssh", LINK), "receiver": receiver}
            struck[victim] += bool(ssh_server.kill(*words[victim]))
        _, said = process.communicate(timeout=120)
        assert b"Traceback" not in said, said.decode()
        assert process.returncode in (0, 4, -9), said.decode()
        while ssh_server.processes(*receiver):  # whose workstation is gone; what it swaps cannot be judged meanwhile
            time.sleep(0.01)
        if there.exists():
            assert is_whole(there)
            assert (there / "SHA256SUMS").read_text() in sums
    assert sum(struck.values()) >= MOMENTS // 3, struck
    for version in range(2):
        done = cli("deploy", versions[version], "--device", "ssh:pi", environment=ssh_server.environment())
        assert done.returncode == 0, done.stderr
        assert "verified target" in done.stdout
        assert is_whole(there)
        assert (there / "SHA256SUMS").read_text() == sums[version]
    assert [path.name for path in bundles.iterdir()] == ["heavy"]


def test_killed_while_it_installs_the_next_deploy_makes_the_environment_anew(
    ssh_server: Any, tiny_bundle: Path, wheels: Path, cli: Cli, is_whole: IsWhole
) -> None:
    folder = ssh_server.home / ".edgepipe"
    (folder / "venv").unlink()
    process = start(ssh_server, "deploy", tiny_bundle, "--wheels", wheels)
    while process.poll() is None and not list(folder.glob("venv/lib/*/site-packages/numpy")):
        time.sleep(0.01)
    assert ssh_server.kill(THERE, "pip", str(folder))
    _, said = process.communicate(timeout=120)
    assert process.returncode == 4, said.decode()
    assert not (folder / "venv/edgepipe.json").exists()
    done = cli("run", tiny_bundle, "fox", "--device", "ssh:pi", environment=ssh_server.environment())
    assert done.returncode == 4
    done = cli("deploy", tiny_bundle, "--device", "ssh:pi", "--wheels", wheels, environment=ssh_server.environment())
    assert done.returncode == 0, done.stderr
    assert is_whole(folder / "bundles" / tiny_bundle.name)


def arrived(bundles: Path) -> int:
    """Bytes of a bundle on its way."""
    total = 0
    for folder, _, names in os.walk(bundles / ".heavy.incoming"):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


@pytest.fixture
def small_disk(ssh_server: Any, equipped: Path) -> Iterator[Path]:
    """edgepipe's folder on the device, on a disk of 50 MiB."""
    folder = ssh_server.home / ".edgepipe"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    (folder / "venv").symlink_to(equipped)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_too_small_is_reported_before_anything_is_sent(
    small_disk: Path, ssh_server: Any, ballasted: Ballasted, cli: Cli
) -> None:
    bundle = ballasted(3, 60 * MB)
    needed = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) / 1e6
    free = shutil.disk_usage(small_disk).free / 1e6  # edgepipe's wheel is sent before the bundle
    done = cli("deploy", bundle, "--device", "ssh:pi", environment=ssh_server.environment())
    assert (done.returncode, done.stdout) == (4, "")
    told = re.search(
        rf"the disk is full: {needed:.1f} MB more are needed in {small_disk}, ([\d.]+) MB are free", done.stderr
    )
    assert told
    assert free - 2 < float(told[1]) <= free
    assert not (small_disk / "bundles").exists()


def test_a_disk_that_fills_up_meanwhile_is_reported_and_left_clean(
    small_disk: Path, ssh_server: Any, versions: list[Path]
) -> None:
    process = start(ssh_server, "deploy", versions[0])
    while process.poll() is None and arrived(small_disk / "bundles") < 4 * MB:
        time.sleep(0.0005)
    os.kill(process.pid, signal.SIGSTOP)  # what sends pauses, so that the disk is full in time
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(MB))
        except OSError:
            pass
    os.kill(process.pid, signal.SIGCONT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 4, said.decode()
    assert b"the disk is full: " in said
    assert list((small_disk / "bundles").iterdir()) == []
    (small_disk / "filler").unlink()
    assert start(ssh_server, "deploy", versions[0]).wait(120) == 0
