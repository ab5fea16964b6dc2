"""What to distil: the options of `edgepipe distill`, and what they mean for one target."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from reprlib import repr as shown

from edgepipe.errors import RecipeError, UnsupportedModel
from edgepipe.exporters.llm.distill.training import TrainingSettings
from edgepipe.exporters.llm.draft_folder import KINDS
from edgepipe.exporters.sources import open_draft
from edgepipe.exporters.sources.draft import DraftWeights
from edgepipe.exporters.sources.weights import DecoderWeights

# Tokens that a draft can guess, unless it is told.
OUTPUT_VOCAB_SIZE = 8192


@dataclass(frozen=True)
class Distillation:
    """What to distil; see `edgepipe distill --help`.

    Attributes:
        target: what `edgepipe.exporters.sources.open_source` takes.
        revision: of a hub id.
        kind: "decoder", or "head" (see `edgepipe.exporters.llm.draft_folder`).
        start: a draft folder or alias to go on from, with its layers and tokens, rather than from the target's layers.
        layers: the target's layers that the draft starts from; by default the first two, or the last for a head.
        output_vocab_size: tokens that the draft can guess; by default `OUTPUT_VOCAB_SIZE`.
        prompts: file with one prompt a line, instead of the built-in templates.
        text: file with text that the target continues, instead of prompts.
        temperatures: that conversations are sampled at, each as often as it is there.
        sample_tokens: tokens that the target writes; sampling ends with the shard that reaches them.
        max_answer: tokens of its longest answer.
        shard_size: conversations that are written to the disk together.
        held_out: conversations that acceptance is measured on.
        training: how long and how.
        seed: of prompts, samples and training.
        threads: that sampling and training use.
    """

    target: str
    revision: str | None = None
    kind: str = "decoder"
    start: str | None = None
    layers: tuple[int, ...] | None = None
    output_vocab_size: int | None = None
    prompts: Path | None = None
    text: Path | None = None
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.3, 0.5, 0.7, 0.9)
    sample_tokens: int = 600_000
    max_answer: int = 192
    shard_size: int = 256
    held_out: int = 96
    training: TrainingSettings = field(default_factory=TrainingSettings)
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.prompts and self.text:
            raise RecipeError("both prompts and a text are given: leave one of them out")
        if self.start is not None and not (self.layers is self.output_vocab_size is None):
            raise RecipeError(f"layers and vocabulary are those of {self.start}, the start: leave them out")
        size, temperatures, minutes = self.output_vocab_size, self.temperatures, self.training.minutes
        cores = os.cpu_count() or 1
        for name, value, fits, expected in (
            ("kind", self.kind, self.kind in KINDS, " or ".join(KINDS)),
            ("output_vocab_size", size, size is None or size >= 1, "1 or more"),
            ("temperatures", temperatures, temperatures and all(0 <= t < inf for t in temperatures), "some, 0 or more"),
            ("sample_tokens", self.sample_tokens, self.sample_tokens >= 1, "1 or more"),
            ("passes", self.training.passes, 0 < self.training.passes < inf, "more than 0"),
            ("minutes", minutes, minutes is None or 0 < minutes < inf, "more than 0"),
            ("seed", self.seed, 0 <= self.seed < 2**64, f"0 to {2**64 - 1}"),
            ("threads", self.threads, 1 <= self.threads <= cores, f"1 to {cores}, the cores of this machine"),
        ):
            if not fits:
                raise RecipeError(f"{name} is {value}: expected {expected}")

    def opened_start(self, weights: DecoderWeights) -> DraftWeights | None:
        """The draft to go on from, over its target's ``weights``.

        Raises:
            EdgepipeError: there is none of this name.
            RecipeError: it is of another kind, or no draft that was distilled.
            UnsupportedModel: it is damaged, or another target's.
        """
        if self.start is None:
            return None
        start = open_draft(self.start, weights)
        if not isinstance(start, DraftWeights):
            raise RecipeError(f"start is {self.start}, a whole model: expected a draft that `edgepipe distill` wrote")
        if start.kind != self.kind:
            raise RecipeError(f"start is {self.start}, of kind {start.kind}: give --kind {start.kind}")
        return start

    def target_layers(self, weights: DecoderWeights, start: DraftWeights | None) -> tuple[int, ...]:
        """The target's layers that the draft, or its start, was cut from.

        Raises:
            RecipeError: the target has no such layers.
            UnsupportedModel: the start does not say them.
        """
        count = weights.spec.num_layers
        if start is not None:
            cut = start.facts.get("layers")
            if (
                not isinstance(cut, list)
                or len(cut) != start.spec.num_layers
                or any(c not in range(count) for c in cut)
            ):
                raise UnsupportedModel(
                    f"{start.info.name} was cut from layers {shown(cut)}, expected {start.spec.num_layers} of 0 to "
                    f"{count - 1}: distil it again"
                )
            return tuple(cut)
        layers = self.layers or ((count - 1,) if self.kind == "head" else tuple(range(min(2, count))))
        found = ",".join(map(str, layers))
        if self.kind == "head" and len(layers) != 1:
            raise RecipeError(f"layers is {found}: expected one, a head has no more")
        if any(not 0 <= layer < count for layer in layers):
            raise RecipeError(f"layers is {found}: expected layers of the target, 0 to {count - 1}")
        if list(layers) != sorted(set(layers)):
            raise RecipeError(f"layers is {found}: expected each once, in ascending order")
        return layers
