"""A bundle's vision model made ready to run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepipe.errors import BundleError, EngineError, ImageError, MissingExtra, RecipeError
from edgepipe.lazy import load
from edgepipe.pipeline.bundle import Bundle
from edgepipe.runtimes.vision.engine import Engine
from edgepipe.runtimes.vision.engines import ENGINES
from edgepipe.runtimes.vision.image import Preprocessing, read_image, read_pixels
from edgepipe.runtimes.vision.patch_stream import run_streamed, run_whole
from edgepipe.runtimes.vision.plan import read_plan
from edgepipe.runtimes.vision.windows import Image

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

COMPONENT = "vision"

# The engine that runs a format, the first choice first.
ENGINE_OF = {"tflite": "litert", "onnx": "onnx", "executorch": "executorch"}


@dataclass(frozen=True)
class VisionOptions:
    """How images are run.

    Attributes:
        engine: a name from `ENGINES`, or tflite for litert; None takes the first of litert, onnx, executorch that the
            bundle has files for and that is installed.
        threads: of the engine; None takes the machine's cores.
        whole: run the model at once instead of patch by patch.
        exact: in LiteRT, the reference kernels instead of the fast ones; see `LiteRTEngine`.

    Raises:
        RecipeError: there is no such engine, or a value is out of range.
    """

    engine: str | None = None
    threads: int | None = None
    whole: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        if self.engine == "tflite":
            object.__setattr__(self, "engine", ENGINE_OF[self.engine])
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
        if not exported and "firmware" in component["formats"]:
            raise BundleError(
                f"{bundle.folder} holds a board's firmware, and nothing for this computer: give --device mcu:PORT or "
                f"qemu:BOARD, or export again with --formats tflite,firmware"
            )
        if not exported or options.engine not in (None, *exported):
            raise BundleError(
                f"{bundle.folder}: vision was not exported for {options.engine or 'an engine that edgepipe knows'}, "
                f"only for {', '.join(exported) or 'none'}: export again with --formats"
            )
        self.engine_name, self.engine = self._first_installed([options.engine] if options.engine else exported)

    def read(self, image: str | os.PathLike[str] | PillowImage | Image) -> Image:
        """Codes of an image: a file's, Pillow's, of an array ``[H, W, C]`` or ``[1, H, W, C]``, or of rows ``[W, C]``.

        Arrays and rows of uint8 are pixels, as are lists of whole numbers; floating-point numbers are real values,
        those of the model's own type are codes. Of one channel, ``[H, W]`` will do.

        Raises:
            ImageError: it is no image, or the file cannot be read.
            MissingExtra: Pillow is not installed.
        """
        if isinstance(image, str | os.PathLike):
            return read_image(Path(image), self.preprocessing)
        if isinstance(image, np.ndarray):
            if image.ndim == 2 and self.plan.input.shape[3] == 1:
                image = image[:, :, np.newaxis]
            return self.preprocessing(image[np.newaxis] if image.ndim == 3 else image)
        pillow = sys.modules.get("PIL.Image")
        if pillow is not None and isinstance(image, pillow.Image):
            return self.preprocessing(read_pixels(image, self.plan.input.shape[1:]))[np.newaxis]
        if not isinstance(image, Iterable) or isinstance(image, bytes | bytearray | dict | set):
            raise ImageError(
                f"the image is {type(image).__name__}: expected the path of a file, Pillow's image, an array, or rows"
            )
        return (self.preprocessing(self._row(row)) for row in image)

    def _row(self, row: Any) -> np.ndarray:
        """A row ``[W, C]`` as an array; whole numbers in lists are pixels."""
        if isinstance(row, np.ndarray):
            array = row
        else:
            try:
                array = np.asarray(row)
            except ValueError as error:  # lists of several lengths
                raise ImageError(f"a row is no array of columns and channels: {error}") from error
            if np.issubdtype(array.dtype, np.integer) and array.size and 0 <= array.min() <= array.max() <= 255:
                array = array.astype(np.uint8)
        return array[:, np.newaxis] if array.ndim == 1 and self.plan.input.shape[3] == 1 else array

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
    """Names of the components that are language models."""
    return tuple(name for name, component in bundle.manifest["components"].items() if component["kind"] != "vision")
