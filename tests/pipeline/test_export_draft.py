"""`edgepipe export --draft` with a draft folder: layers and trimmed head of its own over the target's embeddings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgepipe
from edgepipe.errors import BundleError, EdgepipeError, EngineError, RecipeError, UnsupportedModel
from edgepipe.exporters import sources
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.bundle_writer import write_bundle
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.session import DecodeOptions, Session
from edgepipe.pipeline.verify import verify_reference

pytest.importorskip("torch")

TinyModel = Callable[..., Path]


def pair(target: Path, draft: Path | str, **changes: Any) -> Recipe:
    return Recipe(DecoderRecipe(str(target), precision="fp32"), DecoderRecipe(str(draft), precision="fp32", **changes))


@pytest.fixture(scope="module")
def exported(tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A validated bundle of a target and its trimmed draft. Tests must not write into it."""
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    return edgepipe.export(pair(tiny_model("llama"), tiny_draft("llama")), folder).folder


def reference_logits(target: Path, draft: Path, ids: list[int]) -> np.ndarray:
    """Logits ``[S, V']`` of transformers: the target's embeddings, the draft's layers, its head by hand."""
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaModel

    stored = safe_open(draft / "model.safetensors", framework="pt")
    names = set(stored.keys())

    def tensor(name: str) -> torch.Tensor:
        values = stored.get_tensor(name).float()
        return values * stored.get_tensor(f"{name}_scale").float()[:, None] if f"{name}_scale" in names else values

    fields = json.loads((draft / "config.json").read_text())
    model = LlamaModel(LlamaConfig(**{key: value for key, value in fields.items() if key != "edgepipe"})).eval()
    mine = [name for name in names if name.startswith("model.") and not name.endswith("_scale")]
    state = {name.removeprefix("model."): tensor(name) for name in mine}
    embeddings = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).get_input_embeddings().weight
    model.load_state_dict({**state, "embed_tokens.weight": embeddings.detach()})
    with torch.inference_mode():
        logits: np.ndarray = (model(torch.tensor([ids])).last_hidden_state[0] @ tensor("lm_head.weight").T).numpy()
    return logits


def test_its_logits_are_those_of_the_draft_over_the_targets_embeddings(
    exported: Path, tiny_model: TinyModel, tiny_draft: TinyModel
) -> None:
    session = Session(Bundle.open(exported), DecodeOptions())
    ids = np.random.default_rng(0).integers(0, 300, 40).tolist()
    draft = session.cached("draft", session.options.cache, 40)
    found = draft.extend(ids)
    expected = reference_logits(tiny_model("llama"), tiny_draft("llama"), ids)
    assert found.shape == expected.shape == (40, 120)
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_the_bundle_says_which_tokens_it_guesses(exported: Path, tiny_draft: TinyModel) -> None:
    manifest = Bundle.open(exported).manifest
    draft = manifest["components"]["draft"]
    assert draft["spec"]["output_vocab_size"] == 120
    assert draft["spec"]["vocab_size"] == manifest["components"]["target"]["spec"]["vocab_size"]
    assert draft["source"]["kind"] == "draft"
    assert draft["source"]["name"] == tiny_draft("llama").name
    ids = np.load(exported / draft["output_token_ids"])
    assert ids.dtype == np.int32
    assert "draft/output_token_ids.npy" in manifest["files"]
    assert json.loads((exported / "draft/config.json").read_text())["output_vocab_size"] == len(ids) == 120
    assert json.loads((exported / "draft/genai_config.json").read_text())["model"]["vocab_size"] == 120
    assert (exported / "draft/tokenizer.json").read_bytes() == (exported / "target/tokenizer.json").read_bytes()
    assert manifest["validation"]["draft"]["formats"]["onnx"]["plain"]["top1_agreement"] > 0.99
    assert "guesses 120 of" in (exported / "README.md").read_text()


def test_golden_tokens_are_the_tokenizers(exported: Path) -> None:
    """Not columns of the trimmed logits: each is a token that the draft has, and the best of its row."""
    allowed = set(np.load(exported / "draft/output_token_ids.npy").tolist())
    golden = json.loads((exported / "reference/draft.json").read_text())
    for case in golden["cases"]:
        assert {*case["greedy_ids"], *case["logits_top"]["ids"]} <= allowed
        assert case["greedy_ids"][0] == case["logits_top"]["ids"][0]
    outcome = verify_reference(Session(Bundle.open(exported), DecodeOptions()))
    assert outcome.components == ("target", "draft")


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantised_drafts_pass_validation(
    tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path, precision: str
) -> None:
    recipe = pair(tiny_model("llama"), tiny_draft("llama"))
    recipe = Recipe(recipe.target, DecoderRecipe(str(tiny_draft("llama")), precision=precision))  # type: ignore[arg-type]
    bundle = edgepipe.export(recipe, tmp_path / "bundle")
    assert bundle.manifest["components"]["draft"]["precision"]["mlp"] == precision
    verify_reference(Session(bundle, DecodeOptions()))


def test_speculation_with_it_changes_nothing(exported: Path) -> None:
    bundle = Bundle.open(exported)
    texts = []
    for drafter in ("none", "model"):
        session = Session(bundle, DecodeOptions(drafter=drafter, gamma=3))
        decoder = session.decoder(60)
        decoder.start(session.tokenizer.encode("def add(a, b):"))
        while len(decoder.text) < 50 and decoder.text[-1] not in decoder.stop_tokens:
            decoder.step(50 - len(decoder.text))
        texts.append(decoder.text)
    assert texts[0] == texts[1]


