"""Homes of devices, what is installed on them, and fakes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement

from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.bundle_writer import write_bundle
from edgepipe.pipeline.deploy import deploy

ROOT = Path(__file__).parents[3]
FAKES = ROOT / "tests/fakes"
BASE = ("click", "jinja2", "numpy", "onnxruntime", "pillow", "rich")
BALLAST_BYTES = 24_000_000

Cli = Callable[..., subprocess.CompletedProcess[str]]
Ballasted = Callable[..., Path]


@pytest.fixture(scope="session")
def fake() -> Callable[[str], ModuleType]:
    """``fake(name)``: the module tests/fakes/NAME.py."""
    return _fake


def _fake(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, FAKES / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fakes() -> ModuleType:
    """tests/fakes/fake_device.py."""
    return _fake("fake_device")


@pytest.fixture(scope="session")
def device_path() -> str:
    """PATH of devices: the Python of these tests, and the system's tools."""
    return f"{Path(sys.executable).parent}:/usr/bin:/bin"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `deploy` installs, as wheels for the Python of these tests, made of what is installed for it."""
    folder, pending, done = tmp_path_factory.mktemp("wheels"), list(BASE), set()
    while pending:
        name = pending.pop()
        if name.lower() in done:
            continue
        done.add(name.lower())
        distribution = metadata.distribution(name)
        rewrap(distribution, folder)
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return folder


def rewrap(distribution: metadata.Distribution, folder: Path) -> None:
    """The wheel that an installed distribution came from, but for what pip has added."""
    tag = (distribution.read_text("WHEEL") or "").rpartition("Tag: ")[2].split()[0]
    name = distribution.metadata["Name"].replace("-", "_")
    files = [file for file in distribution.files or () if ".." not in file.parts and "__pycache__" not in file.parts]
    info = next(file.parts[0] for file in files if file.name == "METADATA")
    kept = [file for file in files if file.name not in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")]
    with zipfile.ZipFile(folder / f"{name}-{distribution.version}-{tag}.whl", "w") as wheel:
        for file in kept:
            wheel.write(file.locate(), str(file))
        wheel.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in [*kept, f"{info}/RECORD"]))


@pytest.fixture(scope="session")
def equipped(
    fakes: ModuleType, device_path: str, wheels: Path, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An environment that `deploy` has made; other homes take it over by a link."""
    home = tmp_path_factory.mktemp("equipped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        done = deploy(tiny_bundle, fakes.FakeDevice(home, device_path), wheels=wheels)
    assert done.installed
    assert not (home / ".edgepipe/wheels").exists()
    return home / ".edgepipe/venv"


@pytest.fixture
def home(equipped: Path, tmp_path: Path) -> Path:
    """The home of a device on which everything is installed and no bundle."""
    return new_home(tmp_path / "home", equipped)


def new_home(home: Path, environment: Path) -> Path:
    """See `home`."""
    (home / ".edgepipe").mkdir(parents=True)
    (home / ".edgepipe/venv").symlink_to(environment)
    return home


@pytest.fixture(scope="session")
def ballasted(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Ballasted:
    """``ballasted(seed, size)`` → `tiny_bundle` with one large file of noise; always in a folder called ``heavy``."""

    def make(seed: int, size: int = BALLAST_BYTES) -> Path:
        folder = tmp_path_factory.mktemp("ballast") / "heavy"
        with write_bundle(folder) as draft:
            for path in tiny_bundle.iterdir():
                if path.is_dir():
                    shutil.copytree(path, draft.folder / path.name)
            noise = np.random.default_rng(seed).bytes(size)
            (draft.folder / "target/noise.bin").write_bytes(noise)
            known: dict[str, Any] = Bundle.open(tiny_bundle).manifest
            draft.manifest = {key: known[key] for key in known if key not in ("schema_version", "bundle_id", "files")}
        return folder

    return make


@pytest.fixture
def ssh_server(home: Path, device_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """tests/fakes/ssh_server.py on `home`."""
    module = _fake("ssh_server")
    if module.SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd: apt install openssh-server")
    server = module.SshServer(tmp_path_factory.mktemp("sshd"), home, device_path)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def arm_trees() -> Path:
    """What scripts/arm64_rootfs.sh builds, made once for all sessions."""
    module, trees = _arm_device(), ROOT / "build/arm64"
    try:
        module.build(trees)
    except module.Lacking as reason:
        pytest.skip(f"no ARM computer can be emulated: {reason}")
    return trees


@pytest.fixture(scope="session")
def arm_device(arm_trees: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """``arm_device("pi")`` or ``("termux")`` → tests/fakes/arm_device.py, switched on once for all tests."""
    module, devices = _arm_device(), dict[str, Any]()

    def switched_on(kind: str) -> Any:
        if kind not in devices:
            try:
                devices[kind] = module.ArmDevice(tmp_path_factory.mktemp(kind), arm_trees, kind)
            except module.Lacking as reason:
                pytest.skip(f"no ARM computer can be emulated: {reason}")
        return devices[kind]

    yield switched_on
    for device in devices.values():
        device.stop()


def _arm_device() -> ModuleType:
    if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh: apt install openssh-client")
    _fake("ssh_server")  # which it imports
    return _fake("arm_device")


@pytest.fixture(scope="session")
def is_whole() -> Callable[[Path], bool]:
    """``is_whole(folder)``: whether a bundle is as its SHA256SUMS says; coreutils are the judge."""

    def judge(bundle: Path) -> bool:
        command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
        return subprocess.run(command, cwd=bundle, capture_output=True).returncode == 0

    return judge


@pytest.fixture(scope="session")
def cli() -> Cli:
    """``cli(*arguments, environment=None)``: the command line of the workstation."""

    def run(*arguments: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "edgepipe", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment or dict(os.environ))

    return run
