"""The image that a model takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgepipe.errors import UnsupportedModel
from edgepipe.runtimes.vision.plan import LARGEST_SIDE, MAX_IMAGE_ELEMENTS

# Rows, columns, channels.
ImageShape = tuple[int, int, int]


def image_shape(shape: Sequence[object], name: str) -> ImageShape:
    """Rows, columns and channels of torch's or ONNX's ``[1, C, H, W]``.

    Raises:
        UnsupportedModel: it is of another kind, not fixed, or too large.
    """
    sizes = [size for size in shape if isinstance(size, int) and size > 0]
    if len(shape) != 4 or len(sizes) != 4 or sizes[0] != 1:
        found = ", ".join(map(str, shape))
        raise UnsupportedModel(f"{name} takes a tensor ({found}): expected one image of fixed size, (1, C, H, W)")
    _, channels, rows, columns = sizes
    check_image_size((rows, columns, channels), name)
    return rows, columns, channels


def check_image_size(shape: ImageShape, name: str) -> None:
    """See that an image is one that a device will take, before anything of its size is allocated.

    Raises:
        UnsupportedModel: it has more than ``MAX_IMAGE_ELEMENTS``, or a side of more than ``LARGEST_SIDE``.
    """
    if math.prod(shape) > MAX_IMAGE_ELEMENTS or max(shape) > LARGEST_SIDE:
        raise UnsupportedModel(
            f"{name} takes an image of {shape[0]} x {shape[1]} pixels with {shape[2]} channels: "
            f"expected at most {MAX_IMAGE_ELEMENTS} elements and sides of {LARGEST_SIDE}"
        )
