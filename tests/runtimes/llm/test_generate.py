"""Text that may begin a stop string is held back until it is certain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgepipe.runtimes.llm.generate import HeldText


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 5), max_size=30),
)
def test_shows_the_text_up_to_the_first_stop_string(text: str, stops: list[str], cuts: list[int]) -> None:
    held = HeldText(stops)
    shown, rest = "", text
    for size in [*cuts, len(text) + 1]:
        piece, rest = rest[:size], rest[size:]
        shown += held.push(piece)
        # Nothing that turns out to belong to a stop string may have been shown.
        assert not any(stop in shown for stop in stops)
    shown += held.flush()
    # The stop string whose end comes first ends the text; of those, the one that began first.
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert held.stopped == bool(ends)
    if not ends:
        assert shown == text
    else:
        assert text.startswith(shown)
        assert any(text.startswith(stop, len(shown)) for stop in stops)
