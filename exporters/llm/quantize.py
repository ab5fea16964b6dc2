"""Block-wise integer quantisation of matrices, in the layout that onnxruntime's MatMulNBits reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from edgepipe.errors import UnsupportedModel

# Elements searched at a time by one thread: small enough that a slab and its temporaries stay in the cache.
_SLAB_ELEMENTS = 1 << 17

# Scales tried per block, as multiples of the one that just spans the block. Smaller ones clip the extremes and so put
# the many small weights on a finer grid; larger ones pay where a symmetric range falls one code short on one side.
# With 8 bits the grid is fine already and clipping far never pays.
_SHRINK = {
    4: (1 + 0.03 * np.arange(-13, 6)).astype(np.float32),
    8: (1 + 0.005 * np.arange(-6, 3)).astype(np.float32),
}


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix ``[N, K]`` in blocks of ``block_size`` along K: ``(code - zero_point) * scale + offset``.

    The layout of ``com.microsoft.MatMulNBits``; the last block of a row is padded when ``columns`` (K) is no multiple
    of the block size (all padding dequantises to zero).

    ``packed``: uint8 ``[N, ceil(K / block), block * bits / 8]``; with 4 bits element 2j is in the low nibble of byte j
    and 2j + 1 in the high one. ``scales``: float32 ``[N, ceil(K / block)]``. ``zero_points``: uint8
    ``[N, ceil(ceil(K / block) * bits / 8)]``, packed as the data is, or None for the middle code (8 or 128).
    ``offsets``: float32 ``[N, ceil(K / block)]`` or None for zeros; formats that store a block's minimum as a float
    need them. MatMulNBits does not know them: see `fuse.offsets_as_columns`.
    """

    bits: int
    block_size: int
    packed: np.ndarray
    scales: np.ndarray
    zero_points: np.ndarray | None
    columns: int
    offsets: np.ndarray | None = None

    def dequantize(self) -> np.ndarray:
        """The matrix these codes stand for, float32 ``[N, K]``."""
        rows, blocks = self.scales.shape
        values = unpack(self.packed, self.bits).astype(np.float32)
        if self.zero_points is None:
            values -= 1 << (self.bits - 1)
        else:
            values -= unpack(self.zero_points, self.bits)[:, :blocks, None]
        values *= self.scales[:, :, None]
        if self.offsets is not None:
            values += self.offsets[:, :, None]
        return np.ascontiguousarray(values.reshape(rows, -1)[:, : self.columns])


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Pack uint8 codes along the last axis, low nibble first; an odd count of 4-bit codes is padded with a zero."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Inverse of `pack` (the padding stays): uint8 codes, one a byte, along the last axis."""
    if bits == 8:
        return packed
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    codes[..., 0::2] = packed & 15
    codes[..., 1::2] = packed >> 4
    return codes


