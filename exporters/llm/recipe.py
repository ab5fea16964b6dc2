"""What to export and how far the result may stray from its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import Literal

from edgepipe.errors import RecipeError

Precision = Literal["auto", "fp32", "int8", "int4"]
PRECISIONS: tuple[str, ...] = ("auto", "fp32", "int8", "int4")
BLOCK_SIZES: tuple[int, ...] = (32, 64, 128)
_EXPECTED = {
    "source": "a hub id, a folder, a .gguf file or smollm2-135m",
    "revision": "a branch, tag or commit, or to be left out",
}


@dataclass(frozen=True)
class Thresholds:
    """Limits on an exported decoder against its source in float32; None switches a limit off.

    ``max_abs_logit``: largest difference of any logit. ``min_top1_agreement``: fraction of positions with the same
    most likely token. ``max_mean_kl``: mean KL(source || exported) per position, in nats. ``max_perplexity_ratio``:
    perplexity of the exported decoder over that of the source.

    Raises:
        RecipeError: a limit is out of its range.
    """

    max_abs_logit: float | None = None
    min_top1_agreement: float | None = None
    max_mean_kl: float | None = None
    max_perplexity_ratio: float | None = None

    def __post_init__(self) -> None:
        for name, limit in asdict(self).items():
            highest = 1.0 if name == "min_top1_agreement" else inf
            if limit is not None and not 0 <= limit <= highest:
                expected = "a number from 0 to 1" if highest == 1 else "0 or more"
                raise RecipeError(f"{name} is {limit}: expected {expected}")


# Limits that tell a broken export from a coarse one. Measured on 135 M parameters already rounded to Q4_1, the hardest
# case (larger models lose far less), top-1 agreement / mean KL / perplexity ratio: 4 bits from 0.70 / 0.46 / 1.17
# (blocks of 32, 8-bit head) to 0.54 / 1.11 / 1.63 (symmetric blocks of 128, 4-bit head); 8 bits from
# 0.96 / 0.006 / 1.003 to 0.93 / 0.018 / 1.013.
_INT4 = Thresholds(min_top1_agreement=0.5, max_mean_kl=1.25, max_perplexity_ratio=1.7)

DEFAULT_THRESHOLDS: dict[str, Thresholds] = {
    "fp32": Thresholds(
        max_abs_logit=2e-3,
        min_top1_agreement=0.995,
        max_mean_kl=1e-5,
        max_perplexity_ratio=1.001,
    ),
    "int8": Thresholds(min_top1_agreement=0.9, max_mean_kl=0.03, max_perplexity_ratio=1.03),
    "int4": _INT4,
    "auto": _INT4,
}


@dataclass(frozen=True)
class DecoderRecipe:
    """How to export one decoder.

    ``source`` is a Hugging Face id, a local folder, a ``.gguf`` file or an alias. ``precision`` and ``head_precision``
    may be ``"auto"``: Q4_0, Q4_1, Q4_K and Q8_0 blocks of a GGUF are carried over, wider GGUF types become int8, and
    all else int4 in the body and int8 in embeddings and head. ``thresholds`` None stands for the defaults of the
    precision.

    Raises:
        RecipeError: a value is out of its range.
    """

    source: str
    revision: str | None = None
    precision: Precision = "auto"
    block_size: int = 32
    symmetric: bool = False
    head_precision: Precision = "auto"
    thresholds: Thresholds | None = None

    def __post_init__(self) -> None:
        for name in ("source", "revision"):
            text = getattr(self, name)
            if text is not None and not _is_text(text):
                raise RecipeError(f"{name} is {text!r}: expected {_EXPECTED[name]}")
        _require("precision", self.precision, PRECISIONS)
        _require("head_precision", self.head_precision, PRECISIONS)
        _require("block_size", self.block_size, BLOCK_SIZES)

    @property
    def head(self) -> Precision:
        """The precision of embeddings and head; "auto" only if the body's is, too."""
        if self.head_precision != "auto" or self.precision == "auto":
            return self.head_precision
        return "fp32" if self.precision == "fp32" else "int8"

    @property
    def limits(self) -> Thresholds:
        """The thresholds that validation applies."""
        return self.thresholds or DEFAULT_THRESHOLDS[self.precision]


def _is_text(text: str) -> bool:
    """Whether it says something, and can be a file's name and be written as UTF-8."""
    has_surrogates = any("\ud800" <= character <= "\udfff" for character in text)
    return bool(text.strip()) and "\0" not in text and not has_surrogates


def _require(key: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise RecipeError(f"{key} is {value!r}: expected one of {', '.join(map(str, allowed))}")
