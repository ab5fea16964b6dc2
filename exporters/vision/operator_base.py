"""What every operator of an int8 graph has, and what several share: shapes, activations, the error of wrong shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

Shape = tuple[int, ...]


class Activation(Enum):
    """Clamp fused into an operator, named as in TFLite's schema."""

    NONE = "NONE"
    RELU = "RELU"
    RELU_N1_TO_1 = "RELU_N1_TO_1"
    RELU6 = "RELU6"


class ShapeError(ValueError):
    """An operator cannot take inputs of these shapes."""


@dataclass(frozen=True)
class Operator:
    """Base of all operators."""

    def output_shape(self, *inputs: Shape) -> Shape:
        """Shape of the output for inputs of these shapes.

        Raises:
            ShapeError: the operator cannot take them.
        """
        raise NotImplementedError

    def macs(self, inputs: Sequence[Shape], output: Shape) -> int:
        """Multiply-accumulates that an output of this shape costs."""
        return 0

    @property
    def name(self) -> str:
        """The operator's name in TFLite's schema."""
        raise NotImplementedError


def check_bias(inputs: Sequence[Shape], channels: int) -> None:
    """See that the bias, the third of ``inputs`` if there are three, has ``channels`` elements.

    Raises:
        ShapeError: it has not.
    """
    if len(inputs) > 2 and inputs[2] != (channels,):
        raise ShapeError(f"the bias has shape {inputs[2]}: expected {(channels,)}")
