"""ExecuTorch: XNNPACK's products, and keys and values written in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from edgepipe.errors import EngineError
from edgepipe.runtimes.executorch_binding import load_binding, open_program, use_threads
from edgepipe.runtimes.llm.decoder import check_tokens
from edgepipe.runtimes.llm.engines.static_widths import HIDDEN
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.rope import cos_sin_tables
from edgepipe.runtimes.llm.spec import DecoderSpec
from edgepipe.runtimes.vision.engine import first_line, unloadable
from edgepipe.runtimes.vision.engines.quiet import quiet

_OPERATORS = "executorch.extension.llm.custom_ops"
# Index of the first layer's keys among the inputs.
_CACHE = 5
# Bytes of the attention weights of one run, about: fewer tokens go through at once where the cache is large.
_SCORES_BYTES = 2**26


class ExecuTorchDecoder:
    """A decoder program (`edgepipe.exporters.llm.executorch`), whose methods take any number of tokens and slots.

    The method ``scored`` serves scored caches, ``plain`` the others.
    """

    widths = None
    features = None
    reads_features = False

    def __init__(self, model: Path, spec: DecoderSpec, *, threads: int | None = None, scored: bool = False) -> None:
        """Load a method of ``model``; by default ExecuTorch chooses ``threads``: the fast cores.

        Raises:
            MissingExtra: executorch is not installed.
            EngineError: executorch does not load, the program is of another shape, or another engine in this process
                has another number of threads.
            BundleError: the file is damaged.
        """
        self.spec = spec
        self.scored = scored
        self._torch, binding = load_binding()
        _load_operators(self._torch)
        use_threads(self, binding, threads)
        try:
            with quiet():
                self._program = open_program(binding, model)
                self._method = self._program.load_method("scored" if scored else "plain")
                meta = self._method.method_meta()
                shapes = [tuple(meta.input_tensor_meta(index).sizes()) for index in range(meta.num_inputs())]
                logits = tuple(meta.output_tensor_meta(0).sizes())
        except (RuntimeError, ValueError, OSError, MemoryError) as error:
            raise unloadable(model, error) from error
        cache = spec.num_layers * (4 if scored else 2)
        if len(shapes) != _CACHE + cache + scored or _shape(shapes[_CACHE]) != (spec.num_kv_heads, spec.head_dim):
            raise EngineError(
                f"{model}: the program does not have {spec.num_layers} layers of {spec.num_kv_heads} KV heads of "
                f"{spec.head_dim}: the bundle's files do not belong together, export it again"
            )
        if logits[1] != spec.num_logits:
            raise EngineError(
                f"{model}: the program does not have {spec.num_logits} logits: the bundle's files do not belong "
                "together, export it again"
            )
        (self._widest,), self._most_logits, self._most_slots = shapes[0], logits[0], shapes[_CACHE][1]
        self._views: WeakKeyDictionary[KVCache, list[Any]] = WeakKeyDictionary()
        self._room = np.empty(0, np.float32)

    def forward(
        self, cache: KVCache, tokens: Sequence[int], *, last_only: bool = False, features: np.ndarray | None = None
    ) -> np.ndarray:
        """See `edgepipe.runtimes.llm.decoder.Decoder.forward`; many tokens take several runs.

        Raises:
            EngineError: ExecuTorch fails, a token is not in the model's vocabulary, or the cache has more slots than
                the model's context.
        """
        if (cache.mass is not None) != self.scored:
            raise ValueError("a scored cache needs the scored method, and a plain cache the plain one")
        if cache.capacity > self._most_slots:
            raise EngineError(
                f"the cache has {cache.capacity} slots, and the file takes up to {self._most_slots}: give a smaller "
                "--budget"
            )
        check_tokens(tokens, self.spec)
        step = self._widest if last_only else min(self._widest, self._most_logits)
        if self.scored:
            step = min(step, max(1, _SCORES_BYTES // (4 * self.spec.num_layers * self.spec.num_heads * cache.capacity)))
        found = []
        for start in range(0, len(tokens), step):
            piece = tokens[start : start + step]
            logits = self._run(cache, piece, range(len(piece) - 1 if last_only else 0, len(piece)))
            found.append(logits.copy() if len(tokens) > step else logits)
        return found[-1] if last_only or len(found) == 1 else np.concatenate(found)

    def _run(self, cache: KVCache, tokens: Sequence[int], logit_rows: Sequence[int]) -> np.ndarray:
        """Logits of ``logit_rows``, which the next run overwrites."""
        width = len(tokens)
        angles = cos_sin_tables(self.spec, width, cache.next_position + cache.pending)
        inputs = [
            *(self._torch.tensor(list(values)) for values in (tokens, logit_rows)),
            *(self._tensor(np.concatenate([half, half], axis=1)[:, None]) for half in angles),
            self._torch.tensor(cache.used),
            *self._cache_views(cache),
        ]
        if self.scored:
            scores = self._scores(cache, width)
            inputs.insert(_CACHE + 2 * self.spec.num_layers, self._tensor(self._mask(cache, width)))
            inputs += [self._tensor(layer) for layer in scores]
        try:
            (logits,) = self._method(inputs, False)
        except RuntimeError as error:
            raise EngineError(f"ExecuTorch failed: {first_line(error)}") from error
        if self.scored:
            by_head = scores.reshape(*scores.shape[:2], width, -1, cache.capacity)
            by_head[..., : cache.used + width].sum(axis=3, out=cache.mass_rows(width))
        cache.append(width)
        return logits.numpy()

    def _cache_views(self, cache: KVCache) -> list[Any]:
        """Its planes, as the method wants them; the scored one wants keys twice, in two shapes."""
        if cache not in self._views:
            views = [self._tensor(plane[:, :, None]) for layer in cache.rows for plane in layer]
            self._views[cache] = views + [self._tensor(keys) for keys, _ in cache.rows if self.scored]
        return self._views[cache]

    def _mask(self, cache: KVCache, width: int) -> np.ndarray:
        """``[S * G, C]``: what the query heads of a KV head see of the slots."""
        mask = np.full((width, cache.capacity), HIDDEN, np.float32)
        mask[:, : cache.used] = 0
        mask[:, cache.used : cache.used + width][np.tri(width, dtype=bool)] = 0
        return mask.repeat(self.spec.num_heads // self.spec.num_kv_heads, axis=0)

    def _scores(self, cache: KVCache, width: int) -> np.ndarray:
        """Room for attention weights, ``[L, Hkv, S * G, 1, C]``."""
        spec = self.spec
        rows = width * spec.num_heads // spec.num_kv_heads
        shape = (spec.num_layers, spec.num_kv_heads, rows, 1, cache.capacity)
        if self._room.size < math.prod(shape):
            self._room = np.empty(math.prod(shape), np.float32)
        return self._room[: math.prod(shape)].reshape(shape)

    def _tensor(self, array: np.ndarray) -> Any:
        """``array`` itself, as a tensor whose strides are those of its shape, also along axes of length 1."""
        return self._torch.from_numpy(array.reshape(-1)).view(array.shape)


def _shape(cache: tuple[int, ...]) -> tuple[int, int]:
    """KV heads and channels of a cache's shape."""
    return cache[0], cache[-1]


def _load_operators(torch: Any) -> None:
    """Attention over a cache, and writing to one, for the runtime in the binding."""
    spec = find_spec(_OPERATORS)
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        for library in Path(folder).glob("*custom_ops_aot_lib.*"):
            torch.ops.load_library(str(library))
            return
    raise EngineError(
        f"executorch has no {_OPERATORS}, its operators for language models: pip install --force-reinstall executorch"
    )
