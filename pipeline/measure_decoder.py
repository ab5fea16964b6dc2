"""What `edgepipe measure` does with a decoder: latency, memory and the cost of speculation, with all raw samples."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from edgepipe.errors import ContextError, RecipeError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.cost_curve import time_widths
from edgepipe.pipeline.decode_options import CacheOptions, DecodeOptions
from edgepipe.pipeline.decode_timing import (
    Timing,
    predict_speedup,
    summarise_decoding,
    summarise_speedup,
    time_decode,
)
from edgepipe.pipeline.prompt_text import TEXT, prompt_tokens
from edgepipe.pipeline.report_schema import CostCurve, Prompt, Series, Speedup
from edgepipe.pipeline.session import Session
from edgepipe.pipeline.statistics import Summary, summarise
from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.sampling import Sampler
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder

Progress = Callable[[str], None]

PLAIN = "plain"


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        prompt_lengths: tokens of the prompts.
        new_tokens: N, tokens generated after each.
        repeats, warmup: timed repetitions, and those before them that are kept apart.
        against: ``plain`` interleaves a baseline with the full cache and without speculation.
        max_width: the cost curve goes from 1 to this many tokens.
        file: text to cut the prompts from instead of the built-in one; speculation depends on it.
        cool_to_c: degrees Celsius that the processor may have at most when the measurement begins.
        cool_limit_s: seconds to wait for that.

    Raises:
        RecipeError: a value is out of range.
    """

    prompt_lengths: tuple[int, ...] = (32, 128, 512)
    new_tokens: int = 64
    repeats: int = 5
    warmup: int = 1
    against: str | None = None
    max_width: int = 16
    file: str | None = None
    cool_to_c: float | None = None
    cool_limit_s: float = 600.0

    def __post_init__(self) -> None:
        if not self.prompt_lengths or min(self.prompt_lengths) < 1:
            raise RecipeError(f"prompt_lengths is {self.prompt_lengths}: expected one or more lengths of 1 or more")
        if self.against not in (None, PLAIN):
            raise RecipeError(f"against is {self.against!r}: expected {PLAIN!r} or nothing")
        for name, least in (("new_tokens", 2), ("repeats", 1), ("warmup", 1), ("max_width", 1)):
            if getattr(self, name) < least:
                raise RecipeError(f"{name} is {getattr(self, name)}: expected {least} or more")


@dataclass(frozen=True)
class DecoderResults:
    """What was measured of a decoder in one engine."""

    engine: str
    load_ms: Series
    prompts: list[Prompt]
    cost_curve: CostCurve

    def timed_series(self) -> dict[str, Summary]:
        """The series that the gates look at, by name. Rounds differ by nature, and rates are times turned over."""
        series = {"load": self.load_ms["statistics"]}
        for prompt in self.prompts:
            for name in ("measured", "plain"):
                decoding = prompt[name]
                if decoding is not None:
                    suffix = f"at prompt {prompt['prompt_tokens']}{', plain' if name == 'plain' else ''}"
                    series[f"TTFT {suffix}"] = decoding["ttft_ms"]
                    series[f"TPOT {suffix}"] = decoding["tpot_ms"]
        for entry in self.cost_curve["widths"]:
            series[f"forward of {entry['width']}"] = entry["statistics"]
        return series


