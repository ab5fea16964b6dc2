"""What engines share whose graphs have static widths: the cache goes in, and the rows of the new tokens come out.

A graph takes a fixed number of tokens, so a forward is padded to the next larger one. Padding comes last: nothing that
is wanted attends to it, and its rows are not stored.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from edgepipe.errors import EngineError
from edgepipe.runtimes.llm.decoder import check_tokens
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.rope import cos_sin_tables
from edgepipe.runtimes.llm.spec import DecoderSpec

# Added to the scores of slots and rows that a token must not see: their softmax is 0, and nothing becomes NaN.
HIDDEN = np.float32(-1e30)


class Entry(NamedTuple):
    """One way into a file: a forward of ``width`` tokens that gives the logits of all, or of one if ``last_only``."""

    width: int
    last_only: bool = False
    scored: bool = False

    @property
    def name(self) -> str:
        """What the file calls it: ``width_5``, ``chunk_64``, ``width_5_scored``."""
        return f"{'chunk' if self.last_only else 'width'}_{self.width}{'_scored' if self.scored else ''}"

    @classmethod
    def all_of(cls, names: Iterable[str], scored: bool) -> list[Entry]:
        """The entries among ``names``, those with scores or those without."""
        found = (re.fullmatch(r"(width|chunk)_(\d+)(_scored)?", name) for name in names)
        entries = [cls(int(match[2]), match[1] == "chunk", match[3] is not None) for match in found if match]
        return [entry for entry in entries if entry.scored == scored]


class Feeds(NamedTuple):
    """What a graph reads beside the cache, for S tokens over C slots; the names are those of its inputs.

    ``tokens`` int32 ``[S]``. ``cos``, ``sin`` float32 ``[S, head_dim / 2]``. ``mask`` float32 ``[S, S + C]``: 0 where a
    token sees a new row or a slot, `HIDDEN` elsewhere. ``logit_rows`` int32 ``[1]``, the token whose logits are wanted;
    None where those of all are.
    """

    tokens: np.ndarray
    cos: np.ndarray
    sin: np.ndarray
    mask: np.ndarray
    logit_rows: np.ndarray | None


class Results(NamedTuple):
    """What a graph gives, all float32: ``logits`` ``[S or 1, V]``; ``rows``, new keys and values, of any shape that has
    the elements of ``[L, 2, Hkv, S, D]``; ``mass`` likewise of ``[L, Hkv, S, S + C]``, or None without scores.
    """

    logits: np.ndarray
    rows: np.ndarray
    mass: np.ndarray | None


class StaticWidthsDecoder(ABC):
    """A decoder of static widths; an engine runs its entries."""

    features = None
    reads_features = False

    def __init__(self, spec: DecoderSpec, entries: Sequence[Entry], scored: bool) -> None:
        self.spec = spec
        self.scored = scored
        self._entries = sorted(entries)
        self.widths: tuple[int, ...] = tuple(entry.width for entry in self._entries if not entry.last_only)

    @abstractmethod
    def run(self, entry: Entry, feeds: Feeds, cache: KVCache) -> Results:
        """Run one graph over the cache's slots; the results may be overwritten by the next run.

        Raises:
            EngineError: the engine fails.
        """

    def forward(
        self, cache: KVCache, tokens: Sequence[int], *, last_only: bool = False, features: np.ndarray | None = None
    ) -> np.ndarray:
        """See `edgepipe.runtimes.llm.decoder.Decoder.forward`; a long prompt takes several runs.

        Raises:
            EngineError: logits of more tokens are wanted than any graph takes, a token is not in the model's
                vocabulary, or the engine fails.
        """
        if (cache.mass is not None) != self.scored:
            raise ValueError("a scored cache needs the scored graphs, and a plain cache the plain ones")
        check_tokens(tokens, self.spec)
        if not last_only:
            return self._step(self._entry(len(tokens), last_only), cache, tokens)
        chunk = max(entry.width for entry in self._entries)
        for start in range(0, len(tokens), chunk):
            piece = tokens[start : start + chunk]
            logits = self._step(self._entry(len(piece), last_only), cache, piece)
        return logits[-1:]

    def _entry(self, count: int, last_only: bool) -> Entry:
        """The narrowest graph for ``count`` tokens."""
        for entry in self._entries:
            if count <= entry.width and (last_only or not entry.last_only):
                return entry
        raise EngineError(
            f"{count - 1} guesses a round need a graph of width {count}, the file has {_listed(self.widths)}: "
            f"{way_out(self.widths, count)}"
        )

    def _step(self, entry: Entry, cache: KVCache, tokens: Sequence[int]) -> np.ndarray:
        """One run; logits of ``tokens``, or of the last one only."""
        count, used, width = len(tokens), cache.used, entry.width
        padded = np.zeros(width, np.int32)
        padded[:count] = tokens
        cos, sin = cos_sin_tables(self.spec, width, cache.next_position + cache.pending)
        mask = np.full((width, width + cache.capacity), HIDDEN, np.float32)
        mask[:, :width][np.tri(width, dtype=bool)] = 0
        mask[:, width : width + used] = 0
        last = np.array([count - 1], np.int32) if entry.last_only else None
        results = self.run(entry, Feeds(padded, cos, sin, mask, last), cache)

        spec = self.spec
        rows = results.rows.reshape(spec.num_layers, 2, spec.num_kv_heads, width, spec.head_dim)
        cache.rows[:, :, :, used : used + count] = rows[:, :, :, :count]
        if results.mass is not None:
            mass = results.mass.reshape(spec.num_layers, spec.num_kv_heads, width, -1)[:, :, :count]
            of_tokens = cache.mass_rows(count)
            of_tokens[..., :used] = mass[..., width : width + used]
            of_tokens[..., used:] = mass[..., :count]
        cache.append(count)
        return results.logits if entry.last_only else results.logits[:count]


def cache_inputs(cache: KVCache) -> dict[str, np.ndarray]:
    """Every layer's keys and values, float32 ``[Hkv, C, D]``, by the names of a graph's inputs."""
    parts = zip(("keys", "values"), cache.rows.swapaxes(0, 1), strict=True)
    return {f"{part}_{layer}": plane for part, planes in parts for layer, plane in enumerate(planes)}


def way_out(widths: Sequence[int], count: int) -> str:
    """What to type where a round has ``count`` tokens, more than the widest of ``widths``, which ascend."""
    most = widths[-1] - 1
    fewer = f"--gamma {most} or less" if most else "--drafter none"
    return f"give {fewer}, or export with --widths {_listed([*widths, count], ',')}"


def _listed(numbers: Iterable[int], separator: str = ", ") -> str:
    return separator.join(map(str, numbers))
