"""Which row or column TFLite's RESIZE_NEAREST_NEIGHBOR copies."""

from __future__ import annotations

import numpy as np

from edgepipe.exporters.vision.operators import ResizeNearestNeighbor


def nearest_indices(size: int, wanted: int, operator: ResizeNearestNeighbor) -> list[int]:
    """For each of ``wanted`` rows or columns, the one of ``size`` that TFLite copies (``GetNearestNeighbor``)."""
    corners = operator.align_corners and wanted > 1
    scale = np.float32(size - 1) / np.float32(wanted - 1) if corners else np.float32(size) / np.float32(wanted)
    offset = np.float32(0.5 if operator.half_pixel_centers else 0)
    positions = (np.arange(wanted, dtype=np.float32) + offset) * scale
    nearest = np.floor(positions + np.float32(0.5)) if operator.align_corners else np.floor(positions)
    return np.minimum(nearest.astype(np.int64), size - 1).tolist()
