"""The tokenizer of a GGUF file as tokenizer.json, its pre-tokenizer restored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepipe.errors import MissingExtra, TokenizerError
from edgepipe.exporters.sources.generation_config import save_generation_config
from edgepipe.exporters.sources.weights import one_line
from edgepipe.runtimes.llm.spec import DecoderSpec

try:
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
except ImportError as missing:
    raise MissingExtra(missing.name or "transformers", "export") from missing


@dataclass(frozen=True)
class PreTokenizer:
    """What tokenizer.ggml.pre stands for in a byte-level BPE.

    ``split`` cuts text by a regular expression, None stands for GPT-2's own; ``digits`` cuts every digit off first;
    ``whole_words`` takes a word that is a token as it is, without merging; ``nfc`` composes Unicode first;
    ``bos`` puts the begin token in front unless the file says otherwise.
    """

    split: str | None = None
    digits: bool = False
    whole_words: bool = False
    nfc: bool = False
    bos: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD, _SYMBOLS = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_GPT2 = PreTokenizer()
_DIGITS = PreTokenizer(digits=True)
_LLAMA3 = PreTokenizer(rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}", whole_words=True, bos=True)
_QWEN2 = PreTokenizer(rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}", nfc=True)
_TEKKEN = PreTokenizer(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    whole_words=True,
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "command-r": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}


def tokenizer_notes(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """What a reader of the export report should know about the file's tokenizer."""
    pre = fields.get("tokenizer.ggml.pre")
    if fields.get("tokenizer.ggml.model") != "gpt2" or pre in PRE_TOKENIZERS:
        return ()
    if pre is None:
        return ("the GGUF names no pre-tokenizer: GPT-2's is used, and text may be split otherwise than in training",)
    return (f"pre-tokenizer {pre!r} of the GGUF is unknown here: text may be split otherwise than in training",)


def read_gguf_tokenizer(path: Path, fields: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """The tokenizer of a file.

    Raises:
        TokenizerError: the file holds no tokenizer, or one that transformers does not know.
    """
    model, pre = fields.get("tokenizer.ggml.model"), PRE_TOKENIZERS.get(fields.get("tokenizer.ggml.pre", ""))
    unstated = {"add_bos_token": True} if model == "gpt2" and pre is not None and pre.bos else {}
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path.parent, gguf_file=path.name, local_files_only=True, **unstated
        )
    except Exception as error:  # missing or odd metadata, wherever transformers meets it
        raise TokenizerError(f"transformers cannot read the tokenizer of {path}: {one_line(error)}") from error

    if model == "gpt2" and pre is not None:
        _restore_byte_level(tokenizer.backend_tokenizer, pre)
    elif model == "llama":
        _restore_sentencepiece(tokenizer.backend_tokenizer, fields.get("tokenizer.ggml.add_space_prefix", True))
    return tokenizer


def save_gguf_tokenizer(
    tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, spec: DecoderSpec, folder: Path
) -> None:
    """Write tokenizer.json, tokenizer_config.json, the chat template, config.json and generation_config.json."""
    tokenizer.save_pretrained(folder)
    _complete_tokenizer_config(folder / "tokenizer_config.json", tokenizer.add_bos_token, tokenizer.add_eos_token)

    # Older readers know "torch_dtype" and "rope_theta" where transformers 5 writes "dtype" and "rope_parameters".
    saved = {key: value for key, value in config.to_diff_dict().items() if not key.startswith("_") and key != "dtype"}
    saved |= {"torch_dtype": "float32", "rope_theta": config.rope_parameters["rope_theta"]}
    (folder / "config.json").write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    save_generation_config(config, spec, folder)


def _restore_byte_level(tokenizer: Tokenizer, pre: PreTokenizer) -> None:
    """Split text the way the merges were learned."""
    steps: list[Any] = []
    if pre.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.split is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.split is None))
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    if pre.whole_words:
        tokenizer.model.ignore_merges = True


def _restore_sentencepiece(tokenizer: Tokenizer, space_prefix: bool) -> None:
    """SentencePiece's own treatment of spaces: one in front of every text, even of one that begins with a space."""
    spaces = [normalizers.Prepend("▁")] if space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = None
    strip = [decoders.Strip(" ", left=1)] if space_prefix else []
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(steps)


def _complete_tokenizer_config(path: Path, add_bos: bool, add_eos: bool) -> None:
    """State what transformers leaves out, and name the class that takes tokenizer.json as it is.

    Classes of single models put their own rules in its place.
    """
    fields = json.loads(path.read_text(encoding="utf-8"))
    for key in ("is_local", "local_files_only", "backend"):  # how it was loaded here
        fields.pop(key, None)
    fields |= {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": add_bos, "add_eos_token": add_eos}
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
