"""Images of any size and kind into the codes that a model takes."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgepipe.errors import ImageError, MissingExtra
from edgepipe.runtimes.vision.engine import first_line
from edgepipe.runtimes.vision.plan import TensorFormat

if TYPE_CHECKING:
    from PIL.Image import Image

# A photograph of 12000 x 9000. A file of a few kilobytes may claim any size.
MAX_PIXELS = 108_000_000

_MODES = {1: "L", 3: "RGB"}


class Preprocessing:
    """Pixels into codes, by a table of 256 entries a channel."""

    def __init__(
        self, image: TensorFormat, mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None
    ) -> None:
        """``image``: what the model takes. Without ``mean`` and ``std`` a pixel is its code, ``pixel - 128`` in int8.

        With them ``real = (pixel / 255 - mean) / std``, and ``code = round(real / scale) + zero_point``. A model that
        takes float32 gets the real values, and ``pixel / 255`` without them.
        """
        self.format = image
        channels = image.shape[3]
        pixels = np.repeat(np.arange(256)[:, np.newaxis], channels, axis=1)
        if mean is not None and std is not None:
            self._table = self._codes((pixels / 255 - np.array(mean)) / np.array(std))
        elif image.scale is None:
            self._table = self._codes(pixels / 255)
        else:
            self._table = (pixels + np.iinfo(image.dtype).min).astype(image.dtype)

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Codes of uint8 pixels ``[..., C]``, or of floating-point real values, those that pixels are normalised to.

        Codes stay as they are.

        Raises:
            ImageError: the pixels have another number of channels or another type, or a value is NaN or infinite.
        """
        channels, real = self._table.shape[1], np.issubdtype(pixels.dtype, np.floating)
        if (real or pixels.dtype == np.uint8) and (not pixels.ndim or pixels.shape[-1] != channels):
            raise ImageError(f"the pixels have shape {pixels.shape}: expected {channels} channels on the last axis")
        if pixels.dtype == np.uint8:
            return self._table[pixels, np.arange(channels)]
        if pixels.dtype == self.format.dtype:
            return pixels
        if not real:
            raise ImageError(
                f"the pixels are {pixels.dtype}: expected uint8 from 0 to 255, floating-point real values, or codes of "
                f"{self.format.dtype}"
            )
        if not np.isfinite(pixels).all():
            raise ImageError("the image holds NaN or infinity: expected real values")
        return self._codes(pixels)

    def _codes(self, real: np.ndarray) -> np.ndarray:
        """What the model takes for real values: the values, or ``round(real / scale) + zero_point``."""
        scale, zero_point = self.format.scale, self.format.zero_point
        if scale is None or zero_point is None:
            return real.astype(self.format.dtype)
        limits = np.iinfo(self.format.dtype)
        return np.clip(np.rint(real.astype(np.float64) / scale) + zero_point, limits.min, limits.max).astype(
            self.format.dtype
        )


def read_image(path: Path, preprocessing: Preprocessing) -> np.ndarray:
    """Codes ``[1, H, W, C]`` of an image file, resized (bilinear) to the model's size; or of a ``.npy`` file.

    A ``.npy`` file holds ``[H, W, C]`` or ``[1, H, W, C]`` of the model's size: uint8 pixels; floating-point real
    values; or codes, which stay on the disk until a window of them is needed.

    Raises:
        ImageError: the file is missing, no image, damaged or too large.
        MissingExtra: it is an image file, and Pillow is not installed.
    """
    if path.suffix.lower() == ".npy":
        array, shape = read_array(path), preprocessing.format.shape
        if array.shape not in (shape, shape[1:]):
            raise ImageError(f"{path} has shape {array.shape}: the model takes {shape[1:]}, rows, columns and channels")
        return preprocessing(array.reshape(shape))
    return preprocessing(read_pixels(path, preprocessing.format.shape[1:]))[np.newaxis]


def read_pixels(source: Path | Image, shape: tuple[int, ...]) -> np.ndarray:
    """Pixels, uint8 ``[H, W, C]``, of an image file, or Pillow's image, resized to ``shape``.

    Grey or RGB, as the model has 1 or 3 channels. The camera's orientation is applied, what is transparent becomes
    white, 16 bits are cut to their upper 8.

    Raises:
        ImageError, MissingExtra: as `read_image` does.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtra("pillow", "vision") from error
    path = source if isinstance(source, Path) else "the image"
    rows, columns, channels = shape
    if channels not in _MODES:
        raise ImageError(f"the model takes {channels} channels, {path} is an image file: give a .npy file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(source) if isinstance(source, Path) else nullcontext(source) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ImageError(
                        f"{path} is {image.width}x{image.height}, more than {MAX_PIXELS} pixels: shrink it"
                    )
                pixels = _eight_bits(image).convert(_MODES[channels])
                pixels = pixels.resize((columns, rows), Image.Resampling.BILINEAR)
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"{path} has more than {MAX_PIXELS} pixels: shrink it") from error
    except UnidentifiedImageError as error:
        raise ImageError(f"{path} is no image that Pillow knows: give a PNG or JPEG file") from error
    except OSError as error:
        reason = f": {error.strerror}" if error.strerror else f" cannot be decoded ({first_line(error)})"
        raise ImageError(f"{path}{reason}; give an image file that can be read") from error
    except Exception as error:  # the decoders of many formats
        raise ImageError(f"{path} cannot be decoded ({first_line(error)}): give another file") from error
    return np.asarray(pixels, np.uint8).reshape(rows, columns, channels)


def read_array(path: Path) -> np.ndarray:
    """What a ``.npy`` file holds, mapped; nothing pickled.

    Raises:
        ImageError: the file is missing, damaged, or no such file.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror or first_line(error)}; give a file that can be read") from error
    except Exception as error:  # a damaged header can raise almost anything
        raise ImageError(f"{path} is no array ({first_line(error)}): give a file that numpy.save wrote") from error
    if not isinstance(array, np.ndarray):
        raise ImageError(f"{path} holds several arrays: give a .npy file with one image")
    return array


def _eight_bits(image: Image) -> Image:
    """The image as it is seen: upright, without transparency, 8 bits a channel."""
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):
        upright = Image.fromarray((np.asarray(upright) >> 8).clip(0, 255).astype(np.uint8))
    if upright.mode == "F":
        raise ImageError("its pixels are floating-point numbers: give 8 or 16 bits a channel, or a .npy file")
    if upright.has_transparency_data:
        seen = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
    return upright
