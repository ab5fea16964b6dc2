"""What an engine for vision models must do, and the checks that all engines share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from edgepipe.errors import BundleError, EngineError

WHOLE, SPLIT, TAIL = "whole", "split", "tail"


class Engine(Protocol):
    """The parts of one vision model, from the folder ``vision`` of a bundle, in an inference engine.

    An engine is built as ``Engine(folder, threads=None)``, with the machine's cores as the default for ``threads``.
    A part is loaded when it first runs, so that streaming patches never pays for the whole model.
    """

    def run(self, part: str, image: np.ndarray) -> np.ndarray:
        """Run one part of the model.

        Args:
            part: ``"whole"``; ``"split"``, the same as one graph of patches; a tile graph's key in plan.json; or
                ``"tail"``, what follows the patches.
            image: the part's input, of its exact shape (NHWC, batch 1) and type (int8 or uint8 codes, or float32).

        Returns:
            The part's output, of the model's type; the caller may keep it.

        Raises:
            BundleError: a file is missing or damaged.
            EngineError: there is no such part, ``image`` does not fit it, or the engine fails.
        """
        ...

    def activation_bytes(self, part: str) -> int:
        """Bytes that the engine has allocated for the activations of a part.

        Raises:
            EngineError: it does not tell.
        """
        ...


def unknown_part(part: str, folder: Path, known: Iterable[str]) -> EngineError:
    """The error for a part that is not in ``folder``."""
    return EngineError(f"{folder} has no part {part!r}: expected one of {', '.join(sorted(known)) or 'none'}")


def unloadable(path: Path, reason: object) -> BundleError:
    """The error for a model file that an engine cannot load; ``reason`` is what it said, of little memory often no more
    than of a damaged file.
    """
    told = f"{path} cannot be loaded ({first_line(reason)})"
    return BundleError(f"{told}: if there is memory left for it, copy or export the bundle again")


def check_input(part: str, image: np.ndarray, shape: Sequence[int], dtype: np.dtype) -> None:
    """See that ``image`` is what ``part`` takes.

    Raises:
        EngineError: with what was found and what was expected.
    """
    if image.shape != tuple(shape) or image.dtype != dtype:
        raise EngineError(
            f"the input of {part} is {image.dtype} of shape {image.shape}: expected {dtype} of shape {tuple(shape)}"
        )


def first_line(reason: object) -> str:
    """The first line of what an engine said, cut to a readable length."""
    return str(reason).strip().partition("\n")[0][:300]
