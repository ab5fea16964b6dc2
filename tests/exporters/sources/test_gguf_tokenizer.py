"""The tokenizer written from a GGUF encodes like the one the GGUF was made from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepipe.errors import TokenizerError
from edgepipe.exporters.sources import open_source

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

TinyModel = Callable[..., Path]
WriteGguf = Callable[..., Path]

TEXTS = [
    "Hello world! It's 12345 o'clock, we'LL see.",
    "  leading and   inner    spaces \n\n\t tabs\r\nand lines  ",
    "def f(x):\n    return x[0:10] ** 2  # 3.14159",
    "Größe café cafe\u0301 naïve ÀÉÎ",  # one accent is a combining character
    "東京 2024年 привет мир שלום مرحبا ١٢٣ ½ ②",
    "HTTPServer camelCaseWord ALLCAPS x_y-z /usr/bin/env",
    "😀👩‍👩‍👧 emoji",
    "<|im_start|>user\nHi 42<|im_end|>",
    "",
    " ",
]


def save(weights_path: Path, folder: Path) -> Any:
    """Write the tokenizer of a GGUF, again as for a draft, and read it back."""
    weights, again = open_source(str(weights_path)), folder / "draft"
    for place in (folder, again):
        place.mkdir()
        weights.save_tokenizer(place)
    assert all((folder / path.name).read_bytes() == path.read_bytes() for path in again.iterdir())
    assert len(list(again.iterdir())) >= 4
    return transformers.AutoTokenizer.from_pretrained(folder)


def trained(pre_tokenizer: Any, normalizer: Any = None) -> Any:
    """A small byte-level BPE whose merges were learned behind ``pre_tokenizer``."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = pre_tokenizer
    bpe.decoder = tokenizers.decoders.ByteLevel()
    if normalizer is not None:
        bpe.normalizer = normalizer
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(TEXTS * 3 + ["12 123 1234 3210 " * 5], trainer)
    return bpe


