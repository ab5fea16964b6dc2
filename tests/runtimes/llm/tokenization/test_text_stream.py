"""A stream of tokens gives the text of them all, whole characters at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepipe.runtimes.llm.tokenizer import TextStream, load_tokenizer

TEXT = "Hello  world\n👩‍👩‍👧‍👦 東京 𠮷 안녕 é e\u0301 नमस्ते <|im_end|> ▁x  \t end "


def stream(tokenizer: Any, ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    text = TextStream(tokenizer, skip_special_tokens)
    return [*(text.push(id) for id in ids), text.flush()]


@pytest.mark.parametrize("backend", ["python", "rust"])
def test_streams_the_corpus(pair: Any, backend: Any) -> None:
    tokenizer = load_tokenizer(pair.folder, backend)
    ids = pair.theirs.encode(TEXT).ids
    for skip in (True, False):
        pieces = stream(tokenizer, ids, skip)
        assert "".join(pieces) == pair.ours.decode(ids, skip)
        if pair.decode_alike(ids):
            assert "".join(pieces) == pair.theirs.decode(ids, skip_special_tokens=skip)
        assert "\ufffd" not in "".join(pieces)
        # Most tokens give their text at once.
        assert sum(map(bool, pieces[:-1])) > 10


@settings(max_examples=100)
@given(data=st.data())
def test_the_pieces_make_the_text_of_any_ids(pair: Any, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, pair.ours.vocab_size + 1), max_size=20))
    streamed, whole = "".join(stream(pair.ours, ids)), pair.ours.decode(ids)
    # Only invalid runs of byte tokens may differ, and only in that whole characters survive.
    if "\ufffd" not in whole or "<0x00>" not in pair.theirs.get_vocab():
        assert streamed == whole


@settings(max_examples=200)
@given(text=st.text("aé東👍\u200d🏽 ", min_size=1, max_size=8))
def test_bytes_come_out_as_soon_as_a_character_is_whole(make_pair: Callable[[str], Any], text: str) -> None:
    for style, spell in (("gpt2", None), ("llama2", "<0x{:02X}>")):
        tokenizer = make_pair(style).ours
        if spell is None:
            from tokenizers.pre_tokenizers import ByteLevel

            spelt = list(ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0])
        else:
            spelt = [spell.format(byte) for byte in text.encode()]
        pieces = iter(stream(tokenizer, [tokenizer.id(token) for token in spelt], skip_special_tokens=False))
        first = True
        for character in text:
            *waiting, last = (next(pieces) for _ in character.encode())
            assert not any(waiting)
            # The first space is the one that SentencePiece prepends.
            assert last == ("" if first and character == " " and style == "llama2" else character)
            first = False
        assert next(pieces) == ""


def test_a_whole_character_survives_an_invalid_run(make_pair: Callable[[str], Any]) -> None:
    tokenizer = make_pair("llama2").ours
    ids = [tokenizer.id(f"<0x{byte:02X}>") for byte in (0xE4, 0xBD, 0xA0, 0xFF, 0xE4, 0xBD)]
    assert stream(tokenizer, ids) == ["", "", "你", "\ufffd", "", "", "\ufffd"]
    assert tokenizer.decode(ids) == "\ufffd" * 6
    cut_short = [*ids[:2], tokenizer.id("a")]
    assert stream(tokenizer, cut_short) == ["", "", "\ufffda", ""]


@pytest.mark.parametrize("style", ["llama2", "metaspace"])
def test_only_the_first_space_of_sentencepiece_is_dropped(make_pair: Callable[[str], Any], style: str) -> None:
    tokenizer = make_pair(style).ours
    the = tokenizer.id("▁the")
    text = TextStream(tokenizer)
    assert [text.push(the), text.push(the), text.flush()] == ["the", " the", ""]
    assert text.push(the) == "the"  # after a flush, another text


def test_without_a_decoder_spaces_separate_tokens(make_pair: Callable[[str], Any]) -> None:
    tokenizer = make_pair("words").ours
    ids = [tokenizer.id("a"), tokenizer.id("<s>"), tokenizer.id("b")]
    assert stream(tokenizer, ids) == ["a", "", " b", ""]
    assert stream(tokenizer, ids, skip_special_tokens=False) == ["a", " <s>", " b", ""]
