"""Which engine decodes a bundle's text fastest here, for `--engine auto`: measured once, and kept."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from edgepipe.errors import EdgepipeError, EdgepipeWarning, RecipeError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.cost_curve import time_widths
from edgepipe.pipeline.decode_options import DecodeOptions
from edgepipe.pipeline.decoder_engines import exported_engines, first_installed
from edgepipe.pipeline.device_cache import cache_path, keep
from edgepipe.pipeline.session import Session
from edgepipe.runtimes.llm.costs import Costs
from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.engines import is_installed

SCHEMA_VERSION = 1

# Tokens of the text that costs are measured in, and of the one after which plain rounds are timed.
_LENGTH, _PROMPT = 512, 64
WARMUP, REPEATS = 2, 9


def choose_engine(bundle: Bundle, options: DecodeOptions, tell: Callable[[str], None] = lambda step: None) -> str:
    """The engine of most expected tokens per second, of those that are installed and that the bundle has files for.

    From the cache, else measured here and now, each engine with its own costs (`edgepipe.pipeline.device_costs`). A
    warning names each that cannot run; where that may be mended, nothing is kept.

    Args:
        bundle: with a decoder.
        options: how text is decoded; the engine is left open.
        tell: called with what is measured next.

    Raises:
        EdgepipeError: no engine runs it; what the first said.
    """
    target = bundle.manifest["components"]["target"]
    candidates = [engine for engine in exported_engines(target) if is_installed(engine)]
    if len(candidates) < 2:
        return candidates[0] if candidates else first_installed(target)
    decoding = {name: value for name, value in asdict(options).items() if name not in ("engine", "sampling")}
    facts = {"bundle_id": bundle.manifest["bundle_id"], "engines": candidates, "decode": decoding}
    path = cache_path("engine", SCHEMA_VERSION, facts)
    chosen = _read(path)
    if chosen not in candidates:
        speeds, left_out = _measure(bundle, options, candidates, tell)
        for engine, reason in left_out.items():
            warnings.warn(f"--engine auto leaves out {engine}: {reason}", EdgepipeWarning, stacklevel=2)
        chosen = max(speeds, key=lambda engine: speeds[engine])
        if all(isinstance(reason, RecipeError) for reason in left_out.values()):  # other reasons may be mended
            keep(path, {"engine": chosen, "tokens_per_s": speeds})
    return chosen


def _measure(
    bundle: Bundle, options: DecodeOptions, candidates: list[str], tell: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, EdgepipeError]]:
    """Expected tokens per second of each engine, and why others cannot run: forwards too narrow, a damaged file.

    Plain rounds are timed in turns, so that a drift of the machine does not decide.

    Raises:
        EdgepipeError: none can; what the first said.
    """
    speedups: dict[str, float] = {}
    targets: list[CachedDecoder] = []
    left_out: dict[str, EdgepipeError] = {}
    for engine in candidates:
        tell(f"measuring {engine}")
        try:
            session = Session(bundle, replace(options, engine=engine), tell)
            speedup = expected_speedup(session.costs(_LENGTH), gammas(session))
            targets.append(session.cached("target", options.cache, _PROMPT + 1))
            speedups[engine] = speedup
        except EdgepipeError as error:
            left_out[engine] = error.with_traceback(None)  # which would keep the last session
    if not speedups:
        raise next(iter(left_out.values()))
    times = time_widths(targets, [0] * _PROMPT, [0], WARMUP, REPEATS)
    speeds = {
        engine: speedup * 1e9 / median(taken[1])
        for (engine, speedup), taken in zip(speedups.items(), times, strict=True)
    }
    return speeds, left_out


def gammas(session: Session) -> range:
    """The guesses a round that may be made: one number if it is fixed, else from none to the most."""
    gamma, most = session.options.gamma, session.most_guesses(_LENGTH)
    return range(most + 1) if gamma == "auto" or not session.options.drafters else range(most, most + 1)


def expected_speedup(costs: Costs, gammas: range) -> float:
    """Tokens per plain round with the best drafter and gamma (Leviathan et al. 2022, theorem 3.8).

    A round of gamma guesses brings 1 + a + ... + a^gamma tokens in t(gamma + 1) + draft(gamma). Drafters that are free
    have no measured acceptance a, as it depends on the text; they count for nothing.
    """
    rounds = [1.0] if 0 in gammas or not costs.acceptance else []
    for name, rate in costs.acceptance.items():
        for gamma in filter(None, gammas):
            tokens = sum(rate**position for position in range(gamma + 1))
            rounds.append(tokens / (costs.forward(gamma + 1) + costs.drafter(name).draft(gamma)))
    return max(rounds)


def _read(path: Path) -> str | None:
    try:
        found = json.loads(path.read_bytes())["engine"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None
