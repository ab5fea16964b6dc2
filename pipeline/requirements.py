"""What a device must have installed to run a bundle, and how much room that takes."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from edgepipe.errors import BundleError, EdgepipeError, RecipeError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.own_wheel import own_distribution
from edgepipe.pipeline.vision_session import COMPONENT, ENGINE_OF

# engine -> its distribution, and edgepipe's extra that names its versions; onnxruntime is of the base install.
_DISTRIBUTIONS = {"onnx": "onnxruntime", "litert": "ai-edge-litert", "executorch": "executorch"}
_EXTRAS = {"litert": "litert", "executorch": "executorch"}
_PREFERRED = ("onnx", "litert", "executorch")

# Bytes of an environment, compiled Python included, for Python 3.11 on x86-64: what is in it, and each engine.
# executorch with a torch for processors alone: PyPI's for Linux brings CUDA, four gigabytes more.
ENVIRONMENT_BYTES = 130_000_000
ENGINE_BYTES = {"onnxruntime": 80_000_000, "ai-edge-litert": 30_000_000, "executorch": 1_360_000_000}


def engines_for(bundle: Bundle, asked: str | None = None) -> list[str]:
    """The fewest engines that run every component: the one asked for where it can, else onnx if exported for it.

    ``asked`` may be a format, too, or ``all``, for all engines that any component has files for.

    Raises:
        BundleError: a component has no files for any engine.
        RecipeError: no component has files for the engine asked for.
    """
    asked = ENGINE_OF.get(asked, asked) if asked else None
    engines, available = set(), set()
    for name, component in bundle.manifest["components"].items():
        exported = {ENGINE_OF[form] for form in component["formats"] if form in ENGINE_OF}
        if not exported:
            raise BundleError(
                f"{bundle.folder}: {name} has no files for an engine of {', '.join(_PREFERRED)}: export it with "
                "--formats, or flash its firmware with edgepipe flash"
            )
        available |= exported
        if asked == "all":
            engines |= exported
        else:
            engines.add(asked if asked in exported else next(engine for engine in _PREFERRED if engine in exported))
    if asked and asked not in {*engines, "all"}:
        raise RecipeError(
            f"engine is {asked}: {bundle.folder} has no files for it, only for {', '.join(sorted(available))}"
        )
    return sorted(engines)


def requirements_for(bundle: Bundle, engines: list[str]) -> dict[str, str]:
    """What pip must install besides edgepipe's wheel: distribution -> requirement, as in ``{"numpy": "numpy>=1.26"}``.

    Raises:
        EdgepipeError: edgepipe is not installed here, or its metadata is of an older version.
    """
    base, extras = _declared()
    needed = {name: text for name, text in base.items() if name not in _DISTRIBUTIONS.values()}
    try:
        for engine in engines:
            name = _DISTRIBUTIONS[engine]
            needed[name] = extras[_EXTRAS[engine]][name] if engine in _EXTRAS else base[name]
        if COMPONENT in bundle.manifest["components"]:
            needed |= extras["vision"]
    except KeyError as error:
        raise EdgepipeError(
            f"edgepipe's metadata here is older than its code, it has no {error}: pip install -e . in its clone"
        ) from None
    return needed


def room_for(needed: dict[str, str], present: Collection[str] | None) -> int:
    """Bytes that it takes to install what is needed, about.

    Args:
        needed: as `requirements_for` gives it.
        present: the requirements that an environment has already; None where there is no environment.
    """
    lacking = [name for name, text in needed.items() if text not in (present or ())]
    return (ENVIRONMENT_BYTES if present is None else 0) + sum(ENGINE_BYTES.get(name, 0) for name in lacking)


def weights_bytes(bundle: Bundle, engines: list[str]) -> int:
    """Bytes of the decoders' weights that are in memory together."""
    total = 0
    for name, component in bundle.manifest["components"].items():
        if component["kind"] != "vision":
            form = next(form for form in component["formats"] if ENGINE_OF.get(form) in engines)
            files: dict[str, Any] = bundle.manifest["files"]
            total += sum(entry["bytes"] for file, entry in files.items() if file.startswith(f"{name}/{form}/"))
    return total


def _declared() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Requirements in edgepipe's metadata: those of the base install, and those of each extra."""
    base: dict[str, str] = {}
    extras: dict[str, dict[str, str]] = {}
    for line in own_distribution().requires or ():
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()
        extra = re.search(r"""extra == ['"]([\w-]+)['"]""", marker)
        (extras.setdefault(extra[1], {}) if extra else base)[name] = requirement
    return base, extras
