"""Statistics of a series of raw samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np


class Summary(TypedDict):
    """What a series comes to; all but ``count`` and ``cv`` have the unit of the samples.

    ``p50`` is the median. ``std`` is the sample standard deviation (divided by ``count - 1``) and ``cv``, the
    coefficient of variation, is ``std / mean``; both are None where they are not defined.
    """

    count: int
    mean: float
    std: float | None
    cv: float | None
    min: float
    p50: float
    p90: float
    p99: float
    max: float


class Series(TypedDict):
    """Raw samples in the order they were taken, in milliseconds if no name says otherwise, and their statistics."""

    warmup: list[float]
    samples: list[float]
    statistics: Summary


def series(warmup: list[float], samples: list[float]) -> Series:
    """A series of at least one sample."""
    return Series(warmup=warmup, samples=samples, statistics=summarise(samples))


def summarise(samples: Sequence[float]) -> Summary:
    """Statistics of ``samples``, at least one.

    Quantiles are interpolated between the two samples next to them (Hyndman and Fan 1996, definition 7).
    """
    values = np.asarray(samples, np.float64)
    p50, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99)).tolist()
    mean = float(values.mean())
    std = float(values.std(ddof=1)) if values.size > 1 else None
    return Summary(
        count=values.size,
        mean=mean,
        std=std,
        cv=std / mean if std is not None and mean else None,
        min=float(values.min()),
        p50=p50,
        p90=p90,
        p99=p99,
        max=float(values.max()),
    )
