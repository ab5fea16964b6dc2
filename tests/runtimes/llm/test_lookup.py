"""Prompt lookup forgets what lies behind its span, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgepipe.runtimes.llm.drafters.lookup import Lookup


def searched(text: list[int], count: int, span: int) -> list[int]:
    """The same by searching the text backwards: longest n-gram first, most recent match first."""
    for size in (4, 3, 2):
        for follower in range(len(text) - 1, max(size - 1, len(text) - 1 - span), -1):
            if size < len(text) and text[follower - size : follower] == text[-size:]:
                copied = list(text)
                for offset in range(count):
                    copied.append(copied[follower + offset])
                return copied[len(text) :]
    return []


@given(st.lists(st.integers(0, 3), min_size=2, max_size=120), st.integers(1, 40), st.integers(1, 6))
def test_proposals_are_those_of_a_plain_search(text: list[int], span: int, count: int) -> None:
    lookup = Lookup(span=span)
    for length in range(2, len(text) + 1):
        assert lookup.propose(text[:length], count).tokens == searched(text[:length], count, span)


def test_the_index_stops_growing() -> None:
    text = [number * 7919 % 1009 for number in range(3000)]
    lookup = Lookup(span=100)
    for length in range(500, 3001, 500):
        lookup.propose(text[:length], 4)
        assert len(lookup._followers) <= 3 * 100
