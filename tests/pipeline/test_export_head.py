"""`edgepipe export --draft` with a head: a layer that reads the target's features (EAGLE)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgepipe
from edgepipe.errors import BundleError, EngineError, UnsupportedModel
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.bundle_writer import write_bundle
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.session import CacheOptions, DecodeOptions, Session
from edgepipe.pipeline.verify import verify_reference

torch = pytest.importorskip("torch")

TinyModel = Callable[..., Path]


def pair(target: Path, draft: Path) -> Recipe:
    precise = {"precision": "fp32", "head_precision": "fp32"}
    return Recipe(DecoderRecipe(str(target), **precise), DecoderRecipe(str(draft), **precise))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def exported(request: Any, tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path_factory: Any) -> tuple[Path, ...]:
    """A validated bundle of a target and its head, and what it was made from. Tests must not write into it."""
    target, draft = tiny_model(request.param), tiny_draft(request.param, kind="head")
    bundle = edgepipe.export(pair(target, draft), tmp_path_factory.mktemp("exported") / "bundle")
    return bundle.folder, target, draft


def features_and_head(target: Path, draft: Path, ids: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By the formulas of the draft's folder: features of the target, features and logits of the head."""
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    stored = safe_open(draft / "model.safetensors", framework="pt")

    def tensor(name: str) -> torch.Tensor:
        values = stored.get_tensor(name).float()
        return values * stored.get_tensor(f"{name}_scale").float()[:, None] if values.ndim == 2 else values

    def rms_norm(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + model.config.rms_norm_eps) * weight

    seen: list[torch.Tensor] = []
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    model.model.norm.register_forward_pre_hook(lambda norm, rows: seen.append(rows[0][0]))
    head = AutoModel.from_config(AutoConfig.from_pretrained(draft), dtype=torch.float32).eval()
    head.norm.register_forward_pre_hook(lambda norm, rows: seen.append(rows[0][0]))
    layers = [name for name in stored.keys() if "layers" in name and not name.endswith("_scale")]  # noqa: SIM118
    head.load_state_dict({name.removeprefix("model."): tensor(name) for name in layers}, strict=False)
    with torch.inference_mode():
        model(torch.tensor([ids]))
        embeddings = model.get_input_embeddings()(torch.tensor(ids[1:]))
        rows = [
            rms_norm(embeddings, tensor("model.embedding_norm.weight")),
            rms_norm(seen[0][:-1], tensor("model.feature_norm.weight")),
        ]
        head(inputs_embeds=(torch.cat(rows, -1) @ tensor("model.fc.weight").T)[None])
        output_rows = model.lm_head.weight[stored.get_tensor("output_token_ids").long()]
        logits = rms_norm(seen[1], model.model.norm.weight) @ output_rows.T
    return seen[0].numpy(), seen[1].numpy(), logits.numpy()


@pytest.mark.parametrize("policy", ["full", "h2o"])
def test_features_and_logits_are_those_of_the_formulas(exported: tuple[Path, ...], policy: str) -> None:
    """Both graphs of both components: the plain one, and the one with scores that H2O needs."""
    folder, source, draft = exported
    ids = np.random.default_rng(0).integers(0, 300, 40).tolist()
    features, predicted, logits = features_and_head(source, draft, ids)
    session = Session(Bundle.open(folder), DecodeOptions())
    cache = CacheOptions() if policy == "full" else CacheOptions("h2o", "40")
    target, head = (session.cached(part, cache, 80) for part in ("target", "draft"))
    target.extend(ids, last_only=True)
    np.testing.assert_allclose(target.decoder.features, features, atol=1e-3)
    found = head.extend(ids[1:], features=features[:-1])
    np.testing.assert_allclose(head.decoder.features, predicted, atol=1e-3)
    np.testing.assert_allclose(found, logits, atol=2e-3)


def test_the_bundle_says_what_it_is(exported: tuple[Path, ...]) -> None:
    manifest = Bundle.open(exported[0]).manifest
    draft = manifest["components"]["draft"]
    assert draft["kind"] == "head"
    assert draft["spec"]["num_layers"] == 1
    assert draft["spec"]["output_vocab_size"] == 120
    assert manifest["validation"]["draft"]["formats"]["onnx"]["plain"]["max_abs_logit"] < 2e-3
    assert manifest["validation"]["draft"]["formats"]["onnx"]["scored"]["top1_agreement"] > 0.99
    assert "guesses 120 of" in (exported[0] / "README.md").read_text()


