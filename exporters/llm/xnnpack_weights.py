"""How matrices are quantised for XNNPACK, which multiplies in ExecuTorch and in LiteRT.

int8 has a scale a row, int4 one a block; all are symmetric, with positive scales.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgepipe.exporters.llm.onnx_projection import BITS
from edgepipe.exporters.llm.quantize import quantize, unpack
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.sources.weights import DecoderWeights

# XNNPACK's blocks are multiples of it.
SMALLEST_BLOCK = 32
# Smaller scales are refused: those of rows and blocks of zeros.
SMALLEST_SCALE = np.float32(1e-30)
_FLOATS = ("F32", "F16", "BF16")
_NAMES = {bits: name for name, bits in BITS.items()}


@dataclass(frozen=True)
class MatrixPrecision:
    """``bits`` of a code, 32 for float32, and the columns that share a scale."""

    bits: int
    block_size: int


class Precisions:
    """Chooses the precision of each matrix of a decoder, and remembers it for the report."""

    def __init__(self, weights: DecoderWeights, recipe: DecoderRecipe) -> None:
        self.weights = weights
        self.recipe = recipe
        self._asked = {
            "embeddings": "fp32" if recipe.head == "fp32" else "int8",
            "head": "int8" if recipe.head == "auto" else recipe.head,
            "attention": recipe.precision,
            "mlp": recipe.precision,
        }
        self._bits: defaultdict[str, set[int]] = defaultdict(set)
        self._kept_at_8: set[str] = set()
        self._without_blocks: set[int] = set()

    def of(self, part: str, tensors: Sequence[str], columns: int) -> MatrixPrecision:
        """Of the matrix that ``tensors`` are joined to, in the decoder's "embeddings", "attention", "mlp" or "head"."""
        bits, block_size = self._choose_bits(part, tensors), columns
        if bits == BITS["int4"]:
            block_size = self.recipe.block_size
            while columns % block_size:
                block_size //= 2
            if block_size < SMALLEST_BLOCK:
                bits, block_size = BITS["int8"], columns
                self._without_blocks.add(columns)
        self._bits[part].add(bits)
        return MatrixPrecision(bits, block_size)

    def _choose_bits(self, part: str, tensors: Sequence[str]) -> int:
        """Left to us, what a GGUF has rounded already is not rounded to 4 bits again, and all else is."""
        if (asked := self._asked[part]) != "auto":
            return BITS[asked]
        kinds = {kind for tensor in tensors if (kind := self.weights.gguf_type(tensor)) and kind not in _FLOATS}
        self._kept_at_8 |= kinds
        return BITS["int8" if kinds else "int4"]

    def report(self) -> dict[str, str]:
        """By part, for example ``"int4"``, or ``"int4+int8"`` where layers differ."""
        return {part: "+".join(sorted(_NAMES[bits] for bits in found)) for part, found in self._bits.items()}

    def notes(self) -> tuple[str, ...]:
        """Sentences for the export report."""
        notes = []
        if self._kept_at_8:
            kinds = ", ".join(sorted(self._kept_at_8))
            notes.append(
                f"XNNPACK cannot hold {kinds} blocks: such tensors are int8, as rounding to 4 bits twice loses more"
            )
        if self._without_blocks:
            lengths = ", ".join(map(str, sorted(self._without_blocks)))
            notes.append(
                f"XNNPACK's blocks of int4 are multiples of {SMALLEST_BLOCK} weights: matrices with rows of {lengths} "
                "are int8"
            )
        return tuple(notes)


def quantize_rows(values: np.ndarray, precision: MatrixPrecision) -> tuple[np.ndarray, np.ndarray]:
    """Codes int8 ``[N, K]`` and positive scales float32 ``[N, K / block_size]`` of ``values`` float32 ``[N, K]``.

    Raises:
        UnsupportedModel: a value is NaN or infinite.
    """
    matrix = quantize(values, precision.bits, precision.block_size, symmetric=True, positive_scales=True)
    middle = 1 << (precision.bits - 1)
    levels = unpack(matrix.packed, precision.bits).astype(np.int16) - middle
    scales = np.maximum(matrix.scales, SMALLEST_SCALE)
    if precision.bits == BITS["int4"]:
        scales, exact = _bfloat16(scales), scales
        levels = np.clip(np.rint(levels * (exact / scales)[..., None]), -middle, middle - 1)
    else:
        levels = np.maximum(levels, 1 - middle)  # some kernels count on it
    return levels.astype(np.int8).reshape(values.shape), scales


def _bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest float32 whose lower half is zero: XNNPACK holds scales of blocks so."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