def change_files(exported: Path, folder: Path, change: Callable[[Path, dict[str, Any]], None]) -> Bundle:
    """The bundle again, its files and manifest changed by ``change``, with hashes that are right."""
    manifest = json.loads(json.dumps(Bundle.open(exported).manifest))
    with write_bundle(folder) as draft:
        for part in ("target", "draft", "reference"):
            shutil.copytree(exported / part, draft.folder / part)
        draft.manifest = {key: value for key, value in manifest.items() if key not in ("bundle_id", "files")}
        change(draft.folder, draft.manifest)
    return Bundle.open(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is damaged"),
        (b"PK\x03\x04", "is damaged"),
        (b"\x93NUMPY", "is damaged"),
        (np.arange(119, dtype=np.int32), r"int32 \[119\], the draft's head has 120 tokens"),
        (np.arange(120, dtype=np.int64), r"int64 \[120\]"),
        (np.zeros(120, np.int32), "expected ascending token ids"),
        (np.arange(1000, 1120, dtype=np.int32), "expected ascending token ids from 0 to"),
        (np.arange(-1, 119, dtype=np.int32), "expected ascending token ids"),
    ],
)
def test_ids_of_another_draft_are_refused(exported: Path, tmp_path: Path, content: Any, reason: str) -> None:
    def change(folder: Path, manifest: dict[str, Any]) -> None:
        path = folder / "draft/output_token_ids.npy"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            np.save(path, content)

    session = Session(change_files(exported, tmp_path / "bundle", change), DecodeOptions(drafter="model"))
    with pytest.raises(BundleError, match=reason) as refusal:
        session.decoder(20)
    assert "\n" not in str(refusal.value)
    assert "output_token_ids.npy" in str(refusal.value)


def test_a_changed_id_file_is_noticed_before_it_is_read(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "bundle")
    ids = np.load(tmp_path / "bundle/draft/output_token_ids.npy")
    np.save(tmp_path / "bundle/draft/output_token_ids.npy", ids[::-1].copy())
    with pytest.raises(BundleError, match=r"output_token_ids.npy is damaged: its SHA-256"):
        Bundle.open(tmp_path / "bundle")


def test_a_manifest_that_lost_its_ids_is_refused(exported: Path, tmp_path: Path) -> None:
    def lose(folder: Path, manifest: dict[str, Any]) -> None:
        del manifest["components"]["draft"]["output_token_ids"]

    with pytest.raises(BundleError, match=r"components.draft.output_token_ids is None"):
        change_files(exported, tmp_path / "bundle", lose)

    def trim_target(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["components"]["target"]["spec"]["output_vocab_size"] = 120

    with pytest.raises(BundleError, match=r"components.target.spec.output_vocab_size is 120, expected none"):
        change_files(exported, tmp_path / "second", trim_target)


def test_a_graph_with_other_logits_is_refused(exported: Path, tmp_path: Path) -> None:
    def widen(folder: Path, manifest: dict[str, Any]) -> None:
        manifest["components"]["draft"]["spec"]["output_vocab_size"] = 121
        np.save(folder / "draft/output_token_ids.npy", np.arange(121, dtype=np.int32))

    session = Session(change_files(exported, tmp_path / "bundle", widen), DecodeOptions(drafter="model"))
    with pytest.raises(EngineError, match="does not have 121 logits"):
        session.decoder(20)


def test_another_targets_draft_is_refused(tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path) -> None:
    target = tiny_model("llama", hidden_size=96)
    with pytest.raises(UnsupportedModel, match=r"was distilled from tiny, of hidden_size 64, .* has 96"):
        edgepipe.export(pair(target, tiny_draft("llama")), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_draft_lacks_what_a_target_needs(tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(EdgepipeError, match="is a draft, which has no embeddings: give it as --draft"):
        edgepipe.export(str(tiny_draft("llama")), tmp_path / "bundle")
    with pytest.raises(RecipeError, match="is no hub id"):
        edgepipe.export(pair(tiny_model("llama"), tiny_draft("llama"), revision="main"), tmp_path / "bundle")


def test_a_draft_that_lost_a_tensor_is_refused(tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    shutil.copytree(tiny_draft("llama"), tmp_path / "draft")
    tensors = load_file(tmp_path / "draft/model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "draft/model.safetensors")
    with pytest.raises(UnsupportedModel, match="has no tensor model.layers.0.mlp.up_proj.weight"):
        edgepipe.export(pair(tiny_model("llama"), tmp_path / "draft"), tmp_path / "bundle")


def test_the_draft_that_comes_with_edgepipe_needs_its_target(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EdgepipeError, match="smollm2-135m-draft is a draft, which has no embeddings"):
        edgepipe.export("smollm2-135m-draft", tmp_path / "bundle")
    monkeypatch.setitem(sources.DRAFTS, "smollm2-135m-draft", "not_there")
    with pytest.raises(EdgepipeError, match="make one with `edgepipe distill smollm2-135m -o DRAFT`"):
        edgepipe.export(pair(tiny_model("llama"), "smollm2-135m-draft"), tmp_path / "bundle")