def split(pattern: str) -> Any:
    pre = tokenizers.pre_tokenizers
    return pre.Sequence(
        [
            pre.Split(tokenizers.Regex(pattern), behavior="isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def published(pre: str) -> tuple[Any, Any]:
    """Pre-tokenizer and normaliser as the tokenizer.json of a model with this tokenizer.ggml.pre has them."""
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "gpt-2":
        return byte_level, None
    if pre == "smollm":
        digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
        return tokenizers.pre_tokenizers.Sequence([digits, byte_level]), None
    if pre == "qwen2":
        return split(PRETOKENIZE_REGEX), tokenizers.normalizers.NFC()
    gguf_mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    return split(gguf_mapping.GGUF_PRE_TOKENIZER_SPLITS[pre]), None


def with_tokenizer(folder: Path, bpe: Any, copy: Path) -> Path:
    """The model of ``folder`` beside another tokenizer."""
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    bpe.save(str(copy / "tokenizer.json"))
    return copy


@pytest.mark.parametrize(
    ("kind", "pre"),
    [
        *(("llama", pre) for pre in ("gpt-2", "smollm", "qwen2", "llama-bpe", "tekken")),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen2"),
    ],
)
def test_text_is_split_as_in_training(
    tiny_model: TinyModel, write_gguf: WriteGguf, tmp_path: Path, kind: str, pre: str
) -> None:
    original = trained(*published(pre))
    folder = tiny_model(kind, vocab_size=500)
    path = write_gguf(with_tokenizer(folder, original, tmp_path / "copy"), tokenizer__ggml__pre=pre)
    restored = save(path, tmp_path / "saved")
    alone = tokenizers.Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    for text in TEXTS:
        assert restored(text)["input_ids"] == original.encode(text).ids, text
        assert alone.encode(text).ids == original.encode(text).ids, text
        ids = original.encode(text, add_special_tokens=False).ids
        assert restored.decode(ids) == original.decode(ids, skip_special_tokens=False), text


def test_pre_tokenizers_differ_on_these_texts() -> None:
    """Otherwise the test above would pass with any of them."""
    encodings = [
        tuple(tuple(trained(*published("gpt-2")).encode(text).ids) for text in TEXTS),
        tuple(tuple(trained(*published("smollm")).encode(text).ids) for text in TEXTS),
        tuple(tuple(trained(*published("qwen2")).encode(text).ids) for text in TEXTS),
        tuple(tuple(trained(*published("llama-bpe")).encode(text).ids) for text in TEXTS),
        tuple(tuple(trained(*published("tekken")).encode(text).ids) for text in TEXTS),
    ]
    assert len(set(encodings)) == len(encodings)


def test_llama3_takes_whole_words(tiny_model: TinyModel, write_gguf: WriteGguf, tmp_path: Path) -> None:
    """A word that is in the vocabulary is one token there, even if no merges lead to it."""
    folder = with_tokenizer(tiny_model("llama"), trained(published("gpt-2")[0]), tmp_path / "copy")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["zebraquux"] = len(tokenizer["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "config.json").read_text())
    grown = tiny_model("llama", vocab_size=len(tokenizer["model"]["vocab"]))
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((grown / name).read_bytes())
    assert config["vocab_size"] != len(tokenizer["model"]["vocab"])
    for pre, expected in (("llama-bpe", ["zebraquux"]), ("gpt-2", None)):
        path = write_gguf(folder, tokenizer__ggml__pre=pre)
        tokens = save(path, tmp_path / pre).tokenize("zebraquux")
        assert tokens == expected if expected else len(tokens) > 1


@pytest.mark.parametrize(("stated", "begins"), [(None, True), (False, False), (True, True)])
def test_llama3_begins_with_the_begin_token_unless_told_not_to(
    tiny_model: TinyModel, write_gguf: WriteGguf, tmp_path: Path, stated: bool | None, begins: bool
) -> None:
    path = write_gguf(tiny_model("llama"), tokenizer__ggml__pre="llama-bpe", tokenizer__ggml__add_bos_token=stated)
    tokenizer = save(path, tmp_path / "saved")
    ids = tokenizer("dog")["input_ids"]
    assert (ids[0] == tokenizer.bos_token_id) == begins
    assert json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())["add_bos_token"] == begins
    assert tokenizer.backend_tokenizer.encode("dog").ids == ids  # tokenizer.json alone says so too
    assert tokenizer.decode(ids, skip_special_tokens=True) == "dog"


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_specials_and_chat_template(tiny_model: TinyModel, write_gguf: WriteGguf, tmp_path: Path, kind: str) -> None:
    folder = tiny_model(kind)
    restored = save(write_gguf(folder), tmp_path / "saved")
    original = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "The dog 42?"}]
    assert restored.chat_template == original.chat_template
    assert restored.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == (
        "<|im_start|>user\nThe dog 42?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (restored.bos_token, restored.eos_token) == ("<|endoftext|>", "<|im_end|>")
    for text in TEXTS:
        assert restored(text)["input_ids"] == original(text)["input_ids"], text


def test_unknown_pre_tokenizer_is_noted(tiny_model: TinyModel, write_gguf: WriteGguf) -> None:
    folder = tiny_model("llama")
    (note,) = open_source(str(write_gguf(folder, tokenizer__ggml__pre="nobody-knows"))).info.notes
    assert "'nobody-knows'" in note
    (note,) = open_source(str(write_gguf(folder, tokenizer__ggml__pre=None))).info.notes
    assert "names no pre-tokenizer" in note


def test_missing_tokenizer(tiny_model: TinyModel, write_gguf: WriteGguf, tmp_path: Path) -> None:
    nothing = dict.fromkeys(
        f"tokenizer__ggml__{key}" for key in ("model", "pre", "tokens", "token_type", "merges", "bos_token_id")
    )
    path = write_gguf(tiny_model("llama"), llama__vocab_size=304, **nothing)
    with pytest.raises(TokenizerError, match="gguf") as refusal:
        open_source(str(path)).save_tokenizer(tmp_path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_sentencepiece(tiny_model: TinyModel, write_gguf: WriteGguf, tmp_path: Path, add_space_prefix: bool) -> None:
    """A SentencePiece BPE with byte fallback, as Llama 2 has, against the sentencepiece package."""
    sentencepiece = pytest.importorskip("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS[:6] * 4), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tmp_path / "spm"),
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        character_coverage=1.0,
        add_dummy_prefix=add_space_prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    original = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    size = original.vocab_size()
    normal, unknown, control, byte = 1, 2, 3, 6
    kinds = [normal] * size
    for kind, is_kind in ((byte, original.is_byte), (control, original.is_control), (unknown, original.is_unknown)):
        kinds = [kind if is_kind(i) else other for i, other in enumerate(kinds)]
    path = write_gguf(
        tiny_model("llama", vocab_size=size),
        **{
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": [original.id_to_piece(i) for i in range(size)],
            "tokenizer.ggml.scores": [original.get_score(i) for i in range(size)],
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.merges": None,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.add_space_prefix": add_space_prefix,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
        },
    )
    restored = save(path, tmp_path / "saved")
    for text in (text for text in TEXTS if text and "<|" not in text):
        ids = restored(text)["input_ids"]
        assert ids == [1, *original.encode(text)], text
        assert restored.decode(ids, skip_special_tokens=True) == text, text
