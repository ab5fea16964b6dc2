"""Stacking quantised matrices row upon row, and turning offsets into columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgepipe.exporters.llm.quantize import QuantizedMatrix, pack, quantize, unpack


def fuse(parts: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """Matrices ``[N_i, K]`` of one block size as one ``[sum N_i, K]``.

    4-bit parts are widened when another has 8 bits; parts without zero points get explicit ones when another has some.
    Either way ``fuse(parts).dequantize()`` equals the stacked ``dequantize()`` of the parts bit for bit.
    """
    if len(parts) == 1:
        return parts[0]
    if len({(part.block_size, part.columns) for part in parts}) != 1:
        raise ValueError("only matrices of one width and one block size can be fused")
    if len({part.bits for part in parts}) > 1:
        parts = [_widened(part) for part in parts]
    if any(part.zero_points is not None for part in parts):
        parts = [_with_zero_points(part) for part in parts]
    offsets = None
    if any(part.offsets is not None for part in parts):
        offsets = np.concatenate(
            [np.zeros_like(part.scales) if part.offsets is None else part.offsets for part in parts]
        )
    return replace(
        parts[0],
        packed=np.concatenate([part.packed for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        zero_points=None if parts[0].zero_points is None else np.concatenate([part.zero_points for part in parts]),
        offsets=offsets,
    )


def offsets_as_columns(matrix: QuantizedMatrix) -> QuantizedMatrix:
    """The matrix ``[N, K + K / block_size]`` that multiplies a vector followed by the sums of its blocks.

    A block's offset times the sum of the block's inputs is what the offset adds to a product, so offsets are weights
    of those sums. Whole steps of an offset move into the zero point, which costs nothing; the rest, mostly at most
    half a step, is quantised like any other weight. MatMulNBits then does it all in one product.
    """
    if matrix.offsets is None or matrix.columns % matrix.block_size:
        raise ValueError("expected offsets, and blocks that are full")
    rows, blocks = matrix.scales.shape
    largest = (1 << matrix.bits) - 1
    zeros = np.full((rows, blocks), 1 << (matrix.bits - 1), np.uint8)
    if matrix.zero_points is not None:
        zeros = unpack(matrix.zero_points, matrix.bits)[:, :blocks]
    steps = np.divide(matrix.offsets, matrix.scales, out=np.zeros_like(matrix.scales), where=matrix.scales != 0)
    moved = np.clip(np.rint(zeros - steps), 0, largest)
    rest = matrix.offsets - (zeros - moved) * matrix.scales
    sums = quantize(rest, matrix.bits, matrix.block_size, symmetric=True)
    middle = np.full(sums.scales.shape, 1 << (matrix.bits - 1), np.uint8)
    return QuantizedMatrix(
        matrix.bits,
        matrix.block_size,
        np.concatenate([matrix.packed, sums.packed], axis=1),
        np.concatenate([matrix.scales, sums.scales], axis=1),
        pack(np.concatenate([moved.astype(np.uint8), middle], axis=1), matrix.bits),
        matrix.columns + blocks,
    )


def _widened(part: QuantizedMatrix) -> QuantizedMatrix:
    """The same matrix in 8 bits: codes keep their distance from the zero point."""
    if part.bits == 8:
        return part
    codes = unpack(part.packed, part.bits)
    if part.zero_points is None:
        return replace(part, bits=8, packed=codes + np.uint8(128 - 8))
    blocks = part.scales.shape[1]
    return replace(part, bits=8, packed=codes, zero_points=unpack(part.zero_points, part.bits)[:, :blocks])


def _with_zero_points(part: QuantizedMatrix) -> QuantizedMatrix:
    if part.zero_points is not None:
        return part
    middle = np.full(part.scales.shape, 1 << (part.bits - 1), np.uint8)
    return replace(part, zero_points=pack(middle, part.bits))
