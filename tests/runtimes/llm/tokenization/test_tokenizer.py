"""Our reader of tokenizer.json gives what the `tokenizers` package gives."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepipe.errors import TokenizerError
from edgepipe.runtimes.llm.tokenizer import load_tokenizer, require_same_tokenizer

TEXTS = [
    "",
    " ",
    "\n",
    "Hello, world! It's 12345 o'clock; THEY'VE gone, I'LL be 'ſ here.",
    "  leading, trailing  \t \r\n\r\n \u00a0\u2003\u3000 \x1c\x1d\x85 end \x0b\x0c ",
    "👩‍👩‍👧‍👦👍🏽🇩🇪🇫🇷🤷🏿‍♀️ ❤️‍🔥😀x😀",
    "東京は日本の首都です。人工智能,中文没有空格。ひらがな カタカナ 𠮷野家",
    "한국어 문장 안녕하세요 ㄱㄴㄷ 각 각",
    "مرحبا بالعالم ١٢٣ שָׁלוֹם नमस्ते १२३ ภาษาไทย",
    "e\u0301 é E\u0301 É a\u0308\u0323 Å \u212b ﬁ ① ½ ² Ⅷ ˚ \u0301x",
    "def f(x):\n    if x:\n        return x**2  # ok\n\n\n\treturn {'a': [1,2]}\r\n",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|><|im_end|></s><s> <unk><|endoftext|>x<|im_start",
    "a <mask> b<mask>  <mask>\n<|pad|>  c <|pad|><mask> <both>\t<both>x <BOTH> <tool>é <Tool>",
    "Word Words aWord _Word Word_ ²Word Word. éWord e\u0301Word \u200dWord  É E\u0301  Éx",
    "1 12 123 1234 12345678901234567890 1.5e-10 ٣٤ 1a2b3",
    "▁under ▁▁two ▁ ▁ x▁y Ġabc Ċ <0xE4><0xBD>",
    "\x00\x01\x7f\u200b\u200c\u200d\ufeff\ufffd\U000f0000\U0010ffff\u0378",
    "İstanbul ΑΣΣ Σ ǅ ŉ ẞ ﷺ ㍿",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 3,
]
FRAGMENTS = [fragment for text in TEXTS for fragment in text.split(" ")] + [
    " ",
    "  ",
    "   ",
    "\n",
    "\t",
    "\r\n",
    "'s",
    "'LL",
    "\u00a0",
    "1",
]


@cache
def _same_unicode(character: str) -> bool:
    """Whether Python and `tokenizers` (with an old Unicode for some things) mean the same by a character."""
    from tokenizers import normalizers, pre_tokenizers

    is_punctuation = len(pre_tokenizers.Punctuation().pre_tokenize_str(f"x{character}")) == 2
    if is_punctuation != unicodedata.category(character).startswith("P") and not character.isascii():
        return False
    for form in ("NFC", "NFKC"):
        for text in (character, f"a{character}\u0301", f"a\u0301{character}", f"a\u0345{character}\u0323"):
            if getattr(normalizers, form)().normalize_str(text) != unicodedata.normalize(form, text):
                return False
    return True


# Nor characters that this Python's Unicode does not know yet: they may be classed otherwise (see unicode_sets).
CHARACTERS = st.characters(exclude_categories=["Cs", "Cn"]).filter(_same_unicode)
ANY_TEXT = st.lists(
    st.sampled_from(FRAGMENTS) | st.text(CHARACTERS, max_size=4) | st.text("ab 1.\n", max_size=6), max_size=12
).map("".join)


def assert_same(pair: Any, text: str) -> None:
    for add_special_tokens in (True, False):
        ids = pair.ours.encode(text, add_special_tokens)
        reference = pair.theirs.encode(text, add_special_tokens=add_special_tokens)
        assert ids == reference.ids
        for skip in (True, False) if pair.decode_alike(ids) else ():
            assert pair.ours.decode(ids, skip) == pair.theirs.decode(ids, skip_special_tokens=skip)


def test_encodes_and_decodes_the_corpus_as_tokenizers_does(pair: Any) -> None:
    for text in TEXTS:
        assert_same(pair, text)
    assert_same(pair, " ".join(TEXTS))


@settings(max_examples=100)
@given(text=ANY_TEXT)
def test_encodes_and_decodes_any_text_as_tokenizers_does(pair: Any, text: str) -> None:
    assert_same(pair, text)


@settings(max_examples=50)
@given(data=st.data())
def test_decodes_any_ids_as_tokenizers_does(pair: Any, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, pair.ours.vocab_size + 2), max_size=20))
    for skip in (True, False) if pair.decode_alike(ids) else ():
        assert pair.ours.decode(ids, skip) == pair.theirs.decode(ids, skip_special_tokens=skip)


def test_vocabulary_is_that_of_tokenizers(pair: Any) -> None:
    vocabulary = pair.theirs.get_vocab(with_added_tokens=True)
    assert {pair.ours.token(id): id for id in range(pair.ours.vocab_size)} == vocabulary
    assert all(pair.ours.id(token) == id for token, id in vocabulary.items())
    added = pair.theirs.get_added_tokens_decoder()
    assert pair.ours.special_ids == {id for id, token in added.items() if token.special}
    assert pair.ours.id("no such token") is None
    with pytest.raises(TokenizerError, match=f"the vocabulary ends at {len(vocabulary) - 1}"):
        pair.ours.token(len(vocabulary))


def test_the_adapter_of_tokenizers_agrees(pair: Any) -> None:
    adapter = load_tokenizer(pair.folder, "rust")
    require_same_tokenizer(pair.ours, adapter)
    assert adapter.vocab_size == pair.ours.vocab_size
    assert adapter.id("<s>") == pair.ours.id("<s>")
    for text in TEXTS:
        ids = adapter.encode(text)
        assert ids == pair.ours.encode(text)
        assert adapter.decode(ids) == pair.ours.decode(ids)


@settings(max_examples=300)
@given(data=st.data())
def test_merges_in_any_order_as_tokenizers_does(data: st.DataObject) -> None:
    """Trained merges are orderly; these are not: short tokens may come after the long ones made of them."""
    from tokenizers import Tokenizer as Tokenizers

    from edgepipe.runtimes.llm.tokenization.python import PythonTokenizer

    tokens = data.draw(st.lists(st.text("ab▁", min_size=2, max_size=4), unique=True, max_size=14))
    vocab = {token: id for id, token in enumerate(["a", "b", "▁", *tokens])}
    splits = [[token[:cut], token[cut:]] for token in tokens for cut in range(1, len(token))]
    merges = data.draw(st.permutations([pair for pair in splits if pair[0] in vocab and pair[1] in vocab]))
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": data.draw(st.booleans())}
    spec = {"version": "1.0", "added_tokens": [], "model": model}
    theirs = Tokenizers.from_str(json.dumps(spec))
    text = data.draw(st.text("aab▁", max_size=30))
    assert PythonTokenizer(spec).encode(text) == theirs.encode(text).ids


def test_reads_merges_and_metaspace_of_older_files(make_pair: Callable[[str], Any], tmp_path: Path) -> None:
    spec = json.loads((make_pair("metaspace").folder / "tokenizer.json").read_text("utf-8"))
    spec["model"]["merges"] = ["#version: 0.2", *(" ".join(pair) for pair in spec["model"]["merges"])]
    for part in ("pre_tokenizer", "decoder"):
        spec[part] = {"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True}
    del spec["model"]["ignore_merges"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    older, newer = load_tokenizer(tmp_path, "python"), make_pair("metaspace").ours
    for text in TEXTS:
        assert older.encode(text) == newer.encode(text) == load_tokenizer(tmp_path, "rust").encode(text)


def _real_tokenizers() -> list[Path]:
    root = os.environ.get("EDGEPIPE_TEST_MODELS")
    return sorted(path.parent for path in Path(root).rglob("tokenizer.json")) if root else []


@pytest.mark.parametrize("folder", _real_tokenizers() or [None], ids=lambda folder: folder.name if folder else "none")
def test_real_tokenizers(folder: Path | None) -> None:
    if folder is None:
        pytest.skip("EDGEPIPE_TEST_MODELS names no folder with a tokenizer.json in it")
    assert_backends_agree(folder)


@pytest.mark.slow
def test_the_tokenizer_of_smollm2(smollm2_bundle: Path) -> None:
    assert_backends_agree(smollm2_bundle / "target")


def assert_backends_agree(folder: Path) -> None:
    ours, theirs = load_tokenizer(folder, "python"), load_tokenizer(folder, "rust")
    require_same_tokenizer(ours, theirs)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids)

    @settings(max_examples=500)
    @given(ANY_TEXT)
    def check(text: str) -> None:
        assert ours.encode(text) == theirs.encode(text)

    check()
