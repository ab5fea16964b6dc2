"""XNNPACK's partitioner, told of int8 operators that XNNPACK has and ExecuTorch 1.4's own rules leave in float32."""

from __future__ import annotations

from typing import Any

from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
from executorch.backends.xnnpack.partition.config.generic_node_configs import (
    AddConfig,
    ConstantPadConfig,
    HardswishConfig,
    MulConfig,
    SigmoidConfig,
)
from executorch.backends.xnnpack.partition.config.xnnpack_config import ConfigPrecisionType
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner


class _Int8:
    def supported_precision_types(self) -> list[ConfigPrecisionType]:
        return [ConfigPrecisionType.FP32, ConfigPrecisionType.STATIC_QUANT]


class _Clamped:
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.fused_acts = ["hardtanh.default"]


class _Pad(_Int8, ConstantPadConfig): ...


class _HardSwish(_Int8, HardswishConfig): ...


class _Sigmoid(_Int8, SigmoidConfig): ...


class _Add(_Clamped, AddConfig): ...


class _Mul(_Clamped, MulConfig): ...


def int8_partitioner() -> XnnpackPartitioner:
    """A partitioner for graphs written as dequantise, operate, quantise."""
    ours = {rules.__mro__[2]: rules for rules in (_Pad, _HardSwish, _Sigmoid, _Add, _Mul)}
    return XnnpackPartitioner(configs=[ours.get(rules, rules) for rules in ALL_PARTITIONER_CONFIGS])
