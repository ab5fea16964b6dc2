"""The job behind `edgepipe deploy`: bring a bundle, and all that runs it, to a device."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgepipe.devices.device import Device, find_device, is_board
from edgepipe.devices.installation import bundle_folder
from edgepipe.errors import DeviceError, RecipeError
from edgepipe.pipeline.bundle import CHECKSUMS, Bundle
from edgepipe.pipeline.deploy_target import COPIED, Target
from edgepipe.pipeline.own_wheel import write_own_wheel
from edgepipe.pipeline.progress import Progress
from edgepipe.pipeline.receive import no_room
from edgepipe.pipeline.requirements import engines_for, requirements_for, room_for, weights_bytes
from edgepipe.pipeline.termination import termination_cleans_up

ARCHITECTURES = ("aarch64", "arm64", "x86_64", "amd64")


@dataclass(frozen=True)
class Deployment:
    """A bundle on a device.

    Attributes:
        device: as it was asked for.
        folder: of the bundle there.
        engines: installed there for it.
        installed: whether anything was installed now.
        copied_bytes: sent now.
        copied_files: that these bytes belong to.
        verified: what replaying the golden outputs there showed.
        warnings: what may go wrong later.
    """

    device: str
    folder: str
    engines: list[str]
    installed: bool
    copied_bytes: int
    copied_files: int
    verified: str
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return asdict(self)


def deploy(
    bundle: str | Path,
    device: str | Device,
    *,
    engine: str | None = None,
    wheels: str | Path | None = None,
    progress: Progress | None = None,
) -> Deployment:
    """Copy a bundle to a device, install what runs it, and replay its golden outputs there.

    It may be broken off anywhere and called again: what has arrived is not sent again, the bundle gets its name once it
    is whole, and an environment that was not finished is made anew. The second call copies nothing.

    Args:
        bundle: folder written by `edgepipe.export`.
        device: ``local``, ``ssh:user@host``, ``termux:user@host``, ``adb:serial``; or one that is not connected yet.
        engine: that runs it there, or ``all`` that can; by default onnx where the bundle has files for it.
        wheels: a folder of wheels for the device, where it reaches no package index.
        progress: called with the fraction done, and what is at hand.

    Raises:
        BundleError: the bundle is damaged, or holds only firmware.
        DeviceError: the device lacks something: a Python, memory, room on its disk, a package index.
        DeviceUnreachable: it does not answer, or the link broke.
        RecipeError: ``device``, ``engine`` or ``wheels`` is wrong.
        ValidationFailed: the device computes otherwise.
    """
    if isinstance(device, str):
        if is_board(device):
            raise RecipeError(f"device is {device}: a board is flashed, type edgepipe flash {shlex.quote(str(bundle))}")
        device = find_device(device)
    opened, tell = Bundle.open(bundle), progress or (lambda fraction, step: None)
    name = opened.folder.resolve().name
    engines = engines_for(opened, engine)
    requirements = requirements_for(opened, engines)
    if wheels is not None and not any(Path(wheels).glob("*.whl")):
        raise RecipeError(f"{wheels} holds no wheels: expected a folder of *.whl files for the device")
    with termination_cleans_up(), tempfile.TemporaryDirectory() as folder, device:
        tell(0.0, f"looking at {device.name}")
        wheel = write_own_wheel(Path(folder))
        target = Target.find(device, wheel)
        facts = target.ask("facts", {"bundle": name})
        warnings = check(device.name, facts, opened, engines, requirements)
        installed = target.install(facts, requirements, Path(wheels) if wheels else None, tell)
        copied = target.copy(opened, name, tell)
        tell(COPIED, "replaying the golden outputs there")
        verified = target.verify(name, None if engine == "all" else engine)
    there = bundle_folder(target.root, name)
    return Deployment(
        device.name, there, engines, installed, copied["copied_bytes"], copied["files"], verified, warnings
    )


def check(
    device: str, facts: dict[str, Any], bundle: Bundle, engines: list[str], requirements: dict[str, str]
) -> list[str]:
    """See from a device's `facts` that it can hold and run the bundle; return what may be tight.

    Raises:
        DeviceError: it cannot.
    """
    architecture, bits = facts["architecture"], facts["bits"]
    if architecture.lower() not in ARCHITECTURES or bits != 64:
        raise DeviceError(
            f"{device} is {architecture} with a {bits}-bit Python, the engines need 64 bits of aarch64 or x86_64: "
            "install the 64-bit image of its system"
        )
    if facts["platform"] == "android" and not device.startswith("termux:"):
        raise DeviceError(f"{device} is Termux, which installs with pkg: take --device termux:user@host")
    if not facts["makes_environments"]:
        raise DeviceError(f"{device}: its Python makes no environments: apt install python3-venv there")
    stamp, sums = facts["stamp"], (bundle.folder / CHECKSUMS).read_text("utf-8")
    needed = 0
    if facts["bundle_sums"] != sums:
        total = sum(entry["bytes"] for entry in bundle.manifest["files"].values())
        needed += max(0, total - facts["incoming_bytes"])
    needed += room_for(requirements, stamp and stamp["requirements"])
    if needed > facts["free_bytes"]:
        raise DeviceError(f"{device}: {no_room(needed, facts['free_bytes'], facts['root'])}")
    weights, memory = weights_bytes(bundle, engines), facts["memory_bytes"]
    if memory is not None and weights > memory:
        raise DeviceError(
            f"{device} has {memory / 1e9:.1f} GB of memory, the weights alone have {weights / 1e9:.1f} GB: export with "
            "a smaller --precision, or take a smaller model"
        )
    available = facts["memory_available_bytes"]
    if available is not None and weights > available:
        return [
            f"{available / 1e9:.1f} GB of memory are free there, the weights have {weights / 1e9:.1f}: end programs"
        ]
    return []
