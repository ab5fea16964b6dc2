"""`deploy` to a device that misbehaves; what stands behind its link is real."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgepipe.devices import shell
from edgepipe.errors import BundleError, DeviceError, DeviceUnreachable, RecipeError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.deploy import check, deploy
from edgepipe.pipeline.requirements import engines_for, requirements_for

pytestmark = pytest.mark.slow

MB = 1_000_000

Ballasted = Callable[..., Path]
Cli = Callable[..., subprocess.CompletedProcess[str]]
IsWhole = Callable[[Path], bool]


@pytest.fixture(scope="module")
def heavy(ballasted: Ballasted) -> Path:
    return ballasted(0)


def test_a_bundle_arrives_and_the_second_time_nothing_is_copied(
    fakes: ModuleType, home: Path, device_path: str, heavy: Path, is_whole: IsWhole
) -> None:
    device = fakes.FakeDevice(home, device_path)
    first = deploy(heavy, device)
    assert first.copied_bytes == sum(path.stat().st_size for path in heavy.rglob("*") if path.is_file())
    assert "greedy tokens" in first.verified
    there = home / ".edgepipe/bundles/heavy"
    assert str(there) == first.folder
    assert is_whole(there)
    before = {path: path.stat().st_ino for path in there.rglob("*")}
    second = deploy(heavy, device)
    assert (second.copied_bytes, second.copied_files, second.installed) == (0, 0, False)
    assert {path: path.stat().st_ino for path in there.rglob("*")} == before
    assert sorted(path.name for path in there.parent.iterdir()) == ["heavy"]


def test_only_what_changed_is_copied(
    fakes: ModuleType, home: Path, device_path: str, heavy: Path, ballasted: Ballasted, is_whole: IsWhole
) -> None:
    device = fakes.FakeDevice(home, device_path)
    deploy(heavy, device)
    other = ballasted(1, 1000)
    done = deploy(other, device)
    changed = {name: entry["bytes"] for name, entry in Bundle.open(other).manifest["files"].items()}
    alike = Bundle.open(heavy).manifest["files"]
    expected = [size for name, size in changed.items() if alike[name] != Bundle.open(other).manifest["files"][name]]
    extra = [(other / name).stat().st_size for name in ("edgepipe.json", "SHA256SUMS")]
    assert done.copied_bytes == sum(expected) + sum(extra)
    assert is_whole(home / ".edgepipe/bundles/heavy")


def test_a_file_that_rots_on_the_device_is_copied_again(
    fakes: ModuleType, home: Path, device_path: str, heavy: Path, is_whole: IsWhole
) -> None:
    device = fakes.FakeDevice(home, device_path)
    deploy(heavy, device)
    rotten = home / ".edgepipe/bundles/heavy/target/noise.bin"
    content = bytearray(rotten.read_bytes())
    content[5 * MB] ^= 4
    rotten.write_bytes(content)
    assert deploy(heavy, device).copied_bytes == len(content)
    assert is_whole(home / ".edgepipe/bundles/heavy")


@pytest.mark.parametrize("kind", ["drop", "truncate", "damage"])
def test_a_bad_link_is_an_error_and_the_next_deploy_goes_on(
    fakes: ModuleType, home: Path, device_path: str, heavy: Path, kind: str, is_whole: IsWhole
) -> None:
    device = fakes.FakeDevice(home, device_path, fakes.Fault(kind, 9 * MB))
    expected = {"drop": DeviceUnreachable, "truncate": DeviceError, "damage": DeviceError}[kind]
    with pytest.raises(expected) as caught:
        deploy(heavy, device)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)
    bundles = home / ".edgepipe/bundles"
    assert sorted(path.name for path in bundles.iterdir()) == [".heavy.incoming"]
    kept = sum(path.stat().st_size for path in bundles.rglob("*") if path.is_file())
    done = deploy(heavy, device)
    total = sum(path.stat().st_size for path in heavy.rglob("*") if path.is_file())
    if kind == "damage":
        assert "noise.bin arrived damaged" in str(caught.value)
    else:
        assert kept > 5 * MB
    assert done.copied_bytes == total - kept
    assert is_whole(bundles / "heavy")


def test_a_stalled_link_is_given_up(
    fakes: ModuleType, home: Path, device_path: str, heavy: Path, monkeypatch: pytest.MonkeyPatch, is_whole: IsWhole
) -> None:
    device = fakes.FakeDevice(home, device_path, fakes.Fault("stall", 9 * MB))
    with monkeypatch.context() as patch:
        patch.setattr(shell, "PATIENCE_S", 3.0)
        with pytest.raises(DeviceUnreachable, match=r"fake has taken no byte for 3 s"):
            deploy(heavy, device)
    deploy(heavy, device)
    assert is_whole(home / ".edgepipe/bundles/heavy")


def test_a_disk_that_lied_is_reported_with_the_numbers_and_left_clean(
    fakes: ModuleType, home: Path, device_path: str, heavy: Path
) -> None:
    with pytest.raises(
        DeviceError, match=r"the disk is full: [\d.]+ MB more are needed in \S+, [\d.]+ MB are free"
    ) as it:
        deploy(heavy, fakes.FakeDevice(home, device_path, largest_file=10 * MB))
    assert it.value.exit_code == 4
    assert list((home / ".edgepipe/bundles").iterdir()) == []


def test_a_device_that_is_off(fakes: ModuleType, home: Path, device_path: str, heavy: Path) -> None:
    device = fakes.FakeDevice(home, device_path)
    device.is_on = False
    with pytest.raises(DeviceUnreachable, match="switch it on"):
        deploy(heavy, device)


def test_a_device_without_a_python(fakes: ModuleType, home: Path, heavy: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "head", "mkdir", "rm", "wc", "mv"):
        (tools / name).symlink_to(shutil.which(name) or "")
    with pytest.raises(DeviceError, match=r"fake has no Python, expected Python 3.11 or later"):
        deploy(heavy, fakes.FakeDevice(home, str(tools)))
    old = tools / "python3"
    old.write_text('#!/bin/sh\ncase "$*" in -V) echo Python 3.9.2;; *) exit 1;; esac\n')
    old.chmod(0o755)
    with pytest.raises(DeviceError, match=r"fake has Python 3.9.2, expected"):
        deploy(heavy, fakes.FakeDevice(home, str(tools)))


def test_a_device_without_an_index_says_so_and_keeps_no_half_environment(
    fakes: ModuleType, device_path: str, heavy: Path, tmp_path: Path
) -> None:
    nothing = tmp_path / "wheels"
    nothing.mkdir()
    (nothing / "unrelated-1-py3-none-any.whl").write_bytes(b"")
    with pytest.raises(DeviceError, match=r"pip failed: No matching distribution found for \w+") as caught:
        deploy(heavy, fakes.FakeDevice(tmp_path, device_path), wheels=nothing)
    assert f"wheels for its Python {'.'.join(platform.python_version_tuple()[:2])} here" in str(caught.value)
    assert "--wheels" in str(caught.value)
    assert not (tmp_path / ".edgepipe/venv").exists()
    assert not (tmp_path / ".edgepipe/bundles").exists()
    assert not (tmp_path / ".edgepipe/wheels").exists()


def test_an_environment_that_was_not_finished_is_made_anew(
    fakes: ModuleType, device_path: str, wheels: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    half = tmp_path / ".edgepipe/venv/bin"
    half.mkdir(parents=True)
    (half / "python").write_text("not a program")
    done = deploy(tiny_bundle, fakes.FakeDevice(tmp_path, device_path), wheels=wheels)
    assert done.installed
    stamp = json.loads((tmp_path / ".edgepipe/venv/edgepipe.json").read_text())
    assert {text.partition(">")[0] for text in stamp["requirements"]} == {
        "click",
        "jinja2",
        "numpy",
        "onnxruntime",
        "rich",
    }


FACTS = {
    "root": "/home/pi/.edgepipe",
    "architecture": "aarch64",
    "platform": "linux",
    "bits": 64,
    "makes_environments": True,
    "memory_bytes": 4e9,
    "memory_available_bytes": 3e9,
    "free_bytes": 1e9,
    "stamp": None,
    "bundle_sums": None,
    "incoming_bytes": 0,
}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"architecture": "armv7l", "bits": 32}, r"armv7l with a 32-bit Python.*64-bit image"),
        ({"bits": 32}, r"aarch64 with a 32-bit Python"),
        ({"platform": "android"}, r"is Termux.*--device termux:"),
        ({"makes_environments": False}, r"apt install python3-venv"),
        ({"free_bytes": 5e7}, r"23\d\.\d MB more are needed in /home/pi/.edgepipe, 50.0 MB are free"),
        ({"memory_bytes": 1e5, "memory_available_bytes": 1e5}, r"0.0 GB of memory, the weights alone have"),
    ],
)
def test_what_a_device_lacks_is_told_before_anything_is_done(heavy: Path, found: dict[str, Any], expected: str) -> None:
    bundle = Bundle.open(heavy)
    requirements = requirements_for(bundle, ["onnx"])
    assert check("pi", FACTS, bundle, ["onnx"], requirements) == []
    with pytest.raises(DeviceError, match=expected):
        check("pi", {**FACTS, **found}, bundle, ["onnx"], requirements)


@pytest.mark.parametrize(
    ("installed", "expected_mb"),
    [
        (None, 130 + 80 + 30),  # an environment, and both engines
        (["onnxruntime"], 30),
        (["onnxruntime", "ai-edge-litert"], 0),
        ([], 80 + 30),
    ],
)
def test_only_what_is_lacking_takes_room(vision_bundle: Path, installed: list[str] | None, expected_mb: int) -> None:
    bundle = Bundle.open(vision_bundle)
    requirements = requirements_for(bundle, ["litert", "onnx"])
    stamp = None if installed is None else {"requirements": [requirements[name] for name in installed]}
    sums = (bundle.folder / "SHA256SUMS").read_text("utf-8")
    facts = {**FACTS, "stamp": stamp, "bundle_sums": sums, "free_bytes": expected_mb * MB}
    assert check("pi", facts, bundle, ["litert", "onnx"], requirements) == []
    if expected_mb:
        with pytest.raises(DeviceError, match=f": {expected_mb}.0 MB more are needed"):
            check("pi", {**facts, "free_bytes": expected_mb * MB - 1}, bundle, ["litert", "onnx"], requirements)


def test_little_free_memory_is_a_warning(heavy: Path) -> None:
    bundle = Bundle.open(heavy)
    warnings = check(
        "pi", {**FACTS, "memory_available_bytes": 1e5}, bundle, ["onnx"], requirements_for(bundle, ["onnx"])
    )
    assert len(warnings) == 1


def test_the_engine_is_the_one_that_the_bundle_needs(heavy: Path, vision_bundle: Path) -> None:
    text, images = Bundle.open(heavy), Bundle.open(vision_bundle)
    assert engines_for(text) == ["onnx"]
    assert set(requirements_for(text, ["onnx"])) == {"click", "jinja2", "numpy", "onnxruntime", "rich"}
    assert engines_for(images) == ["onnx"]
    assert engines_for(images, "litert") == ["litert"]
    needed = requirements_for(images, ["litert"])
    assert set(needed) == {"click", "jinja2", "numpy", "ai-edge-litert", "pillow", "rich"}
    with pytest.raises(RecipeError, match="engine is executorch: .* has no files for it"):
        engines_for(images, "executorch")
    images.manifest["components"]["vision"]["formats"] = {"firmware": {}}
    with pytest.raises(BundleError, match="flash its firmware"):
        engines_for(images)


def test_boards_are_flashed(heavy: Path, cli: Cli) -> None:
    done = cli("deploy", heavy, "--device", "mcu:/dev/ttyACM0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "a board is flashed" in done.stderr


def test_local_is_a_device_as_any_other(home: Path, device_path: str, heavy: Path, is_whole: IsWhole, cli: Cli) -> None:
    environment = {**os.environ, "HOME": str(home), "PATH": device_path}
    done = cli("run", heavy, "fox", "-n", "4", "--device", "local", environment=environment)
    assert done.returncode == 4
    assert f"edgepipe deploy {heavy} --device local" in done.stderr
    done = cli("deploy", heavy, "--device", "local", "--json", environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["engines"] == ["onnx"]
    assert is_whole(home / ".edgepipe/bundles/heavy")
