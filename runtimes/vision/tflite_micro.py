"""What plan.json says of a model's memory in TFLite Micro, as predicted when it was exported."""

from __future__ import annotations

from dataclasses import dataclass

from edgepipe.runtimes.vision.json_fields import Fields


@dataclass(frozen=True)
class TfliteMicroArena:
    """``head_bytes``: activations and scratch. ``tail_bytes``: its own structures, on a 64-bit host."""

    head_bytes: int
    tail_bytes: int

    @property
    def nbytes(self) -> int:
        """Both together."""
        return self.head_bytes + self.tail_bytes


@dataclass(frozen=True)
class DropIn:
    """The split model that takes the whole one's place: its own plan, its multiply-accumulates and its arena."""

    split: int
    grid: tuple[int, int]
    macs: int
    arena: TfliteMicroArena


@dataclass(frozen=True)
class TfliteMicro:
    """Arenas of the ``whole`` model, of the ``drop_in``, and of the streamed model's ``largest_part`` by itself.

    None where there is no such form. While a part runs, the stitched output of the stage lies outside its arena.
    """

    whole: TfliteMicroArena
    drop_in: DropIn | None
    largest_part: TfliteMicroArena | None


def read_tflite_micro(fields: Fields) -> TfliteMicro:
    """Read it from its table in plan.json.

    Raises:
        Wrong: a field is missing, or not of its type or range.
    """
    return TfliteMicro(
        _arena(fields.table("whole")),
        fields.optional("drop_in", lambda: _drop_in(fields.table("drop_in"))),
        fields.optional("largest_part", lambda: _arena(fields.table("largest_part"))),
    )


def _drop_in(fields: Fields) -> DropIn:
    rows, columns = fields.whole_numbers("grid", 2, least=1)
    arena = _arena(fields.table("arena"))
    return DropIn(fields.whole_number("split", least=1), (rows, columns), fields.whole_number("macs"), arena)


def _arena(fields: Fields) -> TfliteMicroArena:
    return TfliteMicroArena(fields.whole_number("head_bytes"), fields.whole_number("tail_bytes"))
