"""Keys and values of one decoder in a buffer of fixed capacity, with exact rollback and eviction."""

from __future__ import annotations

import math

import numpy as np

from edgepipe.runtimes.llm.spec import DecoderSpec

# Bytes; what LiteRT asks of memory that it is to read in place.
ALIGNMENT = 64


class KVCache:
    """A fixed buffer of key and value rows, one slot per token, layer and KV head.

    Slots ``[0, length)`` are *committed*; the next ``pending`` slots hold rows of tokens fed since the last
    `commit`, which may still be rolled back. Keys are stored after RoPE, so the order of slots means nothing
    and eviction may move rows; ``positions`` remembers the true position of each.

    Attributes:
        rows: float32 ``[num_layers, 2, num_kv_heads, capacity, head_dim]``, keys at index 0 and values at 1. Keys and
            values of a layer are each contiguous, from a multiple of `ALIGNMENT` bytes on: engines read them in place.
        positions: int64 ``[num_layers, num_kv_heads, capacity]``, true position of the token in each slot.
        mass: float64 ``[num_layers, num_kv_heads, capacity]``, attention that each slot got from all committed
            tokens, summed over the query heads of its group (the accumulated score of H2O, Zhang et al. 2023,
            eq. 2); None if the cache is not ``scored``.
        widest: most tokens whose attention mass a ``scored`` cache has room for before they are committed.
        length: committed slots in use.
        pending: slots after those, not yet committed.
        next_position: number of tokens committed so far, evicted ones included; the position of the next one.
    """

    def __init__(self, spec: DecoderSpec, budget: int, widest: int, *, scored: bool = False) -> None:
        """Allocate ``budget + widest`` slots.

        Args:
            spec: the decoder whose rows are held.
            budget: most committed slots that are kept after eviction.
            widest: most pending slots, i.e. the largest prefill chunk or gamma + 1.
            scored: also keep attention mass.
        """
        capacity = budget + widest
        heads = (spec.num_layers, spec.num_kv_heads)
        self.capacity, self.widest = capacity, widest
        self.rows = _aligned_planes(spec.num_layers, 2, (spec.num_kv_heads, capacity, spec.head_dim))
        self.positions = np.zeros((*heads, capacity), np.int64)
        self.mass = np.zeros((*heads, capacity), np.float64) if scored else None
        self._new_mass = np.empty(spec.num_layers * spec.num_kv_heads * widest * capacity if scored else 0, np.float32)
        self._pending_mass: list[np.ndarray] = []
        self.length = self.pending = self.next_position = 0

    @property
    def used(self) -> int:
        """Slots that hold a committed or pending row."""
        return self.length + self.pending

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values allocated."""
        return self.rows.nbytes

    @property
    def evicted(self) -> bool:
        """Whether any committed token has been evicted."""
        return self.next_position != self.length

    def mass_rows(self, count: int) -> np.ndarray:
        """Room for the attention mass of ``count`` tokens about to be appended.

        Returns a contiguous float32 view ``[num_layers, num_kv_heads, count, used + count]`` for the engine to
        write into; it stays valid until the next `commit`.
        """
        start = sum(mass.size for mass in self._pending_mass)
        shape = (*self.positions.shape[:2], count, self.used + count)
        return self._new_mass[start : start + int(np.prod(shape))].reshape(shape)

    def append(self, count: int) -> None:
        """Note that an engine has written ``count`` rows at slots ``[used, used + count)``.

        If the cache is scored, the engine has also filled ``mass_rows(count)``.
        """
        if self.mass is not None:
            self._pending_mass.append(self.mass_rows(count))
        first = self.next_position + self.pending
        self.positions[:, :, self.used : self.used + count] = np.arange(first, first + count)
        self.pending += count

    def commit(self, count: int) -> None:
        """Keep the first ``count`` pending tokens and forget the others as if they had never been fed."""
        if self.mass is not None:
            end = self.length + count
            self.mass[:, :, self.length : end] = 0.0
            left = count
            for mass in self._pending_mass:
                kept = min(left, mass.shape[2])
                if kept:
                    columns = min(mass.shape[3], end)
                    self.mass[:, :, :columns] += mass[:, :, :kept, :columns].sum(axis=2, dtype=np.float64)
                left -= kept
            self._pending_mass.clear()
        self.length += count
        self.next_position += count
        self.pending = 0

    def evict(self, victims: np.ndarray) -> None:
        """Drop slots: the last live slots move into their places.

        Args:
            victims: int ``[num_layers, num_kv_heads, count]``, distinct slots below ``length`` in each row.
                Nothing may be pending.
        """
        kept = self.length - victims.shape[2]
        doomed = np.zeros((*victims.shape[:2], self.length), bool)
        np.put_along_axis(doomed, victims, True, axis=2)
        # Each (layer, head) has as many holes below `kept` as survivors at or above it, so both lists,
        # in row-major order, pair up head by head.
        layers, heads, holes = np.nonzero(doomed[:, :, :kept])
        survivors = np.nonzero(~doomed[:, :, kept:])[2] + kept
        self.rows[layers, :, heads, holes] = self.rows[layers, :, heads, survivors]
        self.positions[layers, heads, holes] = self.positions[layers, heads, survivors]
        if self.mass is not None:
            self.mass[layers, heads, holes] = self.mass[layers, heads, survivors]
        self.length = kept

    def follow(self, source: KVCache, sinks: int, budget: int) -> None:
        """Hold the rows of the first ``sinks`` tokens of ``source`` and of its latest, ``budget`` in all.

        Only rows that are not here yet are copied; pending ones are forgotten. Neither cache keeps mass, and
        ``source`` has evicted nothing.
        """
        end, recent = source.next_position, budget - sinks
        copied = min(sinks, self.next_position), max(sinks, self.next_position, end - recent)
        positions = np.r_[copied[0] : min(sinks, end), copied[1] : end]
        # Behind the sinks, a new token takes the place of the oldest.
        slots = np.where(positions < sinks, positions, sinks + (positions - sinks) % recent)
        self.rows[:, :, :, slots] = source.rows[:, :, :, positions]
        self.positions[:, :, slots] = positions
        self.length, self.next_position, self.pending = min(end, budget), end, 0

    def skip(self, count: int) -> None:
        """Pass over the next ``count`` tokens without reading them, as if they had been evicted at once."""
        self.next_position += count

    def truncate(self, length: int) -> None:
        """Forget all tokens from position ``length`` on.

        Only a cache that keeps no mass and has evicted nothing can be cut exactly.
        """
        if self.evicted or self.mass is not None:
            raise ValueError("a cache that has evicted tokens or keeps scores cannot be truncated exactly")
        self.length = self.next_position = min(length, self.length)
        self.pending = 0

    def clear(self) -> None:
        """Forget all tokens; the buffer stays."""
        self.length = self.pending = self.next_position = 0
        self._pending_mass.clear()


def _aligned_planes(layers: int, parts: int, plane: tuple[int, ...]) -> np.ndarray:
    """Zeros, float32 ``[layers, parts, *plane]``, whose planes start at multiples of `ALIGNMENT` bytes."""
    unit = ALIGNMENT // np.dtype(np.float32).itemsize
    size = math.prod(plane)
    stride = -(-size // unit) * unit
    memory = np.zeros(layers * parts * stride + unit, np.float32)
    start = -memory.ctypes.data % ALIGNMENT // memory.itemsize
    planes = memory[start : start + layers * parts * stride].reshape(layers, parts, stride)
    return planes[..., :size].reshape(layers, parts, *plane)
