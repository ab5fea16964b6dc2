"""The built-in tokenizer: `tokenizer.json` with the standard library alone."""

from __future__ import annotations

import dataclasses
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from edgepipe.errors import TokenizerError
from edgepipe.runtimes.llm.tokenization.added_tokens import AddedToken, AddedTokenSplitter
from edgepipe.runtimes.llm.tokenization.base import Tokenizer
from edgepipe.runtimes.llm.tokenization.bpe import Bpe
from edgepipe.runtimes.llm.tokenization.components import unsupported
from edgepipe.runtimes.llm.tokenization.decoders import make_decoder
from edgepipe.runtimes.llm.tokenization.normalizers import build_normalizer, deletes_on_the_left
from edgepipe.runtimes.llm.tokenization.post_processors import build_post_processor
from edgepipe.runtimes.llm.tokenization.pre_tokenizers import build_pre_tokenizer, looks_at_the_start


class PythonTokenizer(Tokenizer):
    """A text is cut at added tokens, normalized, cut again, split into words, merged by BPE and post-processed."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """`spec` is tokenizer.json, parsed. Raises `TokenizerError` for a component that is not understood."""
        self._bpe = Bpe(spec["model"])
        self._normalize = build_normalizer(spec.get("normalizer"))
        self._pre_tokenize = build_pre_tokenizer(spec.get("pre_tokenizer"))
        self._post_process = build_post_processor(spec.get("post_processor"))
        self.decoder_spec = spec.get("decoder")
        make_decoder(self.decoder_spec, eager=False)  # to refuse an unknown one now
        if looks_at_the_start(spec.get("pre_tokenizer")) and deletes_on_the_left(spec.get("normalizer")):
            raise unsupported("Metaspace at the start after a normalizer that deletes there")

        added = _numbered(spec.get("added_tokens") or [], self._bpe.vocab)
        self._ids = self._bpe.vocab | {token.content: token.id for token in added}
        self._tokens = {id: token for token, id in self._bpe.vocab.items()} | {
            token.id: token.content for token in added
        }
        self.special_ids = frozenset(token.id for token in added if token.special)
        self._raw_splitter = AddedTokenSplitter({token.content: token for token in added if not token.normalized})
        self.normalized = {token.id: self._normalize(token.content) for token in added if token.normalized}
        self._normalized_splitter = AddedTokenSplitter(
            {self.normalized[token.id]: token for token in added if self.normalized.get(token.id)}
        )

    @classmethod
    def load(cls, path: Path) -> PythonTokenizer:
        """Read a tokenizer.json. Raises `TokenizerError`, naming the file, when it is damaged or not understood."""
        try:
            return cls(json.loads(path.read_bytes()))
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from None
        except OSError as error:
            raise TokenizerError(f"{path} cannot be read ({error.strerror})") from None
        except json.JSONDecodeError as error:
            raise TokenizerError(
                f"{path} is damaged: no JSON at line {error.lineno} ({error.msg}); copy it again"
            ) from None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise TokenizerError(
                f"{path} is no valid tokenizer.json ({type(error).__name__}: {error}); copy it again"
            ) from None

    @cached_property
    def vocab_size(self) -> int:
        return max(self._tokens, default=-1) + 1

    def find_token(self, id: int) -> str | None:
        return self._tokens.get(id)

    def id(self, token: str) -> int | None:
        return self._ids.get(token)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = []
        at_start = True
        for piece in self._raw_splitter.split(text):
            for part in [piece] if isinstance(piece, int) else self._normalized_splitter.split(self._normalize(piece)):
                if isinstance(part, int):
                    ids.append(part)
                else:
                    ids += self._bpe.encode(filter(None, self._pre_tokenize([part], at_start)))
                at_start = False
        return self._post_process(ids) if add_special_tokens else ids


def _numbered(entries: list[dict[str, Any]], vocab: dict[str, int]) -> list[AddedToken]:
    """The added tokens with the ids that `tokenizers` gives them: the vocabulary's, else the next free one."""
    fields = [field.name for field in dataclasses.fields(AddedToken) if field.name != "id"]
    ids: dict[str, int] = {}
    free = len(vocab)
    tokens = []
    for entry in entries:
        content = entry["content"]
        if not content:
            continue
        if content not in ids:
            ids[content] = vocab.get(content, free)
            free = max(free, ids[content] + 1)
        tokens.append(AddedToken(ids[content], **{name: entry[name] for name in fields if name in entry}))
    return tokens
