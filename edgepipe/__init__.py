"""edgepipe: export models on a workstation, run and measure them on an edge device.

The verbs of the command line are functions here too. They are imported on first use, so that
``import edgepipe`` loads neither an inference engine nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgepipe.pipeline.deploy import deploy as deploy
    from edgepipe.pipeline.export import export as export
    from edgepipe.pipeline.measure import measure as measure
    from edgepipe.pipeline.run import run as run
    from edgepipe.pipeline.run_image import run_image as run_image

__version__ = "0.1.0"

__all__ = ["__version__", "deploy", "export", "measure", "run", "run_image"]

_VERBS = {
    "deploy": "edgepipe.pipeline.deploy:deploy",
    "export": "edgepipe.pipeline.export:export",
    "measure": "edgepipe.pipeline.measure:measure",
    "run": "edgepipe.pipeline.run:run",
    "run_image": "edgepipe.pipeline.run_image:run_image",
}


def __getattr__(name: str) -> Any:
    """Import a verb on first use (PEP 562).

    Raises:
        MissingExtra: `export` is wanted where only what a device needs is installed.
    """
    if name not in _VERBS:
        raise AttributeError(f"module 'edgepipe' has no attribute {name!r}")
    from edgepipe.errors import MissingExtra
    from edgepipe.lazy import load

    try:
        return load(_VERBS[name])
    except ModuleNotFoundError as error:
        if name != "export" or error.name is None or error.name.startswith("edgepipe"):
            raise
        raise MissingExtra(error.name.partition(".")[0], "export") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_VERBS})
