"""Damaged files, missing packages and tokenizers that disagree are told in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepipe.errors import MissingExtra, TokenizerError
from edgepipe.runtimes.llm.tokenization.python import PythonTokenizer
from edgepipe.runtimes.llm.tokenization.rust import RustTokenizer
from edgepipe.runtimes.llm.tokenizer import load_tokenizer, require_same_tokenizer

BACKENDS = ["python", "rust"]


def write(folder: Path, content: bytes) -> Path:
    (folder / "tokenizer.json").write_bytes(content)
    return folder


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe{}",
        b"not json",
        b"null",
        b"[]",
        b"{}",
        b'{"model": null}',
        b'{"model": {"type": "BPE"}}',
        b'{"model": {"type": "BPE", "vocab": [], "merges": []}}',
        b'{"model": {"type": "BPE", "vocab": {"a": "0"}, "merges": []}}',
        b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}',
        b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
        b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "normalizer": {"type": "Prepend"}}',
        b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": 3}',
        b"[" * 100_000,
    ],
    ids=lambda content: repr(content[-40:]),
)
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, backend: Any, content: bytes) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(write(tmp_path, content), backend)
    assert str(tmp_path / "tokenizer.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_truncation_is_an_error(make_pair: Callable[[str], Any], tmp_path: Path, backend: Any) -> None:
    whole = (make_pair("llama3").folder / "tokenizer.json").read_bytes()
    for length in range(0, len(whole), 997):
        with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
            load_tokenizer(write(tmp_path, whole[:length]), backend)


def test_no_file_and_no_folder(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(TokenizerError, match=f"no tokenizer.json in {folder}"):
            load_tokenizer(folder)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read \(Permission denied\)"):
        load_tokenizer(write(tmp_path, b"{}"), "python")


def test_auto_takes_tokenizers_where_it_is_installed(
    make_pair: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_pair("gpt2").folder
    assert isinstance(load_tokenizer(folder), RustTokenizer)
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # importing it now raises ImportError
    monkeypatch.setattr("edgepipe.runtimes.llm.tokenizer.find_spec", lambda name: None)
    assert isinstance(load_tokenizer(folder), PythonTokenizer)
    with pytest.raises(MissingExtra, match=r"edgepipe\[tokenizers\]"):
        load_tokenizer(folder, "rust")


def test_importing_and_the_built_in_reader_need_no_tokenizers(make_pair: Callable[[str], Any]) -> None:
    program = (
        "import sys; from edgepipe.runtimes.llm.tokenizer import load_tokenizer;"
        f"print(load_tokenizer({str(make_pair('llama3').folder)!r}, 'python').encode('x 12345'));"
        "sys.exit(any(name.split('.')[0] in ('tokenizers', 'regex', 'jinja2', 'numpy') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == make_pair("llama3").theirs.encode("x 12345").ids


@pytest.mark.parametrize("backend", BACKENDS)
def test_text_that_was_no_utf8_is_refused(make_pair: Callable[[str], Any], backend: Any) -> None:
    tokenizer = load_tokenizer(make_pair("gpt2").folder, backend)
    with pytest.raises(TokenizerError, match=r"U\+DCFF at character 2"):
        tokenizer.encode(b"ab\xff".decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_truncation_and_padding_of_the_file_are_off(
    make_pair: Callable[[str], Any], tmp_path: Path, backend: Any
) -> None:
    spec = json.loads((make_pair("gpt2").folder / "tokenizer.json").read_text("utf-8"))
    spec["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>",
    }  # fmt: skip
    tokenizer = load_tokenizer(write(tmp_path, json.dumps(spec).encode()), backend)
    for text in ("a", "The quick brown fox"):
        assert tokenizer.encode(text) == make_pair("gpt2").theirs.encode(text).ids


def test_the_same_tokenizer_is_accepted(make_pair: Callable[[str], Any]) -> None:
    folder = make_pair("qwen2").folder
    require_same_tokenizer(load_tokenizer(folder, "rust"), load_tokenizer(folder, "python"))


def small(vocab: dict[str, int], special: list[str]) -> PythonTokenizer:
    added = [{"id": vocab[token], "content": token, "special": True} for token in special]
    return PythonTokenizer({"added_tokens": added, "model": {"type": "BPE", "vocab": vocab, "merges": []}})


def test_the_first_difference_is_shown() -> None:
    target = small({"a": 0, "b": 1, "</s>": 2}, ["</s>"])
    with pytest.raises(TokenizerError, match="token 1 is 'b' in the target and 'c' in the draft"):
        require_same_tokenizer(target, small({"a": 0, "c": 1, "</s>": 2}, ["</s>"]))
    with pytest.raises(TokenizerError, match="token 3 is missing in the target and 'c' in the draft"):
        require_same_tokenizer(target, small({"a": 0, "b": 1, "</s>": 2, "c": 3}, ["</s>"]))
    with pytest.raises(TokenizerError, match="token 1 is 'b' in the target and missing in the draft"):
        require_same_tokenizer(target, small({"a": 0, "</s>": 2}, ["</s>"]))
    with pytest.raises(TokenizerError, match="token 2 \\('</s>'\\) is special in the target, not in the draft"):
        require_same_tokenizer(target, small({"a": 0, "b": 1, "</s>": 2}, []))
