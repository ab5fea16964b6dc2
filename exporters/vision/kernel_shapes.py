"""Shapes as the C kernels walk them: axes that need no loop of their own are merged with their neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgepipe.exporters.vision.kernels import Copy
from edgepipe.exporters.vision.operators import ResizeNearestNeighbor, Shape, ShapeError


def strides(shape: Shape) -> tuple[int, ...]:
    """Elements from one index of each axis to the next, in row-major order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast_strides(
    output: Shape, first: Shape, second: Shape, *, merge: bool = True
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Sizes of the output's axes, and the strides of two operands along them, 0 where one is repeated.

    Merged, there are four axes, or more if it takes more.
    """
    rows = []
    for axis, size in enumerate(output):
        row = [size]
        for shape in (first, second):
            own = axis - len(output) + len(shape)
            row.append(strides(shape)[own] if own >= 0 and shape[own] > 1 else 0)
        rows.append(row)
    if merge:
        merged: list[list[int]] = []
        for row in rows:
            if row[0] == 1:
                continue
            if merged and all(above == below * row[0] for above, below in zip(merged[-1][1:], row[1:], strict=True)):
                row[0] *= merged.pop()[0]
            merged.append(row)
        rows = [[1, 0, 0]] * (4 - len(merged)) + merged
    sizes, of_first, of_second = zip(*rows, strict=True)
    return sizes, of_first, of_second


def merge_axes(shape: Shape, axes: Sequence[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Size and stride of the groups of neighbouring axes that are not in ``axes``, and of those that are."""
    groups: list[tuple[bool, int, int]] = []
    for axis, (size, stride) in enumerate(zip(shape, strides(shape), strict=True)):
        if size == 1:
            continue
        if groups and groups[-1][0] == (axis in axes):
            size *= groups.pop()[1]
        groups.append((axis in axes, size, stride))
    kept, others = ([(size, stride) for chosen, size, stride in groups if chosen is which] for which in (False, True))
    return kept, others


def copy_box(source: Shape, source_begin: Shape, target: Shape, target_begin: Shape, box: Shape) -> Copy:
    """A copy of ``box`` one-byte elements from one place of a tensor to one of another.

    Raises:
        ShapeError: it takes more than four nested loops.
    """
    rows: list[tuple[int, int, int]] = []
    for size, *steps in zip(box, strides(source), strides(target), strict=True):
        if size == 1:
            continue
        if rows and all(above == below * size for above, below in zip(rows[-1][1:], steps, strict=True)):
            size *= rows.pop()[0]
        rows.append((size, steps[0], steps[1]))
    if not rows or rows[-1][1:] != (1, 1):  # The innermost axes have one element.
        rows.append((1, 1, 1))
    rows = [(1, 0, 0)] * (4 - len(rows)) + rows
    if len(rows) > 4:
        raise ShapeError(f"a box of shape {box} is cut from {source}: expected at most four axes")
    sizes, from_strides, to_strides = zip(*rows, strict=True)

    def offset(begin: Shape, shape: Shape) -> int:
        return sum(start * stride for start, stride in zip(begin, strides(shape), strict=True))

    return Copy(sizes, from_strides[:3], to_strides[:3], offset(source_begin, source), offset(target_begin, target))


def nearest(operator: ResizeNearestNeighbor, size: int, new_size: int) -> np.ndarray:
    """uint16 ``[new_size]``: the row or column that each new one copies, by TFLite's float32 arithmetic."""
    if operator.align_corners and new_size > 1:
        scale = np.float32(size - 1) / np.float32(new_size - 1)
    else:
        scale = np.float32(size) / np.float32(new_size)
    offset = np.float32(0.5 if operator.half_pixel_centers else 0)
    places = (np.arange(new_size, dtype=np.float32) + offset) * scale
    found = np.floor(places.astype(np.float64) + 0.5) if operator.align_corners else np.floor(places)
    return np.clip(found, 0, size - 1).astype(np.uint16)
