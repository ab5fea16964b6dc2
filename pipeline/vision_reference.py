"""Golden outputs of a vision model, for `edgepipe run --verify` to replay on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import BundleError, ValidationFailed
from edgepipe.lazy import load
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.vision_session import ENGINE_OF, VisionSession
from edgepipe.runtimes.vision.engines import ENGINES
from edgepipe.runtimes.vision.patch_stream import run_streamed
from edgepipe.runtimes.vision.plan import TensorFormat, VisionPlan

REFERENCE = "reference/vision.npz"

# Another processor may round a code to its neighbour, and what follows multiplies that. LiteRT's reference kernels
# compute with integers alone: they must give every byte.
TOLERANCE = {"litert": 0, "onnx": 16, "executorch": 16}


@dataclass(frozen=True)
class VisionOutcome:
    """What replaying showed: ``max_difference`` in codes (real values where the output is floating-point)."""

    engine: str
    images: int
    max_difference: float

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return asdict(self)

    def summary(self) -> str:
        """One line for a person."""
        within = f"within {self.max_difference:g}" if self.max_difference else "the same"
        return f"verified vision with {self.engine}: {self.images} images, patch by patch and whole, outputs {within}"


def write_reference(
    path: Path, folder: Path, plan: VisionPlan, images: Sequence[np.ndarray], formats: Sequence[str]
) -> None:
    """Write ``images`` and, for each engine that has a format, what it answers."""
    arrays = {"images": np.stack(images)}
    for name in formats:
        engine = load(ENGINES[ENGINE_OF[name]])(folder)
        arrays[ENGINE_OF[name]] = np.stack([run_streamed(engine, plan, image) for image in images])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def read_images(session: VisionSession) -> np.ndarray:
    """The golden images, codes ``[N, 1, H, W, C]``.

    Raises:
        BundleError: there are none, or the file is damaged.
    """
    return read_golden(session.bundle, "images", session.plan.input)


def verify_vision(session: VisionSession) -> VisionOutcome:
    """Replay the golden images, patch by patch and whole.

    The session's engine is to have its exact kernels.

    Raises:
        BundleError: the bundle has no golden outputs, or they are damaged.
        ValidationFailed: an output differs by more than `TOLERANCE`.
    """
    images = read_images(session)
    expected = read_golden(session.bundle, session.engine_name, session.plan.output)
    if len(expected) != len(images):
        raise BundleError(f"{_path(session.bundle)} is damaged: {len(images)} images, {len(expected)} outputs")
    tolerance, worst = TOLERANCE[session.engine_name], 0.0
    for number, (image, golden) in enumerate(zip(images, expected, strict=True)):
        for whole in (False, True):
            found = session.run(image, whole=whole)
            difference = float(np.abs(found.astype(np.float64) - golden).max())
            if not difference <= tolerance:
                raise ValidationFailed(
                    f"vision, golden image {number}, {'whole' if whole else 'patch by patch'}: an output differs by "
                    f"{difference:g} from the golden one, expected at most {tolerance}: this device's "
                    f"{session.engine_name} computes otherwise, update it or report it"
                )
            worst = max(worst, difference)
    return VisionOutcome(session.engine_name, len(images), worst)


def _path(bundle: Bundle) -> Path:
    if REFERENCE not in bundle.manifest["files"]:
        raise BundleError(f"{bundle.folder} has no {REFERENCE} to replay: export the bundle again")
    return bundle.path(REFERENCE)


def read_golden(bundle: Bundle, name: str, tensor: TensorFormat) -> np.ndarray:
    """The golden ``images``, or an engine's outputs for them: one or more tensors, one after the other.

    Raises:
        BundleError: there are none, or the file is damaged.
    """
    path, shape = _path(bundle), tensor.shape
    try:
        with np.load(path, allow_pickle=False) as arrays:
            array = arrays[name]
    except Exception as error:  # a damaged archive can raise almost anything
        raise BundleError(f"{path} is damaged: {name} cannot be read ({error}); export the bundle again") from error
    if array.dtype != tensor.dtype or array.shape[1:] != shape or not len(array):
        raise BundleError(
            f"{path} is damaged: {name} is {array.dtype} of shape {array.shape}, expected {tensor.dtype} of shape "
            f"(N, {', '.join(map(str, shape))}); export the bundle again"
        )
    return array
