"""What report.json holds. Names carry their units.

A reading that the device does not give is null, and ``unreadable`` beside it says why.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from edgepipe.pipeline.gates import Conditions, Gate
from edgepipe.pipeline.statistics import Summary

SCHEMA_VERSION = 1

DEFINITIONS = {
    "load_ms": "from an opened bundle to tokenizer, engines and caches ready; the first is kept apart",
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
    "speedup": "plain / measured, of TTFT and of TPOT, pair by pair; plain is the full cache without speculation",
    "peak_rss_bytes": "most physical memory of the whole process, the plain baseline apart",
    "cv": "coefficient of variation: standard deviation (n - 1) / mean",
}


class Series(TypedDict):
    """Raw samples in milliseconds, in the order they were taken, and what they come to."""

    warmup: list[float]
    samples: list[float]
    statistics: Summary


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


class Speedup(TypedDict):
    """Pairwise ratios plain / measured; above 1 the measured configuration is the faster."""

    ttft: Summary
    decode: Summary


class Prompt(TypedDict):
    """What was measured at one prompt length; ``plain`` and ``speedup`` are None without a baseline."""

    prompt_tokens: int
    measured: Decoding
    plain: Decoding | None
    speedup: Speedup | None


class Width(Series):
    """Forwards of ``width`` tokens."""

    width: int
    relative_cost: float


class CostCurve(TypedDict):
    """Forwards of 1, 2, ... tokens after a prompt of ``prompt_tokens``."""

    prompt_tokens: int
    widths: list[Width]


class Report(TypedDict):
    """All of report.json."""

    schema_version: int
    created: str
    edgepipe_version: str
    status: Literal["ok", "untrustworthy"]
    gates: list[Gate]
    device: dict[str, Any]
    conditions: Conditions
    bundle: dict[str, Any]
    configuration: dict[str, Any]
    definitions: dict[str, str]
    load_ms: Series
    memory: dict[str, Any]
    prompts: list[Prompt]
    cost_curve: CostCurve
