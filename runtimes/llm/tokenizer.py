"""Tokenizers: load one, stream its text, check that two agree."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from edgepipe.errors import TokenizerError
from edgepipe.runtimes.llm.tokenization.base import Tokenizer
from edgepipe.runtimes.llm.tokenization.python import PythonTokenizer
from edgepipe.runtimes.llm.tokenization.rust import RustTokenizer
from edgepipe.runtimes.llm.tokenization.text_stream import TextStream

__all__ = ["TextStream", "Tokenizer", "load_tokenizer", "require_same_tokenizer"]


def load_tokenizer(folder: Path, backend: Literal["auto", "python", "rust"] = "auto") -> Tokenizer:
    """Load `folder/tokenizer.json`.

    `backend` "rust" is the `tokenizers` package, "python" the built-in reader (byte-level and SentencePiece-style BPE),
    "auto" the former where it is installed. Both give the same ids.

    Raises `TokenizerError` naming the file when it is missing, damaged or holds what the reader does not know,
    `MissingExtra` for "rust" without the package.
    """
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"no tokenizer.json in {folder}: expected one from Hugging Face (a tokenizer.model alone is not enough)"
        )
    if backend == "rust" or (backend == "auto" and find_spec("tokenizers")):
        return RustTokenizer(path)
    return PythonTokenizer.load(path)


def require_same_tokenizer(target: Tokenizer, draft: Tokenizer) -> None:
    """Check that two models mean the same by every token id, as speculative decoding needs.

    Raises `TokenizerError` that shows the first token id on which they differ, or that is special in one only.
    """
    for id in range(max(target.vocab_size, draft.vocab_size)):
        ours, theirs = target.find_token(id), draft.find_token(id)
        if ours != theirs:
            raise TokenizerError(
                f"target and draft have different tokenizers: token {id} is {_shown(ours)} in the target "
                f"and {_shown(theirs)} in the draft; choose a draft of the same model family"
            )
    if differing := target.special_ids ^ draft.special_ids:
        id = min(differing)
        special, plain = ("target", "draft") if id in target.special_ids else ("draft", "target")
        raise TokenizerError(
            f"target and draft have different tokenizers: token {id} ({_shown(target.find_token(id))}) is special "
            f"in the {special}, not in the {plain}; choose a draft of the same model family"
        )


def _shown(token: str | None) -> str:
    return "missing" if token is None else repr(token)
