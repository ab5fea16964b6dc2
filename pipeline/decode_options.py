"""How text is decoded, as the user says it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from edgepipe.errors import RecipeError
from edgepipe.runtimes.llm.drafters import DRAFTERS
from edgepipe.runtimes.llm.engines import ALIASES, ENGINES
from edgepipe.runtimes.llm.kv_policies import POLICIES
from edgepipe.runtimes.llm.sampling import SamplingParams

# Tokens that a target sees when it drafts for itself: with fewer it errs more, and hardly drafts faster.
SPARSE_BUDGET = "512"


@dataclass(frozen=True)
class CacheOptions:
    """How one decoder's KV cache is kept.

    ``budget`` is text as `parse_budget` reads it and belongs to an evicting ``policy``; ``recent`` and ``normalise``
    are H2O's, ``sinks`` is the window's.
    """

    policy: str = "full"
    budget: str | None = None
    recent: int | None = None
    normalise: bool = True
    sinks: int = 4

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise RecipeError(f"policy is {self.policy!r}: expected one of {', '.join(POLICIES)}")
        if self.recent is not None and self.policy != "h2o":
            raise RecipeError(f"recent belongs to policy h2o, and the policy is {self.policy}: leave out --recent")
        if (self.policy == "full") != (self.budget is None):
            raise RecipeError(
                f"policy {self.policy} {'needs a' if self.budget is None else 'takes no'} budget: "
                "give --policy h2o or window together with --budget (tokens, 20% or 64MiB)"
            )


@dataclass(frozen=True)
class DecodeOptions:
    """How text is decoded.

    Attributes:
        engine: a name from `ENGINES`, or litert for tflite; None takes the first of them that the bundle has files for
            and that is installed.
        threads: of the engine; None takes the machine's cores.
        chunk: prompt tokens that go through the model at once.
        drafter: names from `DRAFTERS`, separated by commas and asked in this order, or ``none``.
        gamma: most guesses per round; ``auto`` chooses each round what brings the most tokens per second.
        cache: how the target's KV cache is kept.
        draft_cache: how the draft's is; None: in full beside a full one, else in a window of the target's budget, so
            that memory stays constant for both; for ``sparse``, a window of `SPARSE_BUDGET`.
        sampling: how tokens are chosen.
    """

    engine: str | None = None
    threads: int | None = None
    chunk: int = 256
    drafter: str = "none"
    gamma: int | Literal["auto"] = "auto"
    cache: CacheOptions = field(default_factory=CacheOptions)
    draft_cache: CacheOptions | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        if self.engine in ALIASES:
            object.__setattr__(self, "engine", ALIASES[self.engine])
        if self.engine not in (None, *ENGINES):
            raise RecipeError(f"engine is {self.engine!r}: expected one of {', '.join(ENGINES)}")
        if set(self.drafters) - set(DRAFTERS) or len(set(self.drafters)) < len(self.drafters):
            raise RecipeError(
                f"drafter is {self.drafter!r}: expected one or more of {', '.join(DRAFTERS)}, each once and separated "
                "by commas, or none"
            )
        if "sparse" in self.drafters and self.cache.policy != "full":
            raise RecipeError(
                f"drafter sparse looks at a part of a full cache, and the policy is {self.cache.policy}: leave out "
                "--policy, or set --drafter lookup"
            )
        if "sparse" in self.drafters and self.own_window.policy != "window":
            raise RecipeError(
                f"drafter sparse looks at a window, and the draft's policy is {self.own_window.policy}: leave out "
                "--draft-policy, or set --draft-policy window with a --draft-budget"
            )
        cores = os.cpu_count() or 1
        for name, most in (("chunk", 2**16), ("gamma", 2**10), ("threads", cores)):
            value = getattr(self, name)
            if value is None or (name, value) == ("gamma", "auto"):
                continue
            if not isinstance(value, int) or not 1 <= value <= most:
                why = {"threads": ", the cores of this machine", "gamma": ", or auto"}.get(name, "")
                raise RecipeError(f"{name} is {value!r}: expected 1 to {most}{why}")

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters, in the order they are asked."""
        return () if self.drafter == "none" else tuple(self.drafter.split(","))

    @property
    def beside_target(self) -> CacheOptions:
        """How the draft's KV cache is kept."""
        if self.draft_cache is not None:
            return self.draft_cache
        return CacheOptions() if self.cache.budget is None else CacheOptions("window", self.cache.budget)

    @property
    def own_window(self) -> CacheOptions:
        """What of its own cache a target sees that drafts for itself."""
        return self.draft_cache or CacheOptions("window", SPARSE_BUDGET)