class DecoderMeasurement:
    """One bundle's decoder in one configuration: loads, warms up, times."""

    def __init__(self, bundle: Bundle, options: DecodeOptions, plan: Plan, progress: Progress) -> None:
        """Load all that is needed; nothing is timed yet.

        Raises:
            ContextError: a prompt length does not fit the model's context.
            EdgepipeError: the bundle is damaged, an option is out of range.
        """
        self.bundle = bundle
        self.options = options
        self.plan = plan
        self.progress = progress
        self.session = Session(bundle, options)
        self._require_room()
        self.text = TEXT if plan.file is None else _read(Path(plan.file))
        longest = max(plan.prompt_lengths) + plan.max_width
        self.tokens = prompt_tokens(self.session.tokenizer, self.text, longest)
        self.timings: defaultdict[tuple[int, bool], list[Timing]] = defaultdict(list)

    @property
    def engine(self) -> str:
        """The one that is measured."""
        return self.session.engine

    def warm_up(self) -> None:
        """Load for the first time, and go through everything but the baseline."""
        self.load_ms = [self._load_ms()]
        self.warm = {(length, False): self._warm_up(length, plain=False) for length in self.plan.prompt_lengths}

    def configuration(self) -> dict[str, Any]:
        """What the report says of it, beside the plan."""
        decode = asdict(self.session.options)
        return {"text_sha256": hashlib.sha256(self.text.encode()).hexdigest(), "decode": decode}

    def _require_room(self) -> None:
        context = self.session.spec.context_length
        needed = max(self.plan.prompt_lengths) + self.plan.new_tokens
        if needed > context and (self.options.cache.policy == "full" or self.plan.against):
            room = context - self.plan.new_tokens
            advice = f"--prompt-lengths of at most {room}" if room > 0 else f"fewer --new-tokens than {context}"
            way_out = "leave out --against" if self.options.cache.policy != "full" else "set --policy and --budget"
            raise ContextError(
                f"prompt length {max(self.plan.prompt_lengths)} and {self.plan.new_tokens} new tokens are more than "
                f"the model's context of {context}: give {advice}, or {way_out}"
            )
        widest = max(self.options.chunk, self.session.most_guesses(needed) + 1)
        if self.plan.max_width > widest:
            raise RecipeError(
                f"max_width is {self.plan.max_width}: expected at most the {widest} tokens that go through the model "
                "at once (--chunk)"
            )

    def _load_ms(self) -> float:
        """Load tokenizer, engines and caches afresh; the session before is dropped first."""
        self.progress("load")
        del self.session
        begin = perf_counter_ns()
        self.session = Session(self.bundle, self.options)
        self.session.decoder(max(self.plan.prompt_lengths) + self.plan.new_tokens)
        return (perf_counter_ns() - begin) / 1e6

    def _warm_up(self, length: int, *, plain: bool) -> list[Timing]:
        self.progress(f"prompt of {length}: warm-up{' of plain' if plain else ''}")
        return [self._time(length, plain=plain) for _ in range(self.plan.warmup)]

    def warm_up_plain(self) -> None:
        """Go through the baseline, if there is one."""
        if self.plan.against:
            self.warm |= {(length, True): self._warm_up(length, plain=True) for length in self.plan.prompt_lengths}

    def time_prompt(self, length: int, repetition: int) -> None:
        """Time one repetition, and then one of the baseline: A B A B ..."""
        self.progress(f"prompt of {length}: repetition {repetition} of {self.plan.repeats}")
        for plain in (False, True) if self.plan.against else (False,):
            self.timings[length, plain].append(self._time(length, plain=plain))

    def time_load(self) -> None:
        """Time one load more."""
        self.load_ms.append(self._load_ms())

    def results(self, curve: CostCurve) -> DecoderResults:
        """What came of it; ``curve`` as of `cost_curves`."""
        prompts = [self._prompt(length, curve) for length in self.plan.prompt_lengths]
        return DecoderResults(self.engine, _series(self.load_ms[:1], self.load_ms[1:]), prompts, curve)

    def _prompt(self, length: int, curve: CostCurve) -> Prompt:
        measured, plain = self.timings[length, False], self.timings[length, True]
        relative_cost = {entry["width"]: entry["relative_cost"] for entry in curve["widths"]}
        plain_ns = curve["widths"][0]["statistics"]["p50"] * 1e6
        return Prompt(
            prompt_tokens=length,
            measured=summarise_decoding(self.warm[length, False], measured),
            plain=summarise_decoding(self.warm[length, True], plain) if plain else None,
            speedup=summarise_speedup(measured, plain) if plain else None,
            predicted_speedup=predict_speedup(measured, relative_cost, plain_ns),
        )

    def _time(self, length: int, *, plain: bool) -> Timing:
        """One generation with empty caches."""
        total = length + self.plan.new_tokens
        if plain:
            target = self.session.cached("target", CacheOptions(), total)
            decoder = SpeculativeDecoder(target, Sampler(self.options.sampling))
        else:
            decoder = self.session.decoder(total)
        return time_decode(decoder, self.tokens[:length], self.plan.new_tokens)

    def curve_target(self, length: int) -> CachedDecoder:
        """A decoder with room for the cost curve after a prompt of ``length``."""
        return self.session.cached(
            "target", self.options.cache, length + max(self.plan.new_tokens, self.plan.max_width)
        )


def measure_in_turns(measurements: Sequence[DecoderMeasurement]) -> list[DecoderResults]:
    """Time everything; of several engines, each repetition of one is followed by that of the next."""
    plan = measurements[0].plan
    for measurement in measurements:
        measurement.warm_up_plain()
    for length in plan.prompt_lengths:
        for repetition in range(1, plan.repeats + 1):
            for measurement in measurements:
                measurement.time_prompt(length, repetition)
    curves = _cost_curves(measurements)
    for _ in range(plan.repeats):
        for measurement in measurements:
            measurement.time_load()
    return [measurement.results(curve) for measurement, curve in zip(measurements, curves, strict=True)]


def speedup(measured: DecoderMeasurement, against: DecoderMeasurement, length: int) -> Speedup:
    """Ratios of the repetitions after a prompt of ``length``; above 1, ``measured`` is the faster."""
    return summarise_speedup(measured.timings[length, False], against.timings[length, False])


def _cost_curves(measurements: Sequence[DecoderMeasurement]) -> list[CostCurve]:
    """t(S) of each after the prompt of middle length."""
    first = measurements[0]
    plan = first.plan
    length = sorted(plan.prompt_lengths)[len(plan.prompt_lengths) // 2]
    first.progress(f"cost curve after a prompt of {length}")
    targets = [measurement.curve_target(length) for measurement in measurements]
    following = first.tokens[length : length + plan.max_width]
    found = time_widths(targets, first.tokens[:length], following, plan.warmup, plan.repeats)
    return [_cost_curve(length, times, plan.warmup) for times in found]


def _cost_curve(length: int, times: dict[int, list[int]], warmup: int) -> CostCurve:
    series = {}
    for width, taken in times.items():
        taken_ms = [time / 1e6 for time in taken]
        series[width] = _series(taken_ms[:warmup], taken_ms[warmup:])
    one = series[1]["statistics"]["p50"]
    return CostCurve(
        prompt_tokens=length,
        widths=[
            {"width": width, "relative_cost": entry["statistics"]["p50"] / one, **entry}
            for width, entry in series.items()
        ],
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not UTF-8 text ({error.reason}): give a --file that is") from error


def _series(warmup: list[float], samples: list[float]) -> Series:
    return Series(warmup=warmup, samples=samples, statistics=summarise(samples))
