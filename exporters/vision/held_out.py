"""Images with known classes that a model was not trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Images, real values, float32 ``[1, H, W, C]`` each, and their classes ``[N]``.

    ``min_accuracy`` is the share of them, 0 to 1, that the quantised model must get right.
    """

    images: tuple[np.ndarray, ...]
    classes: np.ndarray
    min_accuracy: float
