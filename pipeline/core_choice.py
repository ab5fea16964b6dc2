"""Which cores and how many threads make a decoder fastest here, for `--threads auto`: timed, not looked up.

A thread on a slow core keeps the others waiting in every layer, so that eight threads may be slower than four.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter_ns

from edgepipe.devices.cpu import core_groups
from edgepipe.devices.probes import ROOT
from edgepipe.devices.readings import Unreadable
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.decode_options import CacheOptions, DecodeOptions
from edgepipe.pipeline.device_cache import cache_path, keep
from edgepipe.pipeline.session import Session

SCHEMA_VERSION = 1
WARMUP, REPEATS = 2, 9
# What a setting must save to be taken before one of fewer threads, which take less power.
LEAST_GAIN = 0.03
_CONTEXT = 64


@dataclass(frozen=True)
class Cores:
    """A number of threads, and the cores that they may run on; None where the system has no affinity."""

    threads: int
    cpus: tuple[int, ...] | None


def choose_cores(bundle: Bundle, engine: str, progress: Callable[[str], None] = lambda step: None) -> Cores:
    """The setting in which a forward of one token is fastest; this process is bound to its cores.

    From the cache, else timed here and now, each setting with engines of its own, and kept.

    Args:
        bundle: with a decoder.
        engine: a name of `edgepipe.runtimes.llm.engines.ENGINES`.
        progress: called with what is timed next.
    """
    candidates = settings(_kinds())
    facts = {"bundle_id": bundle.manifest["bundle_id"], "engine": engine, "settings": list(map(asdict, candidates))}
    path = cache_path("cores", SCHEMA_VERSION, facts)
    chosen = _read(path, candidates)
    if chosen is None:
        taken = {}
        for candidate in candidates:
            progress(f"timing {candidate.threads} threads" + (f" on cores {candidate.cpus}" if candidate.cpus else ""))
            taken[candidate] = _time(bundle, engine, candidate)
        chosen = fastest(taken)
        keep(path, asdict(chosen))
    _bind(chosen)
    return chosen


def settings(kinds: Sequence[Sequence[int]] | int) -> list[Cores]:
    """What is tried: all cores, the faster kinds of them, half of all, one.

    Args:
        kinds: the numbers of the usable cores of each kind, the fastest kind first; or how many there are, where the
            system tells no more or binds no process.
    """
    if isinstance(kinds, int):
        return [Cores(threads, None) for threads in dict.fromkeys((kinds, max(1, kinds // 2), 1))]
    usable = [cpu for kind in kinds for cpu in kind]
    found = [Cores(len(usable), tuple(sorted(usable)))]
    for count in range(len(kinds) - 1, 0, -1):
        faster = tuple(sorted(cpu for kind in kinds[:count] for cpu in kind))
        found.append(Cores(len(faster), faster))
    found.append(Cores(max(1, len(usable) // 2), tuple(sorted(usable))))
    found.append(Cores(1, tuple(sorted(kinds[0]))))
    return list(dict.fromkeys(found))


def fastest(taken_ns: dict[Cores, float]) -> Cores:
    """The setting that takes the least time; of those within `LEAST_GAIN` of it, the one of the fewest threads."""
    least = min(taken_ns.values())
    close = [setting for setting, taken in taken_ns.items() if taken * (1 - LEAST_GAIN) <= least]
    return min(close, key=lambda setting: (setting.threads, taken_ns[setting]))


def _kinds(root: Path = ROOT) -> list[list[int]] | int:
    """Usable cores by kind, as `settings` takes them."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    usable = os.sched_getaffinity(0)
    try:
        groups = [[cpu for cpu in group["cpus"] if cpu in usable] for group in core_groups(root)]
    except (Unreadable, OSError):
        return len(usable)
    kinds = [group for group in groups if group]
    return kinds if sum(map(len, kinds)) == len(usable) else len(usable)


def _time(bundle: Bundle, engine: str, setting: Cores) -> float:
    """Median nanoseconds of a forward of one token."""
    _bind(setting)
    session = Session(bundle, DecodeOptions(engine=engine, threads=setting.threads))
    target = session.cached("target", CacheOptions(), _CONTEXT)
    taken = []
    for _ in range(WARMUP + REPEATS):
        begin = perf_counter_ns()
        target.extend([0])
        taken.append(perf_counter_ns() - begin)
        target.commit(0)
    return median(taken[WARMUP:])


def _bind(setting: Cores) -> None:
    """Bind this thread, and those that it will start."""
    if setting.cpus is not None:
        os.sched_setaffinity(0, setting.cpus)


def _read(path: Path, candidates: Sequence[Cores]) -> Cores | None:
    """What was kept; None if there is nothing, or nothing that is still among the candidates."""
    try:
        kept = json.loads(path.read_bytes())
        cpus = None if kept["cpus"] is None else tuple(kept["cpus"])
        found = Cores(kept["threads"], cpus)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found in candidates else None
