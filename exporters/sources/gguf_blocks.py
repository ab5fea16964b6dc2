"""Blocks of GGUF's Q4_0 and Q8_0 in the layout of MatMulNBits, without a change of value."""

from __future__ import annotations

import numpy as np

from edgepipe.exporters.llm.quantize import QuantizedMatrix, pack

_BLOCK = 32  # values per block, of both types


def repack_q4_0(rows: np.ndarray) -> QuantizedMatrix:
    """``rows``: uint8 ``[N, K / 32 * 18]``, a block being a float16 scale and 16 bytes.

    Byte j holds value j in the low nibble and value j + 16 in the high one; a value is ``(code - 8) * scale``.
    """
    scales, blocks = _split(rows, 16)
    codes = np.concatenate([blocks & 15, blocks >> 4], axis=-1)
    return QuantizedMatrix(4, _BLOCK, pack(codes, 4), scales, None, _BLOCK * blocks.shape[1])


def repack_q8_0(rows: np.ndarray) -> QuantizedMatrix:
    """``rows``: uint8 ``[N, K / 32 * 34]``, a block being a float16 scale and 32 int8; a value is ``code * scale``."""
    scales, blocks = _split(rows, 32)
    # Flipping the sign bit of a two's complement byte adds 128, the zero point of MatMulNBits.
    return QuantizedMatrix(8, _BLOCK, blocks ^ 128, scales, None, _BLOCK * blocks.shape[1])


def interleave_to_halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo the row order that GGUF files of Llama models use for query and key projections.

    There the two channels of a rotation stand side by side within a head; Hugging Face has them half a head apart.
    ``rows`` is ``[num_heads * head_dim, ...]``, raw blocks or values alike.
    """
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _split(rows: np.ndarray, data_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales as float32 ``[N, blocks]`` and data as uint8 ``[N, blocks, data_bytes]``."""
    blocks = rows.reshape(rows.shape[0], -1, 2 + data_bytes)
    scales = np.ascontiguousarray(blocks[:, :, :2]).view("<f2")[:, :, 0].astype(np.float32)
    return scales, blocks[:, :, 2:]
