"""The image that a model takes."""

from __future__ import annotations

from collections.abc import Sequence

from edgepipe.errors import UnsupportedModel

# Rows, columns, channels.
ImageShape = tuple[int, int, int]


def image_shape(shape: Sequence[object], name: str) -> ImageShape:
    """Rows, columns and channels of torch's or ONNX's ``[1, C, H, W]``.

    Raises:
        UnsupportedModel: it is of another kind, or not fixed.
    """
    sizes = [size for size in shape if isinstance(size, int) and size > 0]
    if len(shape) != 4 or len(sizes) != 4 or sizes[0] != 1:
        found = ", ".join(map(str, shape))
        raise UnsupportedModel(f"{name} takes a tensor ({found}): expected one image of fixed size, (1, C, H, W)")
    _, channels, rows, columns = sizes
    return rows, columns, channels
