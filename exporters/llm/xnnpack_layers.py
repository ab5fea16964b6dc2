"""Layers in the operators that XNNPACK has for any number of rows: means are products with a constant row."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepipe.exporters.llm.smooth import SmoothedWeights
from edgepipe.exporters.llm.xnnpack_weights import Precisions, quantize_rows
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.spec import DecoderSpec

# Bounds of codes, by their bits.
_BOUNDS = {4: (-8, 7), 8: (-128, 127)}


class Matrix(nn.Module):
    """A linear layer: float32, or codes with scales.

    Inputs of one with codes are quantised to int8 by `quantized_inputs`, once for all layers that read them.
    """

    weight: Tensor
    codes: Tensor
    scales: Tensor
    zero_points: Tensor
    bias: Tensor | None

    def __init__(
        self, part: str, name: str, rows: int, columns: int, precisions: Precisions, biased: bool = False
    ) -> None:
        """``part`` of the decoder as `Precisions.of` knows it, ``name`` in Hugging Face's terms."""
        super().__init__()
        self.name = name
        self.precision = precisions.of(part, [f"{name}.weight"], columns)
        if self.precision.bits == 32:
            self.register_buffer("weight", torch.empty(rows, columns))
        else:
            blocks = rows, columns // self.precision.block_size
            self.register_buffer("codes", torch.empty(rows, columns, dtype=torch.int8))
            self.register_buffer("scales", torch.empty(blocks))
            self.register_buffer("zero_points", torch.zeros(blocks, dtype=torch.int8))
        self.register_buffer("bias", torch.empty(rows) if biased else None)

    def load(self, weights: DecoderWeights) -> None:
        """Read the layer from a source.

        Raises:
            UnsupportedModel: it is missing, or holds NaN or infinity.
        """
        tied = self.name == "lm_head" and weights.spec.tied_embeddings
        values = weights.tensor(f"{'model.embed_tokens' if tied else self.name}.weight")
        if self.precision.bits == 32:
            self.weight = torch.from_numpy(values)
        else:
            self.codes, self.scales = map(torch.from_numpy, quantize_rows(values, self.precision))
        if self.bias is not None:
            self.bias = torch.from_numpy(weights.tensor(f"{self.name}.bias"))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.precision.bits == 32:
            return functional.linear(inputs, self.weight, self.bias)
        from torchao.quantization.quant_primitives import dequantize_affine

        block = [1, self.precision.block_size]
        bounds = _BOUNDS[self.precision.bits]
        weight = dequantize_affine(self.codes, block, self.scales, self.zero_points, torch.int8, *bounds)
        return functional.linear(inputs, weight, self.bias)


def quantized_inputs(inputs: Tensor, *readers: Matrix) -> Tensor:
    """``inputs``, rounded to int8 a token if a reader has codes: XNNPACK then multiplies integers."""
    if all(reader.precision.bits == 32 for reader in readers):
        return inputs
    from torchao.quantization.quant_primitives import (
        MappingType,
        choose_qparams_affine,
        dequantize_affine,
        quantize_affine,
    )

    row = [1, inputs.shape[-1]]
    scale, zero_point = choose_qparams_affine(
        inputs, MappingType.ASYMMETRIC, row, torch.int8, *_BOUNDS[8], zero_point_dtype=torch.int8
    )
    codes = quantize_affine(inputs, row, scale, zero_point, torch.int8, *_BOUNDS[8])
    return dequantize_affine(codes, row, scale, zero_point, torch.int8, *_BOUNDS[8])


class Norm(nn.Module):
    """Root mean square norm of rows (Zhang and Sennrich 2019)."""

    weight: Tensor
    mean: Tensor

    def __init__(self, name: str, size: int, epsilon: float) -> None:
        """``name`` in Hugging Face's terms."""
        super().__init__()
        self.name = name
        self.register_buffer("weight", torch.empty(size))
        self.register_buffer("mean", torch.full((1, size), 1 / size))
        self.epsilon = epsilon

    def load(self, weights: DecoderWeights) -> None:
        """Read the norm from a source.

        Raises:
            UnsupportedModel: it is missing.
        """
        self.weight = torch.from_numpy(weights.tensor(f"{self.name}.weight"))

    def forward(self, rows: Tensor) -> Tensor:
        return rows * torch.rsqrt(functional.linear(rows * rows, self.mean) + self.epsilon) * self.weight


class Embeddings(nn.Module):
    """The rows of a table: float32, or int8 with a scale a row; and of smoothed weights, one a column."""

    column_scales: Tensor | None

    def __init__(self, spec: DecoderSpec, precisions: Precisions) -> None:
        super().__init__()
        self.table = Matrix("embeddings", "model.embed_tokens", spec.vocab_size, spec.hidden_size, precisions)
        self.register_buffer("column_scales", None)

    def load(self, weights: DecoderWeights) -> None:
        """Read the table from a source."""
        self.table.load(weights)
        if isinstance(weights, SmoothedWeights) and weights.table_factors is not None:
            self.column_scales = torch.from_numpy(weights.table_factors)

    def forward(self, tokens: Tensor) -> Tensor:
        """``[S, hidden_size]`` of int64 ``[S]``."""
        if self.table.precision.bits == 32:
            rows = self.table.weight.index_select(0, tokens)
        else:
            codes = self.table.codes.index_select(0, tokens)
            rows = codes.to(torch.float32) * self.table.scales.index_select(0, tokens)
        return rows if self.column_scales is None else rows * self.column_scales
