"""Small tokenizers of every style in use, trained by the `tokenizers` package, which is what ours are compared with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgepipe.runtimes.llm.tokenizer import Tokenizer, load_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog; it's 3 o'clock and they've SEEN what I'd do, don't you'll say?",
    "def add(a, b):\n    return a + b  # sum\n\n\nif __name__ == '__main__':\n\tprint(f'{add(1, 2):>10}')\r\n",
    "In 2024, π ≈ 3.14159265 and ½ + ¼ = ¾; prices: $1,234,567.89 or €99 or ¥10000, x² + y³, Ⅷ.",
    "Größe, café, naïve, Ångström, señor, Ĳsselmeer, œuvre, ŝanĝo, Œdipe, straße, STRASSE.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Καλημέρα κόσμε, Σίσυφος.",
    "東京は日本の首都です。今日は良い天気ですね。人工智能正在改变世界,中文没有空格。こんにちは、ひらがなとカタカナ。",
    "안녕하세요 세계! 한국어 문장을 토큰으로 나눕니다. 대한민국 서울특별시.",
    "مرحبا بالعالم، هذه جملة عربية ١٢٣٤. שלום עולם. नमस्ते दुनिया १२३, यह हिन्दी है। สวัสดีชาวโลก ภาษาไทย.",
    "👩‍👩‍👧‍👦 family 👍🏽 thumbs 🇩🇪🇫🇷 flags 🤷🏿‍♀️ 😀😃😄 ❤️‍🔥 text",
    "    four spaces  two\t\ttabs   \n\n   lines  \n  \n end   ",
    '{"key": [1, 2.5, null, true], "url": "https://example.org/a?b=c&d=%20#x"} <div class="x">&nbsp;</div>',
]
SPECIAL = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Pair:
    """The same tokenizer.json twice: ours, and the `tokenizers` object that is the reference."""

    folder: Path
    ours: Tokenizer
    theirs: Any

    def decode_alike(self, ids: list[int]) -> bool:
        """Whether decoding starts from the same spelling: normalized tokens had another before `tokenizers` 0.23."""
        known = [id for id in ids if id < self.ours.vocab_size]
        return all(self.theirs.id_to_token(id) == self.ours.piece(id, False) for id in known)


def _byte_level(*before: Any, **options: Any) -> dict[str, Any]:
    from tokenizers import decoders, pre_tokenizers

    last = pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **options})
    return {
        "pre_tokenizer": pre_tokenizers.Sequence([*before, last]) if before else last,
        "decoder": decoders.ByteLevel(),
        "alphabet": pre_tokenizers.ByteLevel.alphabet(),
    }


def _split(pattern: str, behavior: str = "isolated") -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(pattern), behavior)


def _begin_with(token: str) -> Any:
    from tokenizers.processors import TemplateProcessing

    return TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, SPECIAL.index(token))]
    )


def _sentencepiece(**changes: Any) -> dict[str, Any]:
    """Llama 2: bytes for what is unknown, no pre-tokenizer (but trained with one: no tokens reach across words)."""
    from tokenizers import decoders, normalizers, pre_tokenizers

    return {
        "train_with": pre_tokenizers.Metaspace(),
        "normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        "decoder": decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
        "post_processor": _begin_with("<s>"),
        "model": {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
        "special": [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))],
        **changes,
    }


def _styles() -> dict[str, Callable[[], dict[str, Any]]]:
    from tokenizers import decoders, normalizers, pre_tokenizers, processors

    return {
        "gpt2": lambda: _byte_level(use_regex=True),
        "gpt2_prefix_space": lambda: _byte_level(use_regex=True, add_prefix_space=True),
        "smollm2": lambda: _byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
        "llama3": lambda: {
            **_byte_level(_split(LLAMA3)),
            "post_processor": processors.Sequence([processors.ByteLevel(trim_offsets=False), _begin_with("<s>")]),
            "model": {"ignore_merges": True},
        },
        "qwen2": lambda: {**_byte_level(_split(QWEN2)), "normalizer": normalizers.NFC()},
        "cl100k": lambda: _byte_level(_split(CL100K)),
        "o200k": lambda: _byte_level(_split(O200K)),
        "deepseek": lambda: _byte_level(_split(r"\p{N}{1,3}"), _split("[一-龥぀-ゟ゠-ヿ]+"), _split(DEEPSEEK)),
        "starcoder_nfkc": lambda: {
            **_byte_level(pre_tokenizers.Digits(individual_digits=False), use_regex=True),
            "normalizer": normalizers.Sequence([normalizers.Strip(), normalizers.NFKC()]),
        },
        "llama2": _sentencepiece,
        "llama2_across_words": lambda: _sentencepiece(train_with=None),
        "llama2_unknown": lambda: _sentencepiece(model={"unk_token": "<unk>", "fuse_unk": False}, special=SPECIAL),
        "llama2_first": lambda: _sentencepiece(
            normalizer=None, pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        ),
        "metaspace": lambda: _sentencepiece(
            normalizer=None, pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace()
        ),
        "metaspace_never": lambda: _sentencepiece(
            normalizer=None,
            pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="never"),
            decoder=decoders.Metaspace(prepend_scheme="never"),
        ),
        "gemma": lambda: _sentencepiece(
            normalizer=normalizers.Replace(" ", "▁"),
            pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"),
            decoder=decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        ),
        "words": lambda: {
            "pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()]),
            "normalizer": normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()]),
            "model": {"unk_token": "<unk>"},
        },
    }


STYLES = [
    "gpt2", "gpt2_prefix_space", "smollm2", "llama3", "qwen2", "cl100k", "o200k", "deepseek", "starcoder_nfkc",
    "llama2", "llama2_across_words", "llama2_unknown", "llama2_first", "metaspace", "metaspace_never", "gemma", "words",
]  # fmt: skip


@pytest.fixture(scope="session", params=STYLES)
def pair(request: pytest.FixtureRequest, make_pair: Callable[[str], Pair]) -> Pair:
    """A tokenizer of each style in turn."""
    return make_pair(request.param)


@pytest.fixture(scope="session")
def make_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """`make_pair(style)` → the trained tokenizer, read by us and by `tokenizers`. Made once a session."""
    pytest.importorskip("tokenizers")
    made: dict[str, Pair] = {}

    def make(style: str) -> Pair:
        if style not in made:
            made[style] = read_twice(_train(**_styles()[style]()), tmp_path_factory.mktemp(style))
        return made[style]

    return make


def read_twice(spec: dict[str, Any], folder: Path) -> Pair:
    """Write `spec` as tokenizer.json into `folder` and read it with both."""
    from tokenizers import Tokenizer as Tokenizers

    (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
    return Pair(folder, load_tokenizer(folder, "python"), Tokenizers.from_file(str(folder / "tokenizer.json")))


def _train(
    model: dict[str, Any] | None = None,
    special: list[str] = SPECIAL,
    alphabet: list[str] | None = None,
    train_with: Any = None,
    **parts: Any,
) -> dict[str, Any]:
    from tokenizers import AddedToken, models, trainers
    from tokenizers import Tokenizer as Tokenizers

    tokenizer = Tokenizers(models.BPE(unk_token="<unk>" if model and "unk_token" in model else None))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    if train_with is not None:
        tokenizer.normalizer, tokenizer.pre_tokenizer = None, train_with
    # Characters seen once are left out of the alphabet, so that there are unknown ones.
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=special,
        initial_alphabet=sorted(alphabet or []),
        limit_alphabet=300,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    if train_with is not None:
        tokenizer.normalizer = parts.get("normalizer")
        tokenizer.pre_tokenizer = parts.get("pre_tokenizer")
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<|pad|>", rstrip=True)])
    tokenizer.add_tokens(["<tool>", AddedToken("Word", single_word=True), AddedToken("  ", normalized=False)])
    tokenizer.add_tokens(
        [AddedToken("<both>", lstrip=True, rstrip=True, normalized=True), AddedToken("É", normalized=True)]
    )
    spec: dict[str, Any] = json.loads(tokenizer.to_str())
    spec["model"].update(model or {})
    byte_tokens = {token["id"]: token for token in spec["added_tokens"] if token["content"].startswith("<0x")}
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["id"] not in byte_tokens]
    return spec
