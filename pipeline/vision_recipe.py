"""What to export of a vision model."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Literal, get_args

from edgepipe.errors import RecipeError
from edgepipe.pipeline.byte_size import parse_bytes
from edgepipe.runtimes.llm.engines import ALIASES

FORMATS = ("tflite", "onnx", "executorch", "firmware")
DEFAULT_FORMATS = ("tflite", "onnx")
Mode = Literal["streamed", "resident"]


@dataclass(frozen=True)
class VisionRecipe:
    """How to export one vision model.

    Attributes:
        source: ``digits``, a .tflite, .onnx or .pt2 file, ``module.py:factory``, or a built-in model's name. Files may
            be paths.
        weights: state dict (.pt, .safetensors) of a factory or a built-in model.
        calibration: folder of images or .npy files.
        labels: text file with the name of a class on each line.
        sram, flash: memory of the microcontroller, in bytes or as text (``192K``).
        board: a board that has so much, and that firmware is for; ``sram`` and ``flash`` count before it.
        mode: whether the image comes in window by window, or lies in SRAM.
        formats: what to write: the engines' formats, and ``firmware`` for the board; text is cut at commas.
        mean, std: ``real = (pixel / 255 - mean) / std``, one value or one a channel.
        seed: of random weights and images.

    Raises:
        RecipeError: a value is out of its range.
    """

    source: str
    weights: str | None = None
    calibration: str | None = None
    labels: str | None = None
    sram: str | int | None = None
    flash: str | int | None = None
    board: str | None = None
    mode: Mode = "streamed"
    formats: tuple[str, ...] = DEFAULT_FORMATS
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("source", "weights", "calibration", "labels", "board"):
            value = getattr(self, name)
            text = os.fspath(value) if isinstance(value, os.PathLike) else value
            if (text is not None or name == "source") and not _is_name(text):
                raise RecipeError(f"{name} is {value!r}: expected a name, or to be left out")
            object.__setattr__(self, name, text)
        object.__setattr__(self, "formats", _format_names(self.formats))
        if self.mode not in get_args(Mode):
            raise RecipeError(f"mode is {self.mode!r}: expected one of {', '.join(get_args(Mode))}")
        if type(self.seed) is not int:
            raise RecipeError(f"seed is {self.seed!r}: expected a whole number")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        if "firmware" in self.formats and self.board is None:
            raise RecipeError("formats has 'firmware', but there is no board to build it for: give --board")
        if (self.mean is None) != (self.std is None):
            raise RecipeError("mean and std belong together: give both, or neither")
        if self.std is not None and (0 in self.std or not self.std or not self.mean):
            raise RecipeError("mean and std need one value or one a channel, and std none of 0")
        _ = self.sram_bytes, self.flash_bytes

    @property
    def sram_bytes(self) -> int | None:
        """``sram`` in bytes."""
        return _bytes("sram", self.sram)

    @property
    def flash_bytes(self) -> int | None:
        """``flash`` in bytes."""
        return _bytes("flash", self.flash)


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip()) and text.isprintable()


def _bytes(name: str, size: Any) -> int | None:
    if size is None:
        return None
    try:
        count = parse_bytes(size) if isinstance(size, str) else size
    except ValueError as error:
        raise RecipeError(f"{name}: {error}") from error
    if type(count) is not int or count < 1:
        raise RecipeError(f"{name} is {size!r}: expected bytes, 1 or more, or text as in 192K")
    return count


def _format_names(formats: Any) -> tuple[str, ...]:
    names = formats.split(",") if isinstance(formats, str) else formats
    if not isinstance(names, list | tuple):
        raise RecipeError(f"formats is {formats!r}: expected some of {', '.join(FORMATS)}")
    names = tuple(ALIASES.get(name.strip(), name.strip()) if isinstance(name, str) else name for name in names)
    for name in names:
        if name not in FORMATS:
            raise RecipeError(f"formats has {name!r}: expected {', '.join(FORMATS)}")
        if names.count(name) > 1:
            raise RecipeError(f"formats has {name!r} {names.count(name)} times: expected each once")
    if not names:
        raise RecipeError(f"formats is empty: expected one or more of {', '.join(FORMATS)}")
    return names


def _numbers(name: str, values: Any) -> tuple[float, ...] | None:
    """One number, or one a channel."""
    if values is None:
        return None
    numbers = tuple(values) if isinstance(values, list | tuple) else (values,)
    if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
        raise RecipeError(f"{name} is {values!r}: expected one number, or one a channel")
    return tuple(map(float, numbers))