def test_golden_outputs_are_replayed(exported: tuple[Path, ...]) -> None:
    """The head's golden logits after a prompt are those of the formulas, and the device has them, too."""
    folder, source, draft = exported
    golden = json.loads((folder / "reference/draft.json").read_text())
    ids = np.load(folder / "draft/output_token_ids.npy").tolist()
    for case in golden["cases"]:
        logits = features_and_head(source, draft, case["prompt_ids"])[2][-1]
        columns = [ids.index(token) for token in case["logits_top"]["ids"]]
        np.testing.assert_allclose(logits[columns], case["logits_top"]["values"], atol=2e-3)
        assert logits[ids.index(case["greedy_ids"][0])] > logits.max() - 4e-3
    outcome = verify_reference(Session(Bundle.open(folder), DecodeOptions()))
    assert outcome.components == ("target", "draft")


@pytest.mark.parametrize("gamma", [1, 4])
def test_speculation_with_it_changes_nothing(exported: tuple[Path, ...], gamma: int) -> None:
    texts = []
    for drafter in ("none", "model"):
        session = Session(Bundle.open(exported[0]), DecodeOptions(drafter=drafter, gamma=gamma))
        decoder = session.decoder(60)
        decoder.start(session.tokenizer.encode("def add(a, b):"))
        while len(decoder.text) < 50 and decoder.text[-1] not in decoder.stop_tokens:
            decoder.step(50 - len(decoder.text))
        texts.append(decoder.text)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantised_heads_pass_validation(
    tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path, precision: Any
) -> None:
    draft = DecoderRecipe(str(tiny_draft("llama", kind="head")), precision=precision)
    recipe = Recipe(DecoderRecipe(str(tiny_model("llama")), precision="fp32"), draft)
    bundle = edgepipe.export(recipe, tmp_path / "bundle")
    verify_reference(Session(bundle, DecodeOptions()))


def test_a_target_that_gives_no_features_is_refused(
    exported: tuple[Path, ...], tiny_model: TinyModel, tmp_path: Path
) -> None:
    """Beside the head, the files of a target that was exported without one."""
    folder, source, _ = exported
    plain = edgepipe.export(Recipe(pair(source, source).target), tmp_path / "plain").folder
    manifest = json.loads(json.dumps(Bundle.open(folder).manifest))
    with write_bundle(tmp_path / "mixed") as mixed:
        for part, origin in (("target", plain), ("draft", folder), ("reference", folder)):
            shutil.copytree(origin / part, mixed.folder / part)
        mixed.manifest = {key: value for key, value in manifest.items() if key not in ("bundle_id", "files")}
    session = Session(Bundle.open(tmp_path / "mixed"), DecodeOptions(drafter="model"))
    with pytest.raises(EngineError, match="do not share features") as refusal:
        session.decoder(20)
    assert "\n" not in str(refusal.value)


def test_a_kind_from_the_future_is_refused(exported: tuple[Path, ...], tmp_path: Path) -> None:
    manifest = json.loads(json.dumps(Bundle.open(exported[0]).manifest))
    manifest["components"]["draft"]["kind"] = "tree"
    with pytest.raises(BundleError, match="'tree', this edgepipe reads decoder or head"):
        with write_bundle(tmp_path / "bundle") as forged:
            for part in ("target", "draft", "reference"):
                shutil.copytree(exported[0] / part, forged.folder / part)
            forged.manifest = {key: value for key, value in manifest.items() if key not in ("bundle_id", "files")}
        Bundle.open(tmp_path / "bundle")


def test_a_head_that_lost_a_tensor_is_refused(tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    shutil.copytree(tiny_draft("llama", kind="head"), tmp_path / "draft")
    tensors = load_file(tmp_path / "draft/model.safetensors")
    del tensors["model.feature_norm.weight"]
    save_file(tensors, tmp_path / "draft/model.safetensors")
    with pytest.raises(UnsupportedModel, match="model.feature_norm.weight is missing, expected"):
        edgepipe.export(pair(tiny_model("llama"), tmp_path / "draft"), tmp_path / "bundle")


def test_what_more_is_stored_is_not_read(tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    shutil.copytree(tiny_draft("llama", kind="head"), tmp_path / "draft")
    tensors = load_file(tmp_path / "draft/model.safetensors")
    tensors["mine"] = np.ones(3, np.float32)
    save_file(tensors, tmp_path / "draft/model.safetensors")
    edgepipe.export(
        pair(tiny_model("llama"), tmp_path / "draft"), tmp_path / "bundle"
    )  # which compares with the source


@pytest.mark.parametrize("kind", ["decoder", "head"])
def test_a_configuration_of_another_architecture_is_refused(
    tiny_model: TinyModel, tiny_draft: TinyModel, tmp_path: Path, kind: str
) -> None:
    shutil.copytree(tiny_draft("llama", kind=kind), tmp_path / "draft")
    path = tmp_path / "draft/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "bert"}))
    with pytest.raises(
        UnsupportedModel, match="damaged: model_type is bert, architectures is LlamaForCausalLM; distil"
    ):
        edgepipe.export(pair(tiny_model("llama"), tmp_path / "draft"), tmp_path / "bundle")
