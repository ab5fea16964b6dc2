"""What to export of a vision model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgepipe.errors import RecipeError
from edgepipe.pipeline.byte_size import parse_bytes

FORMATS = ("tflite", "onnx", "executorch", "firmware")
DEFAULT_FORMATS = ("tflite", "onnx")


@dataclass(frozen=True)
class VisionRecipe:
    """How to export one vision model.

    Attributes:
        source: ``digits``, a .tflite, .onnx or .pt2 file, ``module.py:factory``, or a built-in model's name.
        weights: state dict (.pt, .safetensors) of a factory or a built-in model.
        calibration: folder of images or .npy files.
        labels: text file with the name of a class on each line.
        sram, flash: memory of the microcontroller, in bytes or as text (``192K``).
        board: a board that has so much, and that firmware is for; ``sram`` and ``flash`` count before it.
        mode: whether the image comes in window by window, or lies in SRAM.
        formats: what to write: the engines' formats, and ``firmware`` for the board.
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
    mode: Literal["streamed", "resident"] = "streamed"
    formats: tuple[str, ...] = DEFAULT_FORMATS
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("source", "weights", "calibration", "labels"):
            text = getattr(self, name)
            if text is not None and (not text.strip() or not text.isprintable()):
                raise RecipeError(f"{name} is {text!r}: expected a name, or to be left out")
        for name in self.formats:
            if name not in FORMATS:
                raise RecipeError(f"formats has {name!r}: expected {', '.join(FORMATS)}")
        if not self.formats:
            raise RecipeError(f"formats is empty: expected one or more of {', '.join(FORMATS)}")
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


def _bytes(name: str, size: str | int | None) -> int | None:
    if size is None or isinstance(size, int):
        return size
    try:
        return parse_bytes(size)
    except ValueError as error:
        raise RecipeError(f"{name}: {error}") from error
