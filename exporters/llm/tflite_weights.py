"""Brings a decoder's matrices into a TFLite file, quantised as LiteRT can compute with them.

XNNPACK has products of float32 with int8 (a scale per row) and with int4 (a scale per block), both symmetric and with
positive scales, and quantises the other factor to int8 row by row as it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from edgepipe.exporters.llm.onnx_projection import BITS
from edgepipe.exporters.llm.quantize import pack, quantize, unpack
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.llm.smooth import SmoothedWeights
from edgepipe.exporters.llm.tflite_model import Parameter, TFLiteModel
from edgepipe.exporters.llm.tflite_trace import schema
from edgepipe.exporters.llm.torch_decoder import layer_parameters, layer_parts
from edgepipe.exporters.llm.xnnpack_weights import Precisions, quantize_rows
from edgepipe.exporters.sources.weights import DecoderWeights

_SMALLEST_SCALE = np.float32(np.finfo(np.float16).smallest_normal)
_PART_OF = {"qkv": "attention", "o": "attention", "gate_up": "mlp", "down": "mlp"}


class Table(NamedTuple):
    """Embeddings: ``rows`` ``[V, hidden]``, float32 or int8; scales ``[V, 1]`` of the latter; and what columns are
    multiplied with, ``[1, hidden]``, if with anything.
    """

    rows: Parameter
    row_scales: Parameter | None
    column_scales: Parameter | None


class WeightStore:
    """One decoder's weights on their way into a file; activations that will be quantised are smoothed."""

    def __init__(self, weights: DecoderWeights, recipe: DecoderRecipe, model: TFLiteModel) -> None:
        self.weights = weights if recipe.precision == "fp32" else SmoothedWeights(weights)
        self.recipe = recipe
        self.model = model
        self.precisions = Precisions(self.weights, recipe)
        self._table: Parameter | None = None

    def table(self) -> Table:
        """The embedding table."""
        name = "model.embed_tokens"
        table = self._table = self._matrix("embeddings", name, [f"{name}.weight"])
        factors = self.weights.table_factors if isinstance(self.weights, SmoothedWeights) else None
        column_scales = None if factors is None else self.model.store(f"{name}.column_scales", factors[None])
        if table.scales is None:
            return Table(table, None, column_scales)
        codes = replace(table, name=f"{name}.codes", scales=None)
        return Table(codes, self.model.store(f"{name}.row_scales", table.scales[:, None]), column_scales)

    def layer(self, index: int) -> dict[str, Parameter]:
        """The parameters of a `edgepipe.exporters.llm.torch_decoder.DecoderLayer`."""
        parameters = {}
        for name in layer_parameters(self.weights.spec):
            parts, module = layer_parts(index, name), name.removesuffix(".weight")
            full_name = f"model.layers.{index}.{name}"
            if module in _PART_OF:
                parameters[name] = self._matrix(_PART_OF[module], full_name, parts)
            else:
                parameters[name] = self.model.store(full_name, self._joined(parts))
        return parameters

    def head(self) -> dict[str, Parameter]:
        """The parameters of a `edgepipe.exporters.llm.torch_decoder.OutputHead`."""
        name = "lm_head.weight"
        tensor = "model.embed_tokens.weight" if self.weights.spec.tied_embeddings else name
        precision = self.precisions.of("head", [tensor], self.weights.spec.hidden_size)
        if self.weights.spec.tied_embeddings and precision.bits != BITS["int4"]:
            assert self._table is not None
            head = self._table
        else:
            head = self._matrix("head", name, [tensor])
        return {"norm.weight": self.model.store("model.norm.weight", self._joined(["model.norm.weight"])), name: head}

    def _joined(self, tensors: Sequence[str]) -> np.ndarray:
        return np.concatenate([self.weights.tensor(tensor) for tensor in tensors])

    def _matrix(self, part: str, name: str, tensors: Sequence[str]) -> Parameter:
        weight = self._joined(tensors)
        precision = self.precisions.of(part, tensors, weight.shape[1])
        if precision.bits == BITS["fp32"]:
            return self.model.store(name, weight)
        if precision.bits == BITS["int4"]:
            return self._blocks_of_int4(name, weight, precision.block_size)
        codes, scales = quantize_rows(weight, precision)
        return self.model.store(name, codes, scales=scales[:, 0])

    def _blocks_of_int4(self, name: str, weight: np.ndarray, block_size: int) -> Parameter:
        matrix = quantize(weight, 4, block_size, symmetric=True, positive_scales=True)
        # The file's scales are of half precision. Those that are too small for it grow, and their codes shrink.
        scales = np.maximum(matrix.scales, _SMALLEST_SCALE)
        levels = (unpack(matrix.packed, 4).astype(np.float32) - 8) * (matrix.scales / scales)[..., None]
        codes = np.rint(levels).astype(np.int8).view(np.uint8) & 15
        return self.model.store(
            name,
            pack(codes.reshape(weight.shape), 4),
            shape=weight.shape,
            type=schema.TensorType.INT4,
            block_scales=self.model.store(f"{name}.scales", scales.astype(np.float16)),
            block_size=block_size,
        )
