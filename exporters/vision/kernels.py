"""What the C kernels of `runtimes/mcu` are given: a class for each struct of ``kernels.h``, field by field.

A class's C name is ``ep_`` and its own in lower case with underscores; a struct that a function of that name takes is a
`Kernel`. Arrays are constants in flash, behind a pointer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Four = tuple[int, int, int, int]
Three = tuple[int, int, int]
Two = tuple[int, int]


class Kernel:
    """Base of what describes one call."""


@dataclass(frozen=True)
class Image:
    rows: int
    columns: int
    channels: int


@dataclass(frozen=True)
class Window:
    kernel_rows: int
    kernel_columns: int
    stride_rows: int
    stride_columns: int
    dilation_rows: int
    dilation_columns: int
    top: int
    left: int
    bottom: int
    right: int


@dataclass(frozen=True, eq=False)
class Requantization:
    """``bias`` and ``multiplier`` (int32), ``shift`` (int8): ``[channels]``."""

    zero_point: int
    lowest: int
    highest: int
    bias: np.ndarray
    multiplier: np.ndarray
    shift: np.ndarray


@dataclass(frozen=True, eq=False)
class Conv(Kernel):
    """``filter``: int8 ``[O, kh, kw, I]``."""

    input: Image
    window: Window
    input_zero_point: int
    output_channels: int
    filter: np.ndarray
    output: Requantization


@dataclass(frozen=True, eq=False)
class Pointwise(Kernel):
    """``filter``: int8 ``[O, I]``."""

    pixels: int
    input_channels: int
    output_channels: int
    filter: np.ndarray
    output: Requantization


@dataclass(frozen=True, eq=False)
class Depthwise(Kernel):
    """``filter``: int8 ``[O, kh, kw]``."""

    input: Image
    window: Window
    input_zero_point: int
    depth_multiplier: int
    filter: np.ndarray
    output: Requantization


@dataclass(frozen=True)
class _Pool(Kernel):
    input: Image
    window: Window
    lowest: int
    highest: int


@dataclass(frozen=True)
class AveragePool(_Pool):
    """Its struct is ``ep_pool``."""


@dataclass(frozen=True)
class MaxPool(_Pool):
    """Its struct is ``ep_pool``."""


@dataclass(frozen=True)
class Term:
    zero_point: int
    multiplier: int
    shift: int


@dataclass(frozen=True)
class Sum:
    first: Term
    second: Term
    multiplier: int
    shift: int
    zero_point: int
    lowest: int
    highest: int


@dataclass(frozen=True)
class Add(Kernel):
    size: Four
    first: Four
    second: Four
    sum: Sum


@dataclass(frozen=True)
class Mul(Kernel):
    size: Four
    first: Four
    second: Four
    first_zero_point: int
    second_zero_point: int
    multiplier: int
    shift: int
    zero_point: int
    lowest: int
    highest: int


@dataclass(frozen=True)
class Residual:
    """What a convolution adds to its output; the sum's first operand is that output."""

    columns: int
    row_stride: int
    column_stride: int
    channel_stride: int
    sum: Sum


@dataclass(frozen=True)
class Mean(Kernel):
    kept_size: Two
    kept_stride: Two
    averaged_size: Two
    averaged_stride: Two
    offset: int
    multiplier: int
    shift: int
    zero_point: int
    lowest: int
    highest: int


@dataclass(frozen=True, eq=False)
class Softmax(Kernel):
    """``exponentials``: int32 ``[256]``, Q31."""

    rows: int
    columns: int
    exponentials: np.ndarray


@dataclass(frozen=True, eq=False)
class Lookup(Kernel):
    """``table``: int8 ``[256]``."""

    size: int
    table: np.ndarray


@dataclass(frozen=True)
class Copy(Kernel):
    """Sizes, strides and offsets in bytes."""

    size: Four
    source_stride: Three
    target_stride: Three
    source_offset: int
    target_offset: int


@dataclass(frozen=True)
class Pad(Kernel):
    size: int
    value: int
    inside: Copy


@dataclass(frozen=True, eq=False)
class ResizeNearest(Kernel):
    """``source_row`` and ``source_column``: uint16, one for each row and column of the output."""

    input_columns: int
    channels: int
    rows: int
    columns: int
    source_row: np.ndarray
    source_column: np.ndarray