def quantize(
    weight: np.ndarray, bits: int, block_size: int, symmetric: bool, positive_scales: bool = False
) -> QuantizedMatrix:
    """Quantise ``weight`` (float32 ``[N, K]``) to the codes that minimise the squared error of every block.

    Rounds to nearest on a grid of scales (and, unless ``symmetric``, zero points) per block, keeps the best, and
    finishes with the least-squares scale of the rounded block. With ``positive_scales``, which engines other than
    onnxruntime want, a symmetric block cannot lay its extreme on whichever side has the code more. Rows are handled a
    slab at a time, so that the extra memory is that of the result and a few MB.

    Raises:
        UnsupportedModel: the weights hold NaN or infinity.
    """
    if bits not in _SHRINK:
        raise ValueError(f"bits is {bits}: expected 4 or 8")
    if not (np.isfinite(weight.min()) and np.isfinite(weight.max())):
        raise UnsupportedModel("a weight is NaN or infinite: only finite weights can be quantised")
    rows, columns = weight.shape
    blocks = -(-columns // block_size)
    packed = np.empty((rows, blocks, block_size * bits // 8), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    zero_points = None if symmetric else np.empty((rows, -(-blocks * bits // 8)), np.uint8)

    def quantize_slab(slab: slice) -> None:
        padded = np.zeros((weight[slab].shape[0], blocks * block_size), np.float32)
        padded[:, :columns] = weight[slab]
        # [block_size, number of blocks]: reductions over a block run along the first axis and vectorise.
        blocked = np.ascontiguousarray(padded.reshape(-1, block_size).T)
        codes, scale, zero = _search(blocked, bits, symmetric, positive_scales)
        packed[slab] = pack(codes.T.reshape(-1, blocks, block_size), bits)
        scales[slab] = scale.reshape(-1, blocks)
        if zero_points is not None:
            zero_points[slab] = pack(zero.reshape(-1, blocks), bits)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for _ in threads.map(quantize_slab, _slabs(rows, blocks * block_size)):
            pass
    return QuantizedMatrix(bits, block_size, packed, scales, zero_points, columns)


def _slabs(rows: int, row_elements: int) -> Iterator[slice]:
    step = max(1, _SLAB_ELEMENTS // row_elements)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _search(
    weight: np.ndarray, bits: int, symmetric: bool, positive_scales: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Best codes of blocks ``[block_size, B]``: codes of that shape (uint8), scales (float32), zeros (uint8)."""
    peak = np.abs(weight).max(axis=0)
    weight = weight / np.where(peak > 0, peak, 1)  # in [-1, 1]: squares neither overflow nor vanish
    largest = np.float32((1 << bits) - 1)
    low, high = np.minimum(weight.min(axis=0), 0), np.maximum(weight.max(axis=0), 0)

    if symmetric:
        middle = np.float32(1 << (bits - 1))
        if positive_scales:
            span = np.maximum(high / (middle - 1), -low / middle)
        else:  # let the extreme of the larger magnitude fall on the longer, negative side
            span = np.where(high > -low, -high, -low) / middle
        candidates = [(span * shrink, np.full_like(span, middle)) for shrink in _SHRINK[bits]]
    else:
        span = (high - low) / largest
        span[span == 0] = 1
        nearest = np.rint(-low / span)
        candidates = [
            (span * shrink, np.clip(nearest + shift, 0, largest))
            for shrink in _SHRINK[bits]
            for shift in (np.float32(-1), np.float32(0), np.float32(1))
        ]

    least = np.full(weight.shape[1], np.inf, np.float32)
    best_scale = np.zeros_like(least)
    best_zero = np.zeros_like(least)
    levels = np.empty_like(weight)
    for scale, zero in candidates:
        _round(weight, scale, zero, largest, out=levels)
        scale = _least_squares(weight, levels)
        levels *= scale
        levels -= weight
        error = np.einsum("kb,kb->b", levels, levels)
        better = error < least
        np.copyto(least, error, where=better)
        np.copyto(best_scale, scale, where=better)
        np.copyto(best_zero, zero, where=better)

    _round(weight, best_scale, best_zero, largest, out=levels)
    best_scale = _least_squares(weight, levels)
    codes = (levels + best_zero).astype(np.uint8)
    return codes, best_scale * peak, best_zero.astype(np.uint8)


def _round(weight: np.ndarray, scale: np.ndarray, zero: np.ndarray, largest: np.float32, out: np.ndarray) -> None:
    """Write the codes nearest to ``weight``, less their zero points, as float32."""
    np.multiply(weight, 1 / np.where(scale == 0, 1, scale), out=out)
    np.rint(out, out=out)
    np.clip(out, -zero, largest - zero, out=out)


def _least_squares(weight: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The scale with which ``levels`` come closest to ``weight``, per block."""
    norm = np.einsum("kb,kb->b", levels, levels)
    return np.einsum("kb,kb->b", weight, levels) / np.where(norm > 0, norm, 1)
