"""Images that a model is calibrated with: a folder's, or smooth noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgepipe.errors import EdgepipeError, UnsupportedModel
from edgepipe.runtimes.vision.image import read_array, read_pixels

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
# More images hardly move the ranges of activations, and each costs an inference in float.
MAX_SAMPLES = 256


@dataclass(frozen=True)
class Normalization:
    """What a model expects of pixels: ``real = (pixel / 255 - mean) / std``, one value or one a channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Real values, float32, of pixels from 0 to 255, channels last."""
        return ((pixels / 255 - np.array(self.mean)) / np.array(self.std)).astype(np.float32)

    def fits(self, channels: int) -> bool:
        """Whether an image of so many channels can be normalised."""
        return {len(self.mean), len(self.std)} <= {1, channels}

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest value that a pixel can become."""
        black, white = self(np.zeros(1)), self(np.full(1, 255.0))
        return float(black.min()), float(white.max())


def read_samples(
    folder: Path, shape: tuple[int, int, int], to_real: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, ...]:
    """The images of a folder in the order of their names, at most `MAX_SAMPLES`: float32 ``[1, H, W, C]`` each.

    ``shape``: rows, columns, channels that the model takes. Image files are read as the device reads them
    (`read_pixels`) and go through ``to_real``, which makes real values of pixels from 0 to 255. A ``.npy`` file holds
    one image ``[H, W, C]`` or several ``[N, H, W, C]``: uint8 pixels, or floating-point real values, as on the device.

    Raises:
        EdgepipeError: the folder is not there or has no images.
        ImageError: a file cannot be read.
        UnsupportedModel: an array has another shape or type, or holds NaN.
    """
    if not folder.is_dir():
        raise EdgepipeError(f"no calibration folder {folder}: expected a folder of images or .npy files")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (*IMAGE_SUFFIXES, ".npy"))
    if not paths:
        raise EdgepipeError(f"{folder} has no image (.jpg, .png, ...) and no .npy file to calibrate with")
    samples: list[np.ndarray] = []
    for path in paths:
        is_array = path.suffix.lower() == ".npy"
        images = _read_images(path, shape) if is_array else read_pixels(path, shape)[np.newaxis]
        if images.dtype == np.uint8:
            images = to_real(images)
        samples += [image[np.newaxis] for image in images[: MAX_SAMPLES - len(samples)]]
        if len(samples) == MAX_SAMPLES:
            break
    return tuple(samples)


def smooth_noise(
    shape: tuple[int, int, int], count: int, seed: int, to_real: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, ...]:
    """``count`` images of coloured patches and grain, the same for the same seed: float32 ``[1, H, W, C]`` each."""
    rows, columns, channels = shape
    generator = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        patches = generator.uniform(0, 255, (-(-rows // 8), -(-columns // 8), channels))
        image = np.kron(patches, np.ones((8, 8, 1)))[:rows, :columns] + generator.normal(0, 16, shape)
        samples.append(to_real(np.clip(image, 0, 255).round()).astype(np.float32)[np.newaxis])
    return tuple(samples)


def _read_images(path: Path, shape: Sequence[int]) -> np.ndarray:
    """Images, uint8 or float32 ``[N, H, W, C]``."""
    array = read_array(path)
    if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
        raise UnsupportedModel(f"{path} holds {array.dtype}: expected uint8 pixels or floating-point values")
    images = array[np.newaxis] if array.ndim == 3 else array
    if images.ndim != 4 or images.shape[1:] != tuple(shape) or not len(images):
        expected = f"{tuple(shape)} or (N, {', '.join(map(str, shape))})"
        raise UnsupportedModel(f"{path} has shape {array.shape}: the model takes {expected}")
    if images.dtype == np.uint8:
        return images
    with np.errstate(over="ignore"):
        real = images.astype(np.float32)
    if not np.isfinite(real).all():
        raise UnsupportedModel(f"{path} holds NaN, infinity, or numbers beyond float32: expected what the model takes")
    return real
