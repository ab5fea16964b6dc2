"""Which graph runs, what it is fed, and what becomes of its rows: with a graph that writes down what it gets."""

from __future__ import annotations

import numpy as np
import pytest

from edgepipe.errors import EngineError
from edgepipe.runtimes.llm.engines.static_widths import HIDDEN, Entry, Feeds, Results, StaticWidthsDecoder
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.rope import cos_sin_tables
from edgepipe.runtimes.llm.spec import DecoderSpec, RopeSpec

SPEC = DecoderSpec("llama", 2, 12, 8, 6, 3, 4, 10, 64, 1e-5, RopeSpec(1e4), True)
PLAIN = [Entry(1), Entry(5), Entry(16, last_only=True)]


class Recorder(StaticWidthsDecoder):
    """Logits, rows and mass are numbers that tell their token: rows and mass hold the position of it in the run."""

    def __init__(self, entries: list[Entry] = PLAIN, scored: bool = False) -> None:
        super().__init__(SPEC, entries, scored)
        self.ran: list[tuple[Entry, Feeds]] = []

    def run(self, entry: Entry, feeds: Feeds, cache: KVCache) -> Results:
        self.ran.append((entry, feeds))
        width, capacity = entry.width, cache.capacity
        numbers = np.arange(width, dtype=np.float32)
        logits = np.repeat(feeds.tokens[:, None], 10, axis=1).astype(np.float32)
        rows = np.broadcast_to(numbers[:, None], (2, 2, 3, width, 4))
        columns = np.arange(width + capacity, dtype=np.float32)
        mass = np.broadcast_to(100 * numbers[:, None] + columns, (2, 3, width, width + capacity))
        if feeds.logit_rows is not None:
            logits = logits[feeds.logit_rows]
        return Results(logits, rows.reshape(12, width, 4), mass.reshape(6, width, -1) if self.scored else None)


@pytest.mark.parametrize(
    ("count", "last_only", "entries"),
    [
        (1, False, [Entry(1)]),
        (1, True, [Entry(1)]),
        (2, False, [Entry(5)]),
        (5, False, [Entry(5)]),
        (3, True, [Entry(5)]),
        (6, True, [Entry(16, True)]),
        (16, True, [Entry(16, True)]),
        (21, True, [Entry(16, True), Entry(5)]),
        (33, True, [Entry(16, True), Entry(16, True), Entry(1)]),
    ],
)
def test_the_narrowest_graph_runs_and_a_long_prompt_takes_several(
    count: int, last_only: bool, entries: list[Entry]
) -> None:
    decoder, cache = Recorder(), KVCache(SPEC, 40, 40)
    tokens = [number % 10 for number in range(count)]
    logits = decoder.forward(cache, tokens, last_only=last_only)
    assert [entry for entry, _ in decoder.ran] == entries
    assert logits[:, 0].tolist() == (tokens[-1:] if last_only else tokens)
    assert cache.pending == count
    assert cache.positions[0, 0, :count].tolist() == list(range(count))


def test_a_run_is_padded_and_sees_live_slots_and_earlier_tokens_only() -> None:
    decoder, cache = Recorder(), KVCache(SPEC, 8, 5)
    decoder.forward(cache, [1, 2, 3], last_only=True)
    cache.commit(2)
    decoder.forward(cache, [7, 8])
    entry, feeds = decoder.ran[-1]
    assert entry == Entry(5)
    assert feeds.tokens.tolist() == [7, 8, 0, 0, 0]
    expected = np.full((5, 5 + 13), HIDDEN)
    for row in range(5):
        expected[row, : row + 1] = 0
        expected[row, 5:7] = 0  # the two committed slots; the third was rolled back
    np.testing.assert_array_equal(feeds.mask, expected)
    cos, sin = cos_sin_tables(SPEC, 5, 2)
    np.testing.assert_array_equal(feeds.cos, cos)
    np.testing.assert_array_equal(feeds.sin, sin)


def test_angles_are_those_of_true_positions_after_an_eviction() -> None:
    decoder, cache = Recorder(), KVCache(SPEC, 8, 5)
    decoder.forward(cache, [1, 2, 3], last_only=True)
    cache.commit(3)
    cache.evict(np.zeros((2, 3, 2), int) + np.arange(2))
    decoder.forward(cache, [4])
    np.testing.assert_array_equal(decoder.ran[-1][1].cos, cos_sin_tables(SPEC, 1, 3)[0])
    assert (decoder.ran[-1][1].mask == 0).tolist() == [[True, True] + 12 * [False]]


def test_rows_of_tokens_are_stored_and_those_of_padding_are_not() -> None:
    decoder, cache = Recorder(), KVCache(SPEC, 8, 5)
    cache.rows[...] = -1
    decoder.forward(cache, [1])
    cache.commit(1)
    decoder.forward(cache, [1, 2, 3])
    assert cache.rows[1, 1, 2, :, 3].tolist() == [0, 0, 1, 2] + 9 * [-1]


def test_mass_goes_from_new_rows_and_slots_to_slots_in_order() -> None:
    decoder = Recorder([Entry(1, scored=True), Entry(5, scored=True)], scored=True)
    cache = KVCache(SPEC, 8, 5, scored=True)
    decoder.forward(cache, [1, 2, 3])
    cache.commit(3)
    cache.mass[...] = 0
    decoder.forward(cache, [4, 5])
    cache.commit(2)
    # Token i gave 100 i + column, its columns being five new rows and then the slots.
    slots = [100 + 2 * (5 + slot) for slot in range(3)]
    assert cache.mass[1, 2, :5].tolist() == [*slots, 100 + 2 * 0, 100 + 2 * 1]


def test_more_guesses_than_any_graph_takes_name_the_flags() -> None:
    decoder, cache = Recorder(), KVCache(SPEC, 20, 20)
    with pytest.raises(EngineError, match=r"7 guesses .* width 8, the file has 1, 5: .*--gamma 4 .*--widths 1,5,8"):
        decoder.forward(cache, [1] * 8)
    assert decoder.widths == (1, 5)
    assert cache.pending == 0
    with pytest.raises(EngineError, match=r"1 guesses .* width 2, the file has 1: give --drafter none, .*--widths 1,2"):
        Recorder([Entry(1)]).forward(cache, [1] * 2)


def test_a_token_that_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(EngineError, match="beyond the model's 10"):
        Recorder().forward(KVCache(SPEC, 8, 5), [10])


def test_a_scored_cache_needs_scored_graphs() -> None:
    with pytest.raises(ValueError, match="scored"):
        Recorder().forward(KVCache(SPEC, 8, 5, scored=True), [1])


def test_entries_are_read_from_the_names_of_a_file() -> None:
    entries = [Entry(1), Entry(16, True), Entry(5, scored=True), Entry(16, True, True)]
    names = [entry.name for entry in entries]
    assert names == ["width_1", "chunk_16", "width_5_scored", "chunk_16_scored"]
    assert Entry.all_of([*names, "main", "width_x"], scored=False) == entries[:2]
    assert Entry.all_of(names, scored=True) == entries[2:]
