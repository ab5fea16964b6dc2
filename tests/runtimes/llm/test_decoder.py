"""What cannot be decoded is an error that says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import ContextError, EngineError
from edgepipe.runtimes.llm.kv_policies.full import Full
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder


@pytest.mark.every_engine
def test_no_prompt_and_too_long_a_prompt_are_errors(cached: Callable[..., Any]) -> None:
    decoder = SpeculativeDecoder(cached("llama", Full(20)), Sampler(SamplingParams()))
    with pytest.raises(ContextError, match="no tokens"):
        decoder.start([])
    with pytest.raises(ContextError, match="longer than the cache"):
        decoder.start([1] * 30)


@pytest.mark.every_engine
def test_logits_that_are_not_numbers_are_an_error(cached: Callable[..., Any]) -> None:
    target = cached("llama")
    target.prefill([1, 2, 3])
    target.cache.rows[1, 1, :, 1] = np.nan
    with pytest.raises(EngineError, match="not finite"):
        target.extend([4])
