"""``termux:[user@]host[:port]``: Termux on an Android phone, whose sshd listens on port 8022.

Over USB: ``adb forward tcp:8022 tcp:8022`` and ``termux:127.0.0.1``.
"""

from __future__ import annotations

from collections.abc import Collection

from edgepipe.devices.shell import run
from edgepipe.devices.ssh import Ssh
from edgepipe.errors import DeviceError

# What PyPI has no Android wheels of -> the package of `pkg`.
PACKAGES = {
    "ai-edge-litert": "python-tflite-runtime",
    "numpy": "python-numpy",
    "onnxruntime": "python-onnxruntime",
    "pillow": "python-pillow",
}
_PYTHON = ("python", "python-ensurepip-wheels")  # the second is what makes environments
_INSTALL_S = 3600


class Termux(Ssh):
    """OpenSSH to Termux. Native packages are Termux's own; nothing of Android's system folders is used."""

    port = 8022
    advice = "unlock the phone, open Termux, type `sshd` and, against sleep, `termux-wake-lock`; then try `{command}`"

    def provide(self, packages: Collection[str]) -> frozenset[str]:
        """``pkg install``.

        Raises:
            DeviceError: it failed, or a package is in neither PyPI's Android wheels nor Termux.
        """
        if "executorch" in packages:
            raise DeviceError(f"{self.name}: Termux has no executorch; give --engine onnx, or export the bundle for it")
        ours = sorted(PACKAGES.keys() & set(packages))
        names = [*_PYTHON, *(PACKAGES[name] for name in ours)]
        done = run(self, f"pkg install -y {' '.join(names)} </dev/null", patience_s=_INSTALL_S)
        if done.code:
            raise DeviceError(
                f"{self.name}: `pkg install {' '.join(names)}` failed ({done.reason()}): type it in Termux, perhaps "
                "after `pkg update`"
            )
        return frozenset({*ours, "python"})
