"""Runs the verbs of a bundle on the device that it was deployed to."""

from __future__ import annotations

import json
import secrets
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import edgepipe
from edgepipe.devices.device import Device, find_device
from edgepipe.devices.installation import FOLDER, STAMP, bundle_folder, python_of
from edgepipe.devices.shell import Finished, attach, ended_early, run, sent_for_now
from edgepipe.errors import DeviceError, EdgepipeError, MeasurementUntrustworthy, ValidationFailed
from edgepipe.pipeline.bundle import CHECKSUMS, Bundle
from edgepipe.pipeline.requirements import engines_for, requirements_for
from edgepipe.pipeline.termination import termination_cleans_up

# The folder, what the environment says of itself, and the sums of the bundle; nothing for what is not there.
_LOOK = """root={home}/{folder}; printf '\\n{mark}%s\\n' "$root"
cat "$root"/{stamp} 2>/dev/null; printf '\\n'
cat "$root"/bundles/{name}/{sums} 2>/dev/null
exit 0"""
# A login shell may have said something before.
_MARK = "edgepipe is in "

_ERRORS = {kind.exit_code: kind for kind in (ValidationFailed, DeviceError, MeasurementUntrustworthy)}


@dataclass(frozen=True)
class Deployed:
    """A bundle on a connected device; ``root`` is edgepipe's folder there."""

    device: Device
    root: str
    name: str

    def run(
        self, verb: str, flags: Sequence[str], *, stdin: IO[Any] | int | None = None, stdout: IO[Any] | None = None
    ) -> int:
        """Run a verb of edgepipe there, its stdin, stdout and stderr joined to those of this process or the given ones.

        Ctrl-C interrupts it there.

        Returns:
            Its exit code.

        Raises:
            DeviceUnreachable: the link broke.
            DeviceError: it was killed.
        """
        words = ["env", "PYTHONUTF8=1", python_of(self.root), "-P", "-m", "edgepipe", verb, *flags]
        words += ["--", bundle_folder(self.root, self.name)]
        pid_file = f"{self.root}/.{verb}-{secrets.token_hex(4)}"
        return attach(self.device, shlex.join(words), pid_file, stdin=stdin, stdout=stdout)

    def run_json(self, verb: str, flags: Sequence[str]) -> dict[str, Any]:
        """Run a verb there with ``--json``, and return its object.

        Raises:
            EdgepipeError: that of the verb, or as `run` does.
        """
        with tempfile.TemporaryFile() as output:
            code = self.run(verb, [*flags, "--json"], stdout=output)
            output.seek(0)
            done = Finished(code, output.read(), "")
        raise_error_of(self.device, done)
        answer = done.answer()
        if answer is None:
            raise ended_early(self.device, done)
        return answer

    @contextmanager
    def file(self, path: Path) -> Iterator[str]:
        """Path there of a copy of a file of this computer, for as long as the block runs."""
        with sent_for_now(self.device, path, f"{self.root}/inbox") as there:
            yield there


@contextmanager
def deployed(bundle: str | Path, name: str, engine: str | None = None) -> Iterator[Deployed]:
    """The copy of a bundle on the device that a user's ``name`` names, to be run in ``engine`` if one is asked for.

    Raises:
        BundleError: the bundle here is damaged.
        RecipeError: it has no files for the engine.
        DeviceError: it was not deployed there, or without the engine, or another of its name was.
        DeviceUnreachable: the device does not answer.
    """
    opened = Bundle.open(bundle)
    folder = opened.folder.resolve().name
    with termination_cleans_up(), find_device(name) as device:
        look = {"folder": FOLDER, "stamp": STAMP, "name": shlex.quote(folder), "sums": CHECKSUMS, "mark": _MARK}
        done = run(device, _LOOK.format(home=device.home, **look))
        if done.code:
            raise ended_early(device, done)
        _, _, found = done.output.decode(errors="replace").partition(_MARK)
        root, stamp, sums = found.split("\n", 2)
        remedy = shlex.join(["edgepipe", "deploy", str(bundle), "--device", name])
        if not stamp or not sums:
            raise DeviceError(f"{folder} is not on {name}, or not whole: {remedy}")
        if f'"version": "{edgepipe.__version__}"' not in stamp:
            raise DeviceError(f"{name} has another edgepipe than this {edgepipe.__version__}: {remedy}")
        if sums.strip() != (opened.folder / CHECKSUMS).read_text("utf-8").strip():
            raise DeviceError(f"{name} has another {folder} than this one: {remedy}")
        if engine not in (None, "auto"):
            needed = requirements_for(opened, engines_for(opened, engine))
            if not set(needed.values()) <= set(json.loads(stamp)["requirements"]):
                raise DeviceError(f"{folder} is on {name} without {engine}: {remedy} --engine {engine}")
        yield Deployed(device, root, folder)


def raise_error_of(device: Device, done: Finished) -> None:
    """Raise what a verb of edgepipe that ended on a device has ended with, if it failed.

    Raises:
        EdgepipeError: with its message; of the kind that its exit code is of.
    """
    if done.code == 0:
        return
    told = (done.answer() or {}).get("error")
    message = told["message"] if told else done.reason()
    if not told and not message.startswith("error: "):
        if done.answer():
            return  # a result that is not as it should be, such as an untrustworthy measurement
        raise ended_early(device, done)
    kind = _ERRORS.get(done.code, EdgepipeError)
    raise kind(f"{device.name}: {message.removeprefix('error: ')}")
