"""The wheel that devices get of the edgepipe that runs here, however it was installed: by a wheel, editable or not.

Neither an index nor setuptools is needed: the packages are put into a zip as they are imported, with the metadata of
the installation (PEP 427). The same files give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import edgepipe
from edgepipe.errors import EdgepipeError

# Of a clone these folders stand side by side; in site-packages the first holds the others.
_PACKAGES = ("edgepipe", "edgepipe.devices", "edgepipe.exporters", "edgepipe.pipeline", "edgepipe.runtimes")
# Of a clone, and no part of the package.
_LINT = "ruff.toml"
# Megabytes that only an export reads, which no device does.
_DRAFTS = "edgepipe/exporters/drafts/"
_WHEEL = "Wheel-Version: 1.0\nGenerator: edgepipe\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_own_wheel(folder: Path) -> Path:
    """Write ``edgepipe-VERSION-py3-none-any.whl`` into ``folder``.

    Raises:
        EdgepipeError: edgepipe runs without being installed, so that its dependencies are not known.
    """
    distribution = own_distribution()
    files = package_files() | _metadata_files(distribution)
    info = f"edgepipe-{edgepipe.__version__}.dist-info"
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in sorted(files.items()))
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = folder / f"edgepipe-{edgepipe.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name)  # of the year 1980, so that the bytes do not depend on when
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return path


def own_distribution() -> metadata.Distribution:
    """The metadata that pip installed edgepipe with.

    Raises:
        EdgepipeError: there is none.
    """
    try:
        return metadata.distribution("edgepipe")
    except metadata.PackageNotFoundError:
        raise EdgepipeError("edgepipe runs from a folder and is not installed: pip install -e . in its clone") from None


def package_files() -> dict[str, bytes]:
    """Names, as in a wheel, and content of edgepipe's own files, but for the drafts that come with it."""
    files = {}
    for package in _PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent
        for path in root.rglob("*"):
            name = path.relative_to(root)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
            place = f"{package.replace('.', '/')}/{name.as_posix()}"
            if path.is_file() and not hidden and name.name != _LINT and not place.startswith(_DRAFTS):
                files[place] = path.read_bytes()
    return files


def _metadata_files(distribution: metadata.Distribution) -> dict[str, bytes]:
    info = f"edgepipe-{edgepipe.__version__}.dist-info"
    texts = {
        "METADATA": distribution.read_text("METADATA") or distribution.read_text("PKG-INFO"),
        "WHEEL": _WHEEL,
        "entry_points.txt": distribution.read_text("entry_points.txt"),
        "licenses/LICENSE": distribution.read_text("licenses/LICENSE"),
    }
    return {f"{info}/{name}": text.encode() for name, text in texts.items() if text}


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
