"""What report.json holds. Names carry their units.

A reading that the device does not give is null, and ``unreadable`` beside it says why.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from edgepipe.pipeline.board_report import BOARD_DEFINITIONS, BoardReport
from edgepipe.pipeline.gates import Conditions, Gate
from edgepipe.pipeline.statistics import Series, Summary
from edgepipe.runtimes.llm.rounds import Speculation

SCHEMA_VERSION = 2

DEFINITIONS = {
    "load_ms": "from an opened bundle to tokenizer, engines and caches ready, or to an image's output; the first apart",
    "ttft_ms": "time to first token: from the start of the prefill to the first token chosen; tokenising apart",
    "prefill_tokens_per_s": "tokens of the prompt / time that feeding them took",
    "tpot_ms": "time per output token: (t_last - t_first) / (N - 1) over the N tokens emitted; stop tokens are ignored",
    "decode_tokens_per_s": "(N - 1) / (t_last - t_first)",
    "round_ms": "one round of the loop: draft, one forward of the target, choice of tokens, commit and eviction",
    "acceptance_rate": "guesses that became text / guesses that the target checked",
    "tokens_per_round": "(N - 1) / rounds",
    "time_split": "share of t_last - t_first; kv is commit and eviction, other is the loop around them",
    "kv_bytes": "keys and values allocated, those of the draft included",
    "relative_cost": "t(S) / t(1): medians of forwards of S tokens and of one, over the same cache",
    "against_first": "first engine / this one, of TTFT and of TPOT, pair by pair, the engines taking turns",
    "speedup": "plain / measured, of TTFT and of TPOT, pair by pair; plain is the full cache without speculation",
    "predicted_speedup": "tokens / sum over rounds of t(gamma + 1) / t(1) + c gamma; c: a guess's median time / t(1)",
    "gamma_histogram": "rounds by the number of guesses that the target checked; 0 is plain",
    "by_position": "guesses checked and accepted by their place in the draft, those behind a rejected one left out",
    "streamed_ms": "an image's codes to the output, patch by patch; whole_ms at once; a sample is a mean of several",
    "parts": "one call of a tile graph, or of the tail that follows all tiles: a share of streamed_ms",
    "planned_bytes": "activations of an image by plan.json's arena; planned_whole_bytes of the model at once",
    "seen_bytes": "the same, allocated by the engine: the stitched tiles and the largest tile's arena, or the tail's",
    "peak_rss_bytes": "most physical memory of the whole process, the plain baseline apart",
    "cv": "coefficient of variation: standard deviation (n - 1) / mean",
    **BOARD_DEFINITIONS,
}


class Decoding(TypedDict):
    """Generations of N tokens after one prompt. ``warmup`` and ``samples`` are raw (`Timing.to_json`).

    ``acceptance_rate`` is None if nothing was drafted; ``round_ms`` is over the rounds of all samples.
    """

    kv_bytes: int
    warmup: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    ttft_ms: Summary
    prefill_tokens_per_s: Summary
    tpot_ms: Summary
    decode_tokens_per_s: Summary
    round_ms: Summary
    acceptance_rate: float | None
    tokens_per_round: float
    time_split: dict[str, float]
    speculation: Speculation


class Speedup(TypedDict):
    """Pairwise ratios plain / measured; above 1 the measured configuration is the faster."""

    ttft: Summary
    decode: Summary


class Prompt(TypedDict):
    """What was measured at one prompt length; ``plain`` and ``speedup`` are None without a baseline.

    ``predicted_speedup`` is None if nothing was guessed, or more than the cost curve tells of.
    """

    prompt_tokens: int
    measured: Decoding
    plain: Decoding | None
    speedup: Speedup | None
    predicted_speedup: float | None


class Width(Series):
    """Forwards of ``width`` tokens."""

    width: int
    relative_cost: float


class CostCurve(TypedDict):
    """Forwards of 1, 2, ... tokens after a prompt of ``prompt_tokens``."""

    prompt_tokens: int
    widths: list[Width]


class Part(Series):
    """Calls of a tile graph, for each of so many ``tiles``, or (None) of the tail."""

    part: str
    tiles: int | None


class Activations(TypedDict):
    """Bytes of activations, planned and allocated by the engine; ``budget_bytes`` is what the plan was made for."""

    planned_bytes: int
    planned_whole_bytes: int
    budget_bytes: int | None
    seen_bytes: int | None
    seen_whole_bytes: int | None
    unreadable: dict[str, str]


class Vision(TypedDict):
    """A vision model on one image. ``streamed_ms`` is None for a model without patches."""

    engine: str
    grid: list[int]
    images_per_sample: int
    load_ms: Series
    streamed_ms: Series | None
    whole_ms: Series
    parts: list[Part]
    activations: Activations


class OtherEngine(TypedDict):
    """What was measured of a decoder in another engine, in turns with the first, which the report's own figures are of.

    ``against_first``: first / this, at every prompt length, pair by pair; above 1, this one is the faster.
    """

    engine: str
    load_ms: Series
    prompts: list[Prompt]
    cost_curve: CostCurve
    against_first: list[Speedup]


class _PartialReport(TypedDict, total=False):
    """What a report has besides: of engines that were compared; of a vision model, here or on a microcontroller."""

    other_engines: list[OtherEngine]
    vision: Vision
    board: BoardReport


class Report(_PartialReport):
    """All of report.json. A bundle without a decoder has no prompts, and None for what belongs to them.

    ``status``: of an emulated board at best ``emulated``: what it says is of no real one's time.
    """

    schema_version: int
    created: str
    edgepipe_version: str
    status: Literal["ok", "emulated", "untrustworthy"]
    gates: list[Gate]
    device: dict[str, Any]
    conditions: Conditions
    bundle: dict[str, Any]
    configuration: dict[str, Any]
    definitions: dict[str, str]
    load_ms: Series | None
    memory: dict[str, Any]
    prompts: list[Prompt]
    cost_curve: CostCurve | None
