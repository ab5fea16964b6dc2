"""The job behind `edgepipe run --image`: what a bundle's vision model says of an image."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepipe.errors import RecipeError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.vision_session import VisionOptions, VisionSession
from edgepipe.runtimes.vision.plan import VisionPlan
from edgepipe.runtimes.vision.windows import Image

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage


@dataclass(frozen=True)
class Guess:
    """One class: its index, its label (None where the bundle has none) and the model's score, dequantised."""

    index: int
    label: str | None
    score: float


@dataclass(frozen=True, eq=False)
class ImageAnswer:
    """What the model says of one image.

    Attributes:
        output: codes, or real values, as the model gives them.
        top: the classes of highest score, the highest first; empty if the output is no list of scores.
        engine: what ran it.
        grid: rows and columns of patches; (1, 1) if the model ran at once.
        run_ms: from the image's codes to the output, loading the engine's files included.
    """

    output: np.ndarray
    top: tuple[Guess, ...]
    engine: str
    grid: tuple[int, int]
    run_ms: float

    def to_json(self) -> dict[str, Any]:
        """The answer as one JSON-ready dict."""
        return {
            "top": [asdict(guess) for guess in self.top],
            "output": self.output.tolist(),
            "engine": self.engine,
            "grid": list(self.grid),
            "run_ms": self.run_ms,
        }


def run_image(
    bundle: str | Path,
    image: str | os.PathLike[str] | PillowImage | Image,
    options: VisionOptions | None = None,
    *,
    top_k: int = 5,
) -> ImageAnswer:
    """Run a bundle's vision model on one image.

    Args:
        bundle: folder written by `edgepipe.export`.
        image: a file, or Pillow's image, of any size; or an array ``[H, W, C]`` or ``[1, H, W, C]`` or rows ``[W, C]``,
            of the model's size: uint8 pixels, floating-point real values (what pixels are normalised to), or codes. Of
            an iterator of rows, only those that the next patches need are held.
        options: engine and kernels; patch by patch in the first engine installed by default.
        top_k: most classes in the answer.

    Raises:
        BundleError: the bundle is damaged or has no vision model.
        ImageError: the image cannot be read or does not fit the model.
        MissingExtra: the engine, or Pillow for an image file, is not installed.
    """
    return answer(VisionSession(Bundle.open(bundle), options or VisionOptions()), image, top_k)


def answer(session: VisionSession, image: str | os.PathLike[str] | PillowImage | Image, top_k: int) -> ImageAnswer:
    """`run_image` with an open session."""
    check_top_k(top_k)
    plan = session.plan
    codes = session.read(image)
    begin = perf_counter_ns()
    output = session.run(codes)
    run_ms = (perf_counter_ns() - begin) / 1e6
    return ImageAnswer(
        output=output,
        top=best(plan, output, top_k),
        engine=session.engine_name,
        grid=(1, 1) if session.options.whole else plan.grid,
        run_ms=run_ms,
    )


def check_top_k(top_k: object) -> None:
    """Raise RecipeError if it is no number of classes."""
    if type(top_k) is not int or top_k < 1:
        raise RecipeError(f"top_k is {top_k!r}: expected 1 or more")


def best(plan: VisionPlan, output: np.ndarray, top_k: int) -> tuple[Guess, ...]:
    """The classes of highest score, the highest first; none if the output is no list of scores."""
    if plan.num_classes is None:
        return ()
    scores = plan.output.real(output).ravel()
    order = np.argsort(-scores, kind="stable")[:top_k].tolist()
    return tuple(Guess(index, plan.labels[index] if plan.labels else None, float(scores[index])) for index in order)
