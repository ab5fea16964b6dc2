"""What a forward of S tokens costs against one of a single token, which decides whether guessing ahead can pay."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np

from edgepipe.pipeline.decode_timing import Clock
from edgepipe.runtimes.llm.decoder import CachedDecoder


def time_widths(
    targets: Sequence[CachedDecoder],
    prompt: Sequence[int],
    following: Sequence[int],
    warmup: int,
    repeats: int,
    clock: Clock = perf_counter_ns,
) -> list[dict[int, list[int]]]:
    """Time forwards of 1 to ``len(following)`` tokens after ``prompt``, of each target as far as it is that wide.

    Every forward is rolled back, so that all see the same cache. In each repetition the widths come in another
    order (drawn with a fixed seed), and the targets take turns, so that a drift of the machine spreads over all.

    Returns:
        For each target, and each width, ``warmup + repeats`` times in nanoseconds, in the order they were taken.
    """
    for target in targets:
        target.prefill(prompt)
    random = np.random.default_rng(0)
    times: list[dict[int, list[int]]] = []
    for target in targets:
        widest = min([len(following), *(target.decoder.widths or ())[-1:]])
        times.append({width: [] for width in range(1, widest + 1)})
    for _ in range(warmup + repeats):
        for width in (1 + random.permutation(len(following))).tolist():
            for target, taken in zip(targets, times, strict=True):
                if width in taken:
                    begin = clock()
                    target.extend(following[:width])
                    taken[width].append(clock() - begin)
                    target.commit(0)
    return times
