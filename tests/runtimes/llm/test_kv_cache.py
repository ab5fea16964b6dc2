"""The cache against a list of (position, row, mass) per layer and head that is edited the plain way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepipe.runtimes.llm.kv_cache import ALIGNMENT, KVCache
from edgepipe.runtimes.llm.spec import DecoderSpec, RopeSpec

SPEC = DecoderSpec("llama", 2, 12, 8, 6, 3, 4, 10, 64, 1e-5, RopeSpec(1e4), True)
HEADS = [(layer, head) for layer in range(SPEC.num_layers) for head in range(SPEC.num_kv_heads)]


def feed(cache: KVCache, random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray | None]:
    """What an engine does: write rows and mass behind the used slots, then append."""
    rows = random.normal(size=(SPEC.num_layers, 2, SPEC.num_kv_heads, count, SPEC.head_dim)).astype(np.float32)
    cache.rows[:, :, :, cache.used : cache.used + count] = rows
    mass = None
    if cache.mass is not None:
        mass = cache.mass_rows(count)
        mass[:] = random.random(mass.shape)
        for row in range(count):
            mass[:, :, row, cache.used + row + 1 :] = 0.0  # causal
        mass = mass.copy()
    cache.append(count)
    return rows, mass


class Ledger:
    """Per layer and head, a list of [position, row, mass]."""

    def __init__(self) -> None:
        self.entries = {key: [] for key in HEADS}
        self.next_position = 0

    def commit(self, fed: list[tuple[np.ndarray, np.ndarray | None]], count: int, slots: dict) -> None:
        left = count
        for rows, mass in fed:
            kept = min(left, rows.shape[3])
            left -= kept
            for row in range(kept):
                for layer, head in HEADS:
                    entries = self.entries[layer, head]
                    entries.append([self.next_position, rows[layer, :, head, row], 0.0])
                    if mass is not None:
                        # Column j of the mass is the token in slot j at that time.
                        order = slots[layer, head] + list(range(slots["next"], slots["next"] + mass.shape[3]))
                        by_position = {entry[0]: entry for entry in entries}
                        for column, position in enumerate(order[: mass.shape[3]]):
                            if position in by_position:
                                by_position[position][2] += float(mass[layer, head, row, column])
                self.next_position += 1


@settings(max_examples=60)
@given(st.data(), st.booleans(), st.integers(0, 2**32 - 1))
def test_matches_a_plain_ledger(data: st.DataObject, scored: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    budget, widest = 12, 6
    cache = KVCache(SPEC, budget, widest, scored=scored)
    ledger = Ledger()
    for _ in range(data.draw(st.integers(1, 12))):
        slots: dict = {(la, h): cache.positions[la, h, : cache.length].tolist() for la, h in HEADS}
        slots["next"] = cache.next_position
        fed = []
        while cache.pending < widest and (not fed or data.draw(st.booleans())):
            fed.append(feed(cache, random, data.draw(st.integers(1, widest - cache.pending))))
        count = data.draw(st.integers(0, cache.pending))
        cache.commit(count)
        ledger.commit(fed, count, slots)
        excess = cache.length - data.draw(st.integers(1, budget))
        if excess > 0:
            victims = np.stack([random.permutation(cache.length)[:excess] for _ in HEADS], dtype=np.int64).reshape(
                SPEC.num_layers, SPEC.num_kv_heads, excess
            )
            for (layer, head), doomed in zip(HEADS, victims.reshape(-1, excess), strict=True):
                gone = set(cache.positions[layer, head, doomed].tolist())
                ledger.entries[layer, head] = [e for e in ledger.entries[layer, head] if e[0] not in gone]
            cache.evict(victims)

        assert cache.next_position == ledger.next_position
        assert cache.pending == 0
        for layer, head in HEADS:
            expected = {entry[0]: entry for entry in ledger.entries[layer, head]}
            found = cache.positions[layer, head, : cache.length].tolist()
            assert sorted(found) == sorted(expected)
            for slot, position in enumerate(found):
                np.testing.assert_array_equal(cache.rows[layer, :, head, slot], expected[position][1])
                if cache.mass is not None:
                    np.testing.assert_allclose(cache.mass[layer, head, slot], expected[position][2], rtol=1e-6)


def test_truncate_is_refused_where_it_cannot_be_exact() -> None:
    random = np.random.default_rng(0)
    plain = KVCache(SPEC, 8, 4)
    feed(plain, random, 4)
    plain.commit(4)
    plain.truncate(2)
    assert (plain.length, plain.next_position) == (2, 2)
    plain.evict(np.zeros((SPEC.num_layers, SPEC.num_kv_heads, 1), np.int64))
    with pytest.raises(ValueError, match="evicted"):
        plain.truncate(1)
    with pytest.raises(ValueError, match="scores"):
        KVCache(SPEC, 8, 4, scored=True).truncate(0)


def test_allocates_exactly_budget_and_widest_forward() -> None:
    cache = KVCache(SPEC, 100, 28)
    assert cache.nbytes == 128 * SPEC.kv_bytes_per_token == 128 * 2 * 2 * 3 * 4 * 4


@settings(max_examples=60)
@given(st.data(), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_follows_another_cache(data: st.DataObject, budget: int, seed: int) -> None:
    """Sinks and the latest tokens, row for row, however much came since the last time; pending rows are forgotten."""
    random = np.random.default_rng(seed)
    sinks = data.draw(st.integers(0, budget - 1))
    source, follower = KVCache(SPEC, 60, 6), KVCache(SPEC, budget, 3)
    for _ in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(0, 3))):
            feed(source, random, data.draw(st.integers(1, 6)))
            source.commit(data.draw(st.integers(0, min(source.pending, 60 - source.length))))
        follower.follow(source, sinks, budget)
        end = source.next_position
        assert (follower.length, follower.pending, follower.next_position) == (min(end, budget), 0, end)
        positions = follower.positions[:, :, : follower.length]
        expected = sorted({*range(min(sinks, end)), *range(max(0, end - (budget - sinks)), end)})
        assert (np.sort(positions, axis=2) == expected).all()
        np.testing.assert_array_equal(follower.rows[:, :, :, : follower.length], source.rows[:, :, :, positions[0, 0]])
        feed(follower, random, data.draw(st.integers(1, 3)))


@pytest.mark.parametrize("budget", [3, 8, 61])
def test_keys_and_values_of_a_layer_are_each_contiguous_and_aligned(budget: int) -> None:
    cache = KVCache(SPEC, budget, 4)
    assert cache.rows.shape == (SPEC.num_layers, 2, SPEC.num_kv_heads, budget + 4, SPEC.head_dim)
    for planes in cache.rows:
        for plane in planes:
            assert plane.flags.c_contiguous
            assert plane.ctypes.data % ALIGNMENT == 0
            plane += 1
    assert (cache.rows == 1).all()
