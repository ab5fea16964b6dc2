"""How matrices are quantised for XNNPACK: int8 with a scale a row, int4 with a scale a block, all symmetric."""

from __future__ import annotations

from collections import defaultdict
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
_FLOATS = (None, "F32", "F16", "BF16")
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
        self._bits: defaultdict[str, set[int]] = defaultdict(set)
        self._kept_at_8: set[str] = set()

    def of(self, name: str, columns: int) -> MatrixPrecision:
        """Of the linear layer ``name`` in Hugging Face's terms, or of ``lm_head`` or ``model.embed_tokens``."""
        if name == "model.embed_tokens":
            part, bits = "embeddings", BITS["fp32" if self.recipe.head == "fp32" else "int8"]
        elif name == "lm_head":
            part, bits = "head", BITS["int8" if self.recipe.head == "auto" else self.recipe.head]
        else:
            part, bits = "attention" if ".self_attn." in name else "mlp", self._of_body(f"{name}.weight")
        block_size = columns
        if bits == BITS["int4"]:
            block_size = self.recipe.block_size
            while columns % block_size:
                block_size //= 2
            if block_size < SMALLEST_BLOCK:
                bits, block_size = BITS["int8"], columns
        self._bits[part].add(bits)
        return MatrixPrecision(bits, block_size)

    def _of_body(self, tensor: str) -> int:
        """Left to us, what a GGUF has rounded already is not rounded to 4 bits again, and all else is."""
        if self.recipe.precision != "auto":
            return BITS[self.recipe.precision]
        kind = self.weights.gguf_type(tensor)
        if kind in _FLOATS:
            return BITS["int4"]
        self._kept_at_8.add(str(kind))
        return BITS["int8"]

    def report(self) -> dict[str, str]:
        """By part of the decoder, for example ``"int4"``, or ``"int4+int8"`` where layers differ."""
        return {part: "+".join(sorted(_NAMES[bits] for bits in found)) for part, found in self._bits.items()}

    def notes(self) -> tuple[str, ...]:
        """Sentences for the export report."""
        if not self._kept_at_8:
            return ()
        kinds = ", ".join(sorted(self._kept_at_8))
        return (f"XNNPACK cannot hold {kinds} blocks: such tensors are int8, as rounding to 4 bits twice loses more",)


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
