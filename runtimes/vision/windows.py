"""The windows of the image that tiles are computed from, in the order in which they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from edgepipe.errors import ImageError
from edgepipe.runtimes.vision.plan import Tile, VisionPlan

# A whole image of codes [1, H, W, C], or its rows [W, C] from the top, as a camera gives them.
Image = np.ndarray | Iterable[np.ndarray]


def windows(plan: VisionPlan, image: Image) -> Iterator[tuple[Tile, np.ndarray]]:
    """Every tile of a plan with its window ``[1, h, w, C]``, a contiguous copy.

    Of an array, a mapped file among them, no more than the window is copied. Of rows, no more are held than the
    tallest window has: those above the next windows are dropped before others are asked for.

    Raises:
        ImageError: the image is not of the model's shape or type; too few rows come, or too many.
    """
    if isinstance(image, np.ndarray):
        check_image(plan, image)
        for tile in plan.tiles:
            yield tile, np.ascontiguousarray(tile.window.of(image))
        return
    rows = _Rows(plan, image)
    for index in range(plan.grid[0]):
        tiles = plan.row(index)
        begin, end = tiles[0].window.rows
        band = rows.between(begin, end)
        for tile in tiles:
            yield tile, np.ascontiguousarray(band[:, :, slice(*tile.window.columns)])
    rows.finish()


def whole_image(plan: VisionPlan, image: Image) -> np.ndarray:
    """All of the image, ``[1, H, W, C]``.

    Raises:
        ImageError: as `windows` does.
    """
    if isinstance(image, np.ndarray):
        check_image(plan, image)
        return np.ascontiguousarray(image)
    rows = _Rows(plan, image, plan.input.shape[1])
    band = rows.between(0, plan.input.shape[1])
    rows.finish()
    return band


def check_image(plan: VisionPlan, image: np.ndarray) -> None:
    """See that an array is what the model takes.

    Raises:
        ImageError: with what was found and what was expected.
    """
    if image.shape != plan.input.shape or image.dtype != plan.input.dtype:
        raise ImageError(
            f"the image is {image.dtype} of shape {image.shape}: the model takes {plan.input.dtype} of shape "
            f"{plan.input.shape}"
        )


class _Rows:
    """The rows of an image that are still needed, of an iterator that gives them once."""

    def __init__(self, plan: VisionPlan, rows: Iterable[np.ndarray], most: int | None = None) -> None:
        _, self.height, width, channels = plan.input.shape
        self.row_shape, self.dtype = (width, channels), np.dtype(plan.input.dtype)
        tallest = most or max(tile.window.shape[0] for tile in plan.tiles)
        self.source = iter(rows)
        self.band = np.empty((1, tallest, width, channels), self.dtype)
        self.begin = self.end = 0  # The rows of the image that the band holds, from its top.

    def between(self, begin: int, end: int) -> np.ndarray:
        """A view of these rows, good until the next call; ``begin`` and ``end`` never go back."""
        kept = max(0, self.end - begin)
        if kept:
            first = begin - self.begin
            self.band[:, :kept] = self.band[:, first : first + kept].copy()
        while self.end < begin:
            self._next()
        self.begin = begin
        while self.end < end:
            place = self.end - begin
            self.band[0, place] = self._next()
        return self.band[:, : end - begin]

    def finish(self) -> None:
        """See that the image ends where it should."""
        while self.end < self.height:
            self._next()
        if next(self.source, None) is not None:
            raise ImageError(f"more rows come after the {self.height} that the model takes: end the image there")

    def _next(self) -> np.ndarray:
        row = next(self.source, None)
        if row is None:
            raise ImageError(f"the image ends after {self.end} rows: the model takes {self.height}")
        if row.shape != self.row_shape or row.dtype != self.dtype:
            raise ImageError(
                f"row {self.end} is {row.dtype} of shape {row.shape}: the model takes {self.dtype} of shape "
                f"{self.row_shape}, columns and channels"
            )
        self.end += 1
        return row
