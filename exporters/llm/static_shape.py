"""What the formats of static shapes (TFLite, ExecuTorch) are written for, and what their writers report."""

from __future__ import annotations

from dataclasses import dataclass

from edgepipe.errors import RecipeError, UnsupportedModel

LARGEST = 2**16


@dataclass(frozen=True)
class StaticShape:
    """The forwards that a file can do.

    ``widths``: numbers of tokens whose logits are all wanted (1 to decode, gamma + 1 to verify), ascending. ``chunk``:
    tokens of the forward that reads a prompt, of which one row of logits comes out.

    Raises:
        RecipeError: a value is out of its range.
    """

    widths: tuple[int, ...] = (1, 5)
    chunk: int = 64

    def __post_init__(self) -> None:
        if self.widths[:1] != (1,) or list(self.widths) != sorted(set(self.widths)) or self.widths[-1] > LARGEST:
            raise RecipeError(
                f"widths is {', '.join(map(str, self.widths)) or 'empty'}: expected 1 and wider ones, ascending, as in "
                "1, 5, 9 for 4 and 8 guesses a round"
            )
        if not 1 <= self.chunk <= LARGEST:
            raise RecipeError(f"chunk is {self.chunk}: expected 1 to {LARGEST}")

    def require_context(self, name: str, context_length: int) -> None:
        """See that the context of a model called ``name`` has room for the widest forward.

        Raises:
            UnsupportedModel: it has not.
        """
        widest = max(*self.widths, self.chunk)
        if widest > context_length:
            raise UnsupportedModel(
                f"{name} has a context of {context_length} tokens, and a forward of {widest} is asked for: expected "
                f"widths and a chunk up to {context_length}"
            )


@dataclass(frozen=True)
class FormatReport:
    """What was written.

    ``paths`` of the ``"plain"`` and the ``"scored"`` variant under the component's folder (one file may be both);
    ``precision`` names the parts' precisions as `edgepipe.exporters.llm.onnx.OnnxReport` does; ``bytes`` is the size of
    all files; ``notes`` are sentences for the export report. ``shape`` is what the file keeps to, None where any
    number of tokens will do.
    """

    paths: dict[str, str]
    precision: dict[str, str]
    bytes: int
    notes: tuple[str, ...]
    shape: StaticShape | None = None
