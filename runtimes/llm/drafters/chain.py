"""Drafters in the order they are asked; one that breaks its contract is dropped, and decoding goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import index
from time import perf_counter_ns
from typing import NamedTuple, TypeVar

import numpy as np

from edgepipe.errors import EdgepipeWarning
from edgepipe.runtimes.llm.drafters.drafter import Draft, Drafter

Found = TypeVar("Found")


class Source(NamedTuple):
    """A drafter that has something to propose.

    Attributes:
        name, free: of the drafter.
        evidence: how much speaks for its first guess.
        behind: tokens of the text that came since it was last asked, which it is to read first.
    """

    name: str
    evidence: int = 0
    free: bool = False
    behind: int = 0


class BrokenContract(Exception):
    """What a drafter did that it must not do."""


class Chain:
    """Drafters in order, and the checks that keep their mistakes from the text."""

    def __init__(
        self, drafters: Sequence[Drafter], vocab_size: int, clock: Callable[[], int] = perf_counter_ns
    ) -> None:
        """``vocab_size`` is the target's; names must differ."""
        self.vocab_size = vocab_size
        self._clock = clock
        self._drafters = {drafter.name: drafter for drafter in drafters}
        self._read = dict.fromkeys(self._drafters, 0)
        self._late: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._drafters)

    @property
    def names(self) -> list[str]:
        """The drafters that have not been dropped."""
        return list(self._drafters)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that the drafters hold."""
        return sum(drafter.kv_bytes for drafter in self._drafters.values())

    def sources(self, text: Sequence[int], only_free: bool = False) -> list[Source]:
        """Those that have something to propose after ``text``, in order; ``only_free`` leaves the others alone."""
        found = []
        for name, drafter in list(self._drafters.items()):
            if only_free and not drafter.free:
                continue
            evidence = self._guarded(name, partial(drafter.evidence, text), None)
            if evidence is not None:
                behind = len(text) - self._read[name]
                found.append(Source(name, evidence, drafter.free, min(behind, drafter.reach or behind)))
        return found

    def propose(self, source: Source, text: Sequence[int], count: int, limit_ns: float) -> Draft:
        """The source's draft of at most ``count`` tokens; an empty one if it fails, which drops the drafter.

        A call cannot be broken off: that it took longer than ``limit_ns`` is noticed when it returns. Once may be the
        fault of a busy machine, twice in a row is the drafter's.
        """

        def checked() -> Draft:
            begin = self._clock()
            draft = self._drafters[source.name].propose(text, count)
            taken = self._clock() - begin
            if taken <= limit_ns:
                self._late.discard(source.name)
            elif source.name in self._late:
                raise BrokenContract(f"took {taken / 1e6:.0f} ms, more than {limit_ns / 1e6:.0f} ms, twice in a row")
            else:
                self._late.add(source.name)
            return _checked(draft, count, self.vocab_size)

        self._read[source.name] = len(text)
        return self._guarded(source.name, checked, Draft([]))

    def reset(self) -> None:
        """The next text is another."""
        for name, drafter in list(self._drafters.items()):
            self._read[name] = 0
            self._guarded(name, drafter.reset, None)

    def _guarded(self, name: str, call: Callable[[], Found], otherwise: Found) -> Found:
        """What ``call`` returns; if it raises, the drafter is dropped."""
        try:
            return call()
        except Exception as error:  # whatever it is, decoding can go on without the drafter
            what = str(error) if isinstance(error, BrokenContract) else f"raised {type(error).__name__}: {error}"
            dropped = self._drafters.pop(name)
            with suppress(Exception):
                dropped.close()
            message = f"drafter {name} {' '.join(what.split())}: it is dropped, decoding goes on without it"
            warnings.warn(message, EdgepipeWarning, stacklevel=2)
            return otherwise


def _checked(draft: Draft, count: int, vocab_size: int) -> Draft:
    """``draft`` with plain integers as tokens.

    Raises:
        BrokenContract: it has too many tokens, one that is none, or a row that is no distribution with its token.
    """
    tokens, rows = list(map(index, draft.tokens)), draft.probabilities
    if len(tokens) > count:
        raise BrokenContract(f"proposed {len(tokens)} tokens, asked for {count}")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise BrokenContract(f"proposed token {token}, the target has {vocab_size}")
    if rows is None:
        return Draft(tokens)
    if len(rows) != len(tokens):
        raise BrokenContract(f"gave {len(rows)} distributions for {len(tokens)} tokens")
    for token, row in zip(tokens, rows, strict=True):
        if row.ndim != 1 or not token < row.size <= vocab_size:
            raise BrokenContract(f"gave a distribution of shape {list(row.shape)}, the target has {vocab_size} tokens")
        if not (row.min() >= 0 and abs(float(np.sum(row)) - 1) < 1e-3 and row[token] > 0):
            raise BrokenContract(f"gave numbers for token {token} that are no distribution it can be drawn from")
    return Draft(tokens, rows)
