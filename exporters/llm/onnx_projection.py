"""Linear layers and embeddings: how each is quantised, stored, and computed in the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.llm.fuse import fuse, offsets_as_columns
from edgepipe.exporters.llm.onnx_graph import MICROSOFT, GraphBuilder
from edgepipe.exporters.llm.onnx_weights import StoredTensor, WeightFile
from edgepipe.exporters.llm.quantize import QuantizedMatrix, quantize
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.sources.weights import DecoderWeights

# Elements in a block that a GGUF file's is carried over in.
GGUF_BLOCK = 32
# Types with more than 4 bits a weight that are quantised anew: 4 bits would lose what their file paid for.
WIDE_GGUF_TYPES = ("Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_1", "Q8_K")
# The shortest block that the engine's kernels know.
SMALLEST_BLOCK = 16
BITS = {"fp32": 32, "int8": 8, "int4": 4}


@dataclass(frozen=True)
class Projection:
    """A matrix ``[rows, columns]`` in the data file; ``bits`` is 32 for float32 (no blocks).

    With ``block_sums`` its last columns are multiplied with the sums of the input's blocks (`offsets_as_columns`).
    """

    rows: int
    columns: int
    bits: int
    weight: StoredTensor
    block_size: int = 0
    scales: StoredTensor | None = None
    zero_points: StoredTensor | None = None
    block_sums: bool = False
    bias: StoredTensor | None = None

    def linear(self, graph: GraphBuilder, name: str, hidden: str) -> str:
        """``hidden @ weight.T + bias``: ``[batch, S, columns]`` to ``[batch, S, rows]``.

        ``accuracy_level=4`` lets the engine quantise activations to int8 per block: without it MatMulNBits is slow.
        """
        weight = graph.stored(f"{name}.weight", self.weight)
        bias = graph.stored(f"{name}.bias", self.bias) if self.bias else ""
        if self.bits == BITS["fp32"]:
            product = graph.node(
                "FusedMatMul", [hidden, weight], f"{name}.product" if bias else name, domain=MICROSOFT, transB=1
            )
            return graph.node("Add", [product, bias], name) if bias else product
        if self.block_sums:
            hidden = self._with_block_sums(graph, name, hidden)
        return graph.node(
            "MatMulNBits",
            [hidden, weight, *self._scales(graph, name), "", bias],
            name,
            domain=MICROSOFT,
            K=self.columns,
            N=self.rows,
            bits=self.bits,
            block_size=self.block_size,
            accuracy_level=4,
        )

    def _with_block_sums(self, graph: GraphBuilder, name: str, hidden: str) -> str:
        """``hidden`` followed by the sums of its blocks along the last axis."""
        count = self.columns // (self.block_size + 1)
        shape = graph.constant(f"{count}_blocks", [0, 0, count, self.block_size])
        blocks = graph.node("Reshape", [hidden, shape], f"{name}.blocks")
        sums = graph.node("ReduceSum", [blocks, graph.constant("axis_3", [3])], f"{name}.block_sums", keepdims=0)
        return graph.node("Concat", [hidden, sums], f"{name}.hidden_and_sums", axis=-1)

    def embedding(self, graph: GraphBuilder, name: str, ids: str) -> str:
        """Rows ``ids``: int64 ``[batch, S]`` to float32 ``[batch, S, columns]``."""
        if self.bits == BITS["fp32"]:
            return graph.node("Gather", [graph.stored(f"{name}.weight", self.weight), ids], name)
        flat = (self.rows, self.columns * self.bits // 8)
        weight = graph.stored(f"{name}.weight", self.weight, flat)
        scales, zero_points = self._scales(graph, name)
        return graph.node(
            "GatherBlockQuantized",
            [weight, ids, scales, zero_points],
            name,
            domain=MICROSOFT,
            bits=self.bits,
            block_size=self.block_size,
            gather_axis=0,
            quantize_axis=1,
        )

    def _scales(self, graph: GraphBuilder, name: str) -> tuple[str, str]:
        assert self.scales is not None
        scales = graph.stored(f"{name}.scales", self.scales)
        zero_points = graph.stored(f"{name}.zero_points", self.zero_points) if self.zero_points else ""
        return scales, zero_points


class ProjectionWriter:
    """Brings matrices from a source into the data file, one at a time, as the recipe wants them.

    By GGUF type, ``carried`` counts the tensors whose blocks were kept, ``with_offsets`` those of them whose offsets
    were rounded (`offsets_as_columns`), and ``requantized`` those quantised anew.
    """

    def __init__(self, weights: DecoderWeights, recipe: DecoderRecipe, file: WeightFile) -> None:
        self.weights = weights
        self.recipe = recipe
        self.file = file
        self.carried: Counter[str] = Counter()
        self.with_offsets: Counter[str] = Counter()
        self.requantized: Counter[str] = Counter()

    def write(
        self,
        names: Sequence[str],
        precision: str,
        *,
        default: str = "int4",
        biased: bool = False,
        gathered: bool = False,
    ) -> Projection:
        """Store the named modules (``names`` without ``.weight``), fused along their rows.

        ``precision`` is that of the recipe; under "auto", GGUF blocks are kept and all else becomes ``default``.
        ``gathered`` says that the matrix is an embedding table.
        """
        bias = None
        if biased:
            bias = self.file.append(np.concatenate([self.weights.tensor(f"{name}.bias") for name in names]))
        tensors = [f"{name}.weight" for name in names]
        if precision == "fp32":
            weight = self.file.append_rows(map(self.weights.tensor, tensors))
            rows, columns = weight.shape
            return Projection(rows, columns, BITS["fp32"], weight, bias=bias)
        matrix = self._quantized(tensors, precision, default, gathered)
        block_sums = matrix.offsets is not None
        if block_sums:
            matrix = offsets_as_columns(matrix)
        return Projection(
            rows=matrix.packed.shape[0],
            columns=matrix.columns,
            bits=matrix.bits,
            block_size=matrix.block_size,
            weight=self.file.append(matrix.packed),
            scales=self.file.append(matrix.scales),
            zero_points=None if matrix.zero_points is None else self.file.append(matrix.zero_points),
            block_sums=block_sums,
            bias=bias,
        )

    def _quantized(self, tensors: list[str], precision: str, default: str, gathered: bool) -> QuantizedMatrix:
        kept = {name: matrix for name in tensors if (matrix := self._carried(name, precision, gathered)) is not None}
        anew = {self._bits_anew(name, precision, default) for name in tensors if name not in kept}
        bits = max(anew | {matrix.bits for matrix in kept.values()})
        parts = []
        for name in tensors:
            if name in kept:
                kind = self.weights.gguf_type(name) or ""
                self.carried[kind] += 1
                self.with_offsets[kind] += kept[name].offsets is not None
                parts.append(kept[name])
                continue
            weight = self.weights.tensor(name)
            self.requantized[self.weights.gguf_type(name) or ""] += 1
            block_size = GGUF_BLOCK if kept else self._block_size(weight.shape[1], gathered)
            parts.append(quantize(weight, bits, block_size, self.recipe.symmetric))
        return fuse(parts)

    def _carried(self, name: str, precision: str, gathered: bool) -> QuantizedMatrix | None:
        """The source's own blocks, where the recipe leaves the choice open or asks for just that format.

        The engine's table look-up knows no offsets.
        """
        matrix = self.weights.quantized(name)
        if matrix is None or (gathered and matrix.offsets is not None):
            return None
        if precision == "auto":
            return matrix
        same = matrix.bits == BITS[precision] and matrix.block_size == self.recipe.block_size
        return matrix if same and not (self.recipe.symmetric and matrix.offsets is not None) else None

    def _bits_anew(self, name: str, precision: str, default: str) -> int:
        """Bits of a tensor that is not carried over."""
        if precision != "auto":
            return BITS[precision]
        return BITS["int8"] if self.weights.gguf_type(name) in WIDE_GGUF_TYPES else BITS[default]

    def _block_size(self, columns: int, gathered: bool) -> int:
        """The recipe's block size; for a table, the longest one up to it that fills its rows."""
        block_size = self.recipe.block_size
        while gathered and columns % block_size:
            block_size //= 2
        if block_size < SMALLEST_BLOCK:
            raise UnsupportedModel(
                f"hidden_size is {columns}: expected a multiple of {SMALLEST_BLOCK} for quantised embeddings; "
                "set head_precision to fp32"
            )
        return block_size
