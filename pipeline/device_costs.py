"""What rounds cost on this device, for `--gamma auto`: timed once for each bundle, and kept in the user's cache."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import numpy as np

from edgepipe.errors import EdgepipeWarning
from edgepipe.pipeline.device_cache import cache_path, keep
from edgepipe.runtimes.llm.costs import DraftCost, MeasuredCosts
from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.drafters.drafter import Drafter
from edgepipe.runtimes.llm.sampling import Sampler
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder

# The widths that tell most come first: on a slow device there is no time for the others.
WIDTHS = (1, 2, 4, 8, 16, 3, 6, 12)
BUDGET_NS = 400_000_000
ROUNDS = 9
ACCEPTANCE_ROUNDS = 16
LINE_WEIGHT = 2  # samples of a width that the straight line through all counts for

SCHEMA_VERSION = 3

# What figures that were kept are between, if they are not 0, and the widest forward of which one was: else a file is
# damaged.
PLAUSIBLE, WIDEST = (1e-12, 1e15), 2**10


def measured_costs(facts: Mapping[str, object], measure: Callable[[], MeasuredCosts]) -> MeasuredCosts:
    """From the cache, else measured here and now, and kept.

    ``facts`` are what the figures depend on beside this device. Measuring takes about a second; on a slow device as
    long as some 30 forwards of target and draft.
    """
    path = cache_path("costs", SCHEMA_VERSION, facts)
    costs = _read(path)
    if costs is None:
        costs = measure()
        keep(path, asdict(costs))
    return costs


def time_costs(
    target: CachedDecoder,
    drafters: Sequence[Drafter],
    context: int,
    clock: Callable[[], int] = perf_counter_ns,
) -> MeasuredCosts:
    """Time forwards of the target, and the drafters, each within `BUDGET_NS` but for the first few.

    Args:
        target: with an empty cache, as it is afterwards.
        drafters: with nothing read, as they are afterwards.
        context: tokens that the target's cache is made to seem to hold.
        clock: nanoseconds.
    """
    cache = target.cache
    # Attention over rows of zeros takes as long as over any others.
    cache.length = cache.next_position = max(0, min(context, cache.capacity - max(WIDTHS)))
    widest = cache.capacity - cache.used
    if cache.mass is not None:
        widest = min(widest, cache.widest)
    widths = [width for width in target.decoder.widths or WIDTHS if width <= widest]
    forward_ns: dict[int, list[int]] = {}
    _time(target, 1, clock)  # what is done once only
    begin = clock()
    for repetition in range(ROUNDS):
        turn = repetition % len(widths)  # so that a drift of the machine spreads over all widths
        for width in widths[turn:] + widths[:turn]:
            if clock() - begin < BUDGET_NS or len(forward_ns) < 3:
                forward_ns.setdefault(width, []).append(_time(target, width, clock))
    curve = smoothed(forward_ns)
    costs = {}
    for drafter in drafters:
        if not drafter.free and (taken := _time_drafter(drafter, clock)):
            costs[drafter.name] = DraftCost(*(part_ns / curve[1] for part_ns in taken))
    cache.clear()
    return MeasuredCosts(curve, costs)


def measure_acceptance(
    target: CachedDecoder,
    sampler: Sampler,
    drafters: Sequence[Drafter],
    texts: Sequence[Sequence[int]],
    gamma: int,
    clock: Callable[[], int] = perf_counter_ns,
) -> dict[str, float]:
    """Share of right guesses after ``texts``, by drafter, of those that come before or are the first wrong one.

    ``gamma`` guesses a round, `ACCEPTANCE_ROUNDS` shared among the texts, within `BUDGET_NS` but for each one's first
    few rounds. What is free has no need of it.
    """
    found = {}
    for drafter in drafters:
        if drafter.free or not gamma or not texts:
            continue
        decoder = SpeculativeDecoder(target, sampler, drafter, gamma)
        accepted, tested = 1, 2  # as if one guess had been right and one wrong, so that nothing is certain
        with warnings.catch_warnings(action="ignore", category=EdgepipeWarning):
            for text in texts:
                begin = clock()
                decoder.start(text)
                for number in range(ACCEPTANCE_ROUNDS // len(texts)):
                    if number >= 2 and clock() - begin > BUDGET_NS // len(texts):
                        break
                    entry = decoder.step(gamma + 1)
                    accepted += entry.accepted
                    tested += min(entry.drafted, entry.accepted + 1)
        if decoder.chain:  # else it has failed, and will fail again when it is asked
            found[drafter.name] = accepted / tested
        decoder.chain.reset()
        target.cache.clear()
    return found


def smoothed(times: Mapping[int, Sequence[int]]) -> dict[int, float]:
    """Medians, drawn the more towards a straight line the fewer samples there are.

    Costs rise about linearly with the width. The line is fitted by Theil and Sen's medians, which a sample that the
    machine disturbed does not move.
    """
    widths = np.array([width for width, series in times.items() for _ in series])
    taken = np.array([time for series in times.values() for time in series], np.float64)
    first, second = np.nonzero(widths[:, None] < widths)
    slope = np.median((taken[second] - taken[first]) / (widths[second] - widths[first])) if first.size else 0.0
    start = np.median(taken - slope * widths)
    curve = {}
    for width, series in times.items():
        total = len(series) * median(series) + LINE_WEIGHT * (start + slope * width)
        curve[width] = float(total / (len(series) + LINE_WEIGHT))
    return curve


def _time(target: CachedDecoder, width: int, clock: Callable[[], int]) -> int:
    begin = clock()
    target.extend([0] * width)
    target.commit(0)
    return clock() - begin


def _time_drafter(drafter: Drafter, clock: Callable[[], int]) -> tuple[float, float, float] | None:
    """Nanoseconds of a draft's first guess, of each later one, and of reading a token; None if it proposes nothing."""

    def time(tokens: int, count: int) -> tuple[int, int]:
        drafter.reset()
        begin = clock()
        made = len(drafter.propose([0] * tokens, count).tokens)
        return clock() - begin, made

    few, many, short, long = 1, 5, 2, 34
    taken: list[tuple[tuple[int, int], ...]] = []
    begin = clock()
    try:
        time(short, few)
        while len(taken) < 3 and (not taken or clock() - begin < BUDGET_NS):
            taken.append((time(short, few), time(short, many), time(long, few)))
        drafter.reset()
    except Exception:  # it will fail again when it is asked, and be dropped then
        return None
    if any(made[1][1] < many for made in taken):
        return None
    once, again, longer = (median(times[index][0] for times in taken) for index in range(3))
    return once, max(0.0, (again - once) / (many - few)), max(0.0, (longer - once) / (long - short))


def _read(path: Path) -> MeasuredCosts | None:
    """What was kept; None if there is nothing, or nothing that can be used."""
    try:
        kept = json.loads(path.read_bytes())
        forward_ns = {int(width): float(taken) for width, taken in kept["forward_ns"].items()}
        drafters = {
            name: DraftCost(*(float(cost[part]) for part in ("first", "guess", "catch_up")))
            for name, cost in kept["drafters"].items()
        }
        acceptance = {name: float(rate) for name, rate in kept["acceptance"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    figures = [*forward_ns.values(), *acceptance.values()]
    figures += [part for cost in drafters.values() for part in astuple(cost)]
    least, most = PLAUSIBLE
    usable = 1 in forward_ns and all(1 <= width <= WIDEST and taken > 0 for width, taken in forward_ns.items())
    usable = usable and all(figure == 0 or least <= figure <= most for figure in figures)
    return MeasuredCosts(forward_ns, drafters, acceptance) if usable else None
