"""What a forward of S tokens costs against one of a single token, which decides whether guessing ahead can pay."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np

from edgepipe.pipeline.decode_timing import Clock
from edgepipe.runtimes.llm.decoder import CachedDecoder


def time_widths(
    target: CachedDecoder,
    prompt: Sequence[int],
    following: Sequence[int],
    warmup: int,
    repeats: int,
    clock: Clock = perf_counter_ns,
) -> dict[int, list[int]]:
    """Time forwards of 1 to ``len(following)`` tokens after ``prompt``.

    Every forward is rolled back, so that all see the same cache. In each repetition the widths come in another
    order (drawn with a fixed seed), so that a drift of the machine spreads over all of them.

    Returns:
        For each width its ``warmup + repeats`` times in nanoseconds, in the order they were taken.
    """
    target.prefill(prompt)
    random = np.random.default_rng(0)
    times: dict[int, list[int]] = {width: [] for width in range(1, len(following) + 1)}
    for _ in range(warmup + repeats):
        for width in (1 + random.permutation(len(following))).tolist():
            begin = clock()
            target.extend(following[:width])
            times[width].append(clock() - begin)
            target.commit(0)
    return times
