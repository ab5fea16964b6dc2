"""Blocks of GGUF files in the layout of MatMulNBits, without a change of value (Q4_1 and Q4_K: but for rounding)."""

from __future__ import annotations

import numpy as np

from edgepipe.exporters.llm.quantize import QuantizedMatrix, pack

_BLOCK = 32  # values per block, of all types here


def repack_q4_0(rows: np.ndarray) -> QuantizedMatrix:
    """``rows``: uint8 ``[N, K / 32 * 18]``, a block being a float16 scale and 16 bytes.

    Byte j holds value j in the low nibble and value j + 16 in the high one; a value is ``(code - 8) * scale``.
    """
    (scales,), blocks = _split(rows, 1, 16)
    return _from_nibbles(blocks, scales, None)


def repack_q4_1(rows: np.ndarray) -> QuantizedMatrix:
    """``rows``: uint8 ``[N, K / 32 * 20]``, a block being a float16 scale, a float16 minimum and 16 bytes as in Q4_0.

    A value is ``code * scale + minimum``.
    """
    (scales, minima), blocks = _split(rows, 2, 16)
    return _from_nibbles(blocks, scales, minima)


def repack_q4_k(rows: np.ndarray) -> QuantizedMatrix:
    """``rows``: uint8 ``[N, K / 256 * 144]``, a superblock being two float16, 12 bytes and 128 bytes.

    The floats scale the 6-bit scales and minima of eight blocks, which the 12 bytes hold; each 32 of the 128 bytes hold
    one block in their low nibbles and the next in their high ones. A value is ``code * scale - minimum``.
    """
    (scale_unit, minimum_unit), superblocks = _split(rows, 2, 12 + 128)
    small_scales, small_minima = _six_bit_pairs(superblocks[:, :, :12])
    scales = (scale_unit[:, :, None] * small_scales).reshape(len(rows), -1)
    minima = (minimum_unit[:, :, None] * small_minima).reshape(len(rows), -1)
    pairs = superblocks[:, :, 12:].reshape(len(rows), -1, _BLOCK)
    codes = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(len(rows), -1, _BLOCK)
    return _from_codes(codes, scales, -minima)


def repack_q8_0(rows: np.ndarray) -> QuantizedMatrix:
    """``rows``: uint8 ``[N, K / 32 * 34]``, a block being a float16 scale and 32 int8; a value is ``code * scale``."""
    (scales,), blocks = _split(rows, 1, 32)
    # Flipping the sign bit of a two's complement byte adds 128, the zero point of MatMulNBits.
    return QuantizedMatrix(8, _BLOCK, blocks ^ 128, scales, None, _BLOCK * blocks.shape[1])


def interleave_to_halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo the row order that GGUF files of Llama models use for query and key projections.

    There the two channels of a rotation stand side by side within a head; Hugging Face has them half a head apart.
    ``rows`` is ``[num_heads * head_dim, ...]``, raw blocks or values alike.
    """
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _from_nibbles(blocks: np.ndarray, scales: np.ndarray, minima: np.ndarray | None) -> QuantizedMatrix:
    """Blocks ``[N, blocks, 16]`` whose low nibbles are their first half and whose high ones are their second."""
    return _from_codes(np.concatenate([blocks & 15, blocks >> 4], axis=-1), scales, minima)


def _from_codes(codes: np.ndarray, scales: np.ndarray, minima: np.ndarray | None) -> QuantizedMatrix:
    """Codes ``[N, blocks, 32]`` of 4 bits. With 8 as the zero point the offsets, and so their errors, are small."""
    offsets = None if minima is None else minima + 8 * scales
    return QuantizedMatrix(4, _BLOCK, pack(codes, 4), scales, None, _BLOCK * codes.shape[1], offsets)


def _six_bit_pairs(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight scales and eight minima from 12 bytes, uint8 ``[..., 12]`` to two ``[..., 8]``.

    The first four of each are the low six bits of bytes 0-3 and 4-7; the last four have their low nibbles in bytes 8-11
    and their top bits in the top bits of the first eight bytes.
    """
    first, second, nibbles = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 63, (nibbles & 15) | (first >> 6 << 4)], axis=-1)
    minima = np.concatenate([second & 63, (nibbles >> 4) | (second >> 6 << 4)], axis=-1)
    return scales, minima


def _split(rows: np.ndarray, floats: int, data_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Leading float16 as float32 ``[floats, N, blocks]`` and data as uint8 ``[N, blocks, data_bytes]``."""
    blocks = rows.reshape(rows.shape[0], -1, 2 * floats + data_bytes)
    head = np.ascontiguousarray(blocks[:, :, : 2 * floats]).view("<f2").astype(np.float32)
    return np.moveaxis(head, -1, 0), blocks[:, :, 2 * floats :]
