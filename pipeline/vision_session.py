"""A bundle's vision model made ready to run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import BundleError, EngineError, MissingExtra, RecipeError
from edgepipe.lazy import load
from edgepipe.pipeline.bundle import Bundle
from edgepipe.runtimes.vision.engine import Engine
from edgepipe.runtimes.vision.engines import ENGINES
from edgepipe.runtimes.vision.image import Preprocessing, read_image
from edgepipe.runtimes.vision.patch_stream import run_streamed, run_whole
from edgepipe.runtimes.vision.plan import read_plan
from edgepipe.runtimes.vision.windows import Image

COMPONENT = "vision"

# The engine that runs a format, the first choice first.
ENGINE_OF = {"tflite": "litert", "onnx": "onnx", "executorch": "executorch"}


@dataclass(frozen=True)
class VisionOptions:
    """How images are run.

    Attributes:
        engine: a name from `ENGINES`; None takes the first of litert, onnx, executorch that the bundle has files for
            and that is installed.
        threads: of the engine; None takes the machine's cores.
        whole: run the model at once instead of patch by patch.
        exact: in LiteRT, the reference kernels, whose every byte is that of TFLite Micro, instead of the fast ones.

    Raises:
        RecipeError: there is no such engine, or a value is out of range.
    """

    engine: str | None = None
    threads: int | None = None
    whole: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        if self.engine not in (None, *ENGINES):
            raise RecipeError(f"engine is {self.engine!r}: expected one of {', '.join(ENGINES)}")
        cores = os.cpu_count() or 1
        if self.threads is not None and not 1 <= self.threads <= cores:
            raise RecipeError(f"threads is {self.threads}: expected 1 to {cores}, the cores of this machine")


class VisionSession:
    """The vision model of one bundle: its ``plan``, its ``engine`` and that engine's name."""

    def __init__(self, bundle: Bundle, options: VisionOptions) -> None:
        """Read the plan and find the engine; model files are loaded when they first run.

        Raises:
            BundleError: the bundle has no vision model, or not for this engine, or plan.json is damaged.
            MissingExtra: the engine is not installed.
        """
        component = vision_component(bundle)
        self.bundle = bundle
        self.options = options
        self.plan = read_plan(bundle.path(component["plan"]))
        self.folder = bundle.path(component["plan"]).parent
        self.preprocessing = Preprocessing(self.plan.input, self.plan.mean, self.plan.std)
        exported = [engine for name, engine in ENGINE_OF.items() if name in component["formats"]]
        if not exported or options.engine not in (None, *exported):
            raise BundleError(
                f"{bundle.folder}: vision was not exported for {options.engine or 'an engine that edgepipe knows'}, "
                f"only for {', '.join(exported) or 'none'}: export again with --formats"
            )
        self.engine_name, self.engine = self._first_installed([options.engine] if options.engine else exported)

    def read(self, image: str | Path | Image) -> Image:
        """Codes of an image: a file's, or of an array ``[H, W, C]`` or ``[1, H, W, C]``, or of rows ``[W, C]``.

        Arrays and rows of uint8 are pixels, those of the model's own type are codes.

        Raises:
            ImageError: the file is no image that can be read.
            MissingExtra: Pillow is not installed.
        """
        if isinstance(image, str | Path):
            return read_image(Path(image), self.preprocessing)
        if isinstance(image, np.ndarray):
            return self.preprocessing(image[np.newaxis] if image.ndim == 3 else image)
        rows: Iterable[np.ndarray] = image
        return (self.preprocessing(row) for row in rows)

    def run(self, image: Image, *, whole: bool | None = None) -> np.ndarray:
        """The model's output for an image of codes; ``whole`` counts before the option.

        Raises:
            ImageError: the image is not of the model's size.
            EngineError: the engine fails.
        """
        at_once = self.options.whole if whole is None else whole
        return (run_whole if at_once else run_streamed)(self.engine, self.plan, image)

    def _first_installed(self, names: list[str]) -> tuple[str, Engine]:
        missing: Exception | None = None
        for name in names:
            options: dict[str, Any] = {"threads": self.options.threads}
            if name == "litert":
                options["exact"] = self.options.exact
            try:
                return name, load(ENGINES[name])(self.folder, **options)
            except (MissingExtra, EngineError) as error:
                missing = missing or error
        assert missing is not None
        raise missing


def vision_component(bundle: Bundle) -> dict[str, Any]:
    """What edgepipe.json says of the vision model.

    Raises:
        BundleError: the bundle has none.
    """
    components: dict[str, Any] = bundle.manifest["components"]
    if COMPONENT not in components:
        raise BundleError(
            f"{bundle.folder} holds no vision model, only {', '.join(components)}: export again with --vision"
        )
    component: dict[str, Any] = components[COMPONENT]
    return component


def decoders(bundle: Bundle) -> tuple[str, ...]:
    """Names of the components that are decoders."""
    return tuple(name for name, component in bundle.manifest["components"].items() if component["kind"] == "decoder")
