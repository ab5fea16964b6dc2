"""Folders in Hugging Face's layout, against the models transformers made them from."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import EdgepipeError, RecipeError, TokenizerError, UnsupportedModel
from edgepipe.exporters.sources import open_source
from edgepipe.runtimes.llm.spec import RopeSpec

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TinyModel = Callable[..., Path]


@pytest.fixture
def editable(tiny_model: TinyModel, tmp_path: Path) -> Callable[..., Path]:
    """``editable(architecture, config={...}, **changes)``: a copy of a tiny model to damage."""

    def copy(architecture: str = "llama", config: dict[str, Any] | None = None, **changes: Any) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(tiny_model(architecture, **changes), folder)
        path = folder / "config.json"
        fields = json.loads(path.read_text()) | (config or {})
        path.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))
        return folder

    return copy


def refusal_of(folder: Path) -> str:
    with pytest.raises(UnsupportedModel) as refusal:
        open_source(str(folder))
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_are_the_state_dict(tiny_model: TinyModel, architecture: str, tied: bool, dtype: str) -> None:
    folder = tiny_model(architecture, tied=tied, dtype=dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = open_source(str(folder))
    for name, parameter in model.named_parameters():
        tensor = weights.tensor(name)
        assert tensor.dtype == np.float32
        assert tensor.flags.c_contiguous
        assert tensor.flags.owndata or tensor.base is not None
        np.testing.assert_array_equal(tensor, parameter.detach().numpy(), err_msg=name)
        assert weights.gguf_type(name) is None
        assert weights.quantized(name) is None
    with pytest.raises(UnsupportedModel, match="no tensor model.layers.9"):
        weights.tensor("model.layers.9.mlp.up_proj.weight")


def test_shards(tiny_model: TinyModel, architecture: str) -> None:
    whole = tiny_model(architecture, tied=False)
    sharded = tiny_model(architecture, tied=False, max_shard_size="60KB")
    assert len(list(sharded.glob("*.safetensors"))) > 3
    one, many = open_source(str(whole)), open_source(str(sharded))
    assert one.spec == many.spec
    for name in transformers.AutoModelForCausalLM.from_pretrained(whole).state_dict():
        np.testing.assert_array_equal(one.tensor(name), many.tensor(name), err_msg=name)


def test_a_tensor_is_the_callers_own(tiny_model: TinyModel) -> None:
    weights = open_source(str(tiny_model("llama")))
    weights.tensor("model.norm.weight")[:] = 7
    assert not (weights.tensor("model.norm.weight") == 7).any()


def test_spec(tiny_model: TinyModel, architecture: str) -> None:
    weights = open_source(str(tiny_model(architecture)))
    spec = weights.spec
    assert (
        spec.architecture
        == {
            "llama": "LlamaForCausalLM",
            "llama3_rope": "LlamaForCausalLM",
            "mistral": "MistralForCausalLM",
            "qwen2": "Qwen2ForCausalLM",
            "qwen3": "Qwen3ForCausalLM",
        }[architecture]
    )
    assert (spec.hidden_size, spec.intermediate_size, spec.num_heads, spec.num_kv_heads) == (64, 96, 4, 2)
    assert spec.num_layers == (3 if architecture == "llama3_rope" else 2)
    assert spec.head_dim == (32 if architecture == "qwen3" else 16)
    assert spec.context_length == (256 if architecture == "mistral" else 512)
    assert spec.qkv_bias == (architecture == "qwen2")
    assert spec.qk_norm == (architecture == "qwen3")
    assert not spec.o_bias
    assert not spec.mlp_bias
    assert (spec.bos_token_id, spec.eos_token_ids) == (0, (2,))
    assert (
        spec.rope
        == {
            "llama": RopeSpec(10_000.0),
            "llama3_rope": RopeSpec(500_000.0, "llama3", 8.0, 1.0, 4.0, 64),
            "mistral": RopeSpec(10_000.0),
            "qwen2": RopeSpec(1_000_000.0),
            "qwen3": RopeSpec(10_000.0),
        }[architecture]
    )
    assert weights.info.kind == "hugging_face"
    assert weights.info.notes == (
        ("context is 256 tokens, the sliding attention window, not 512",) if architecture == "mistral" else ()
    )


def test_older_spelling_of_rope(editable: Callable[..., Path]) -> None:
    """transformers before 5 wrote rope_theta and rope_scaling."""
    folder = editable(
        config={"rope_parameters": None, "rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    )
    assert open_source(str(folder)).spec.rope == RopeSpec(5000.0, "linear", 2.0)


def test_biases_of_llama_and_qwen3(tiny_model: TinyModel) -> None:
    llama = open_source(str(tiny_model("llama", attention_bias=True, mlp_bias=True))).spec
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias) == (True, True, True)
    qwen3 = open_source(str(tiny_model("qwen3", attention_bias=True))).spec
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.mlp_bias) == (True, True, False)


def test_qwen2_window_ends_the_context_only_where_layers_slide(tiny_model: TinyModel) -> None:
    sliding = {"use_sliding_window": True, "sliding_window": 128}
    assert open_source(str(tiny_model("qwen2", max_window_layers=1, **sliding))).spec.context_length == 128
    assert open_source(str(tiny_model("qwen2", max_window_layers=2, **sliding))).spec.context_length == 512
    assert open_source(str(tiny_model("qwen2", sliding_window=128))).spec.context_length == 512


def test_the_generation_config_knows_the_ends(editable: Callable[..., Path]) -> None:
    folder = editable()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    assert open_source(str(folder)).spec.eos_token_ids == (2, 0)
    (folder / "generation_config.json").unlink()
    assert open_source(str(folder)).spec.eos_token_ids == (2,)


def test_reference_model(tiny_model: TinyModel) -> None:
    reference = open_source(str(tiny_model("qwen2", dtype="bfloat16"))).reference_model()
    assert {parameter.dtype for parameter in reference.parameters()} == {torch.float32}
    assert not reference.training
    assert reference.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel: supported are LlamaForCausalLM, Mistral"),
        ({"architectures": ["X"], "auto_map": {"AutoConfig": "evil.X"}}, "remote code is never run"),
        ({"architectures": None, "model_type": "bert"}, "is bert"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by gptq"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
            "rope scaling 'yarn': only default, linear and llama3",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
            "rope scaling 'dynamic'",
        ),
        ({"num_hidden_layers": 4}, "no tensor model.layers.2.input_layernorm.weight"),
        ({"intermediate_size": 100}, r"gate_proj.weight is \(96, 64\), its configuration promises \(100, 64\)"),
        ({"vocab_size": 999}, r"embed_tokens.weight is \(304, 64\)"),
        ({"num_attention_heads": 3, "head_dim": None}, "must divide|cannot read"),
        ({"hidden_act": 3}, "transformers cannot read .*hidden_act.*expected str"),
        ({"num_hidden_layers": 1}, "has a tensor model.layers.1.*promises only 1 layers"),
        ({"rms_norm_eps": float("nan")}, "model has .* rms_norm_eps is nan: expected a number from 0"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05: expected a number from 0"),
        ({"bos_token_id": 10**6}, "bos_token_id has 1000000: expected token ids from 0 to 303"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1.0}}, "rope.theta is -1.0: expected"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 0.0}}, "rope.factor is 0.0"),
        ({"architectures": 3}, "architectures is 3: expected a list"),
        ({"quantization_config": 3}, "is stored quantised"),
    ],
)
def test_refusals_say_why(editable: Callable[..., Path], config: dict[str, Any], message: str) -> None:
    import re

    assert re.search(message, refusal_of(editable(config=config)))


@pytest.mark.parametrize("value", [0, -1, 10**9, 0.5, "wide", True, [64], {}, float("nan")])
@pytest.mark.parametrize(
    "key",
    [
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
    ],
)
def test_sizes_that_no_model_has(
    editable: Callable[..., Path], capfd: pytest.CaptureFixture[str], key: str, value: object
) -> None:
    message = refusal_of(editable(config={key: value}))
    assert message.startswith(f"model: {key} is {value!r}: expected a whole number from 1 to ")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("config", [{"eos_token_id": 304}, {"bos_token_id": -1}])
def test_transformers_does_not_warn_beside_our_own_words(
    editable: Callable[..., Path], tmp_path: Path, config: dict[str, Any]
) -> None:
    """In a process of its own: the log handler of transformers keeps the stderr it was made with."""
    folder = editable(config=config)
    (folder / "generation_config.json").unlink()
    command = [sys.executable, "-m", "edgepipe", "export", "--target", str(folder), "-o", str(tmp_path / "bundle")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("ends", [304, [2, 304], -1])
def test_ends_of_the_configuration_that_are_no_tokens(editable: Callable[..., Path], ends: object) -> None:
    folder = editable(config={"eos_token_id": ends})
    (folder / "generation_config.json").unlink()
    assert "eos_token_ids has " in refusal_of(folder)


@pytest.mark.parametrize("ends", [304, [2, 304], -1, "x", 2.5, {"a": 1}, [[2]], True])
def test_ends_of_the_generation_config_that_are_no_tokens(editable: Callable[..., Path], ends: object) -> None:
    folder = editable()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    assert "eos_token_ids has " in refusal_of(folder)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json"])
def test_json_nested_without_end(editable: Callable[..., Path], file: str) -> None:
    folder = editable()
    (folder / file).write_text('{"a":' * 100_000)
    assert file in refusal_of(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"]
)
def test_numbers_that_are_none_are_named_by_their_tensor(
    editable: Callable[..., Path], name: str, value: float
) -> None:
    from safetensors.torch import load_file, save_file

    folder = editable()
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[-1] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    weights = open_source(str(folder))
    with pytest.raises(UnsupportedModel, match=f"model: {name} holds NaN or infinity"):
        weights.tensor(name)
    weights.tensor("model.layers.0.mlp.up_proj.weight")


def test_an_architecture_unnamed_but_known_by_its_type(editable: Callable[..., Path]) -> None:
    assert open_source(str(editable("qwen2", config={"architectures": None}))).spec.architecture == "Qwen2ForCausalLM"


def test_remote_code_is_not_run(editable: Callable[..., Path], tmp_path: Path) -> None:
    folder = editable(config={"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}})
    proof = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(proof)!r}, 'w')\nConfig = Model = None\n")
    weights = open_source(str(folder))
    weights.reference_model()
    saved = tmp_path / "saved"
    saved.mkdir()
    weights.save_tokenizer(saved)
    assert not proof.exists()


def test_the_home_of_nobody() -> None:
    with pytest.raises(EdgepipeError, match="~nosuchuser/model does not exist"):
        open_source("~nosuchuser/model")


def test_a_missing_shard_is_named(editable: Callable[..., Path]) -> None:
    folder = editable(tied=False, max_shard_size="60KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal_of(folder)


@pytest.mark.parametrize("keep", [0, 5, 100, 0.5, 0.99])
@pytest.mark.parametrize("sharded", [True, False])
def test_truncated_safetensors_are_named(editable: Callable[..., Path], keep: float, sharded: bool) -> None:
    folder = editable(tied=False, max_shard_size="60KB" if sharded else "1GB")
    file = sorted(folder.glob("*.safetensors"))[-1]
    data = file.read_bytes()
    file.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    assert file.name in refusal_of(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "\x00\xff"])
def test_a_damaged_index_is_named(editable: Callable[..., Path], text: str) -> None:
    folder = editable(tied=False, max_shard_size="60KB")
    (folder / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in refusal_of(folder)


def test_an_index_that_promises_too_much(editable: Callable[..., Path]) -> None:
    folder = editable(tied=False, max_shard_size="60KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    index["weight_map"]["model.norm.weight"] = next(
        shard for shard in shards if shard != index["weight_map"]["model.norm.weight"]
    )
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "has no tensor model.norm.weight" in refusal_of(folder)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "\x00\xff"])
def test_a_damaged_config_is_named(editable: Callable[..., Path], text: str) -> None:
    folder = editable()
    (folder / "config.json").write_text(text)
    assert "config.json" in refusal_of(folder)


def test_integer_weights_are_refused(editable: Callable[..., Path]) -> None:
    from safetensors.numpy import load_file, save_file

    folder = editable()
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.int8)
    save_file(tensors, folder / "model.safetensors")
    assert "model.norm.weight is stored as I8" in refusal_of(folder)


def test_pickles_are_not_loaded(editable: Callable[..., Path]) -> None:
    folder = editable()
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"whatever")
    assert "pickled weights are never loaded, convert them" in refusal_of(folder)


def test_a_part_of_a_bundle_is_no_source(editable: Callable[..., Path]) -> None:
    folder = editable()
    (folder / "model.safetensors").unlink()
    assert "pickled" not in refusal_of(folder)
    (folder.parent / "edgepipe.json").touch()
    assert "it is a part of a bundle, which is exported already" in refusal_of(folder)


def test_a_folder_without_weights(editable: Callable[..., Path]) -> None:
    folder = editable()
    (folder / "model.safetensors").unlink()
    assert "has no model.safetensors" in refusal_of(folder)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(EdgepipeError, match="no config.json"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("reference", ["./nowhere", "/nowhere/at/all", "~/nowhere", "missing.gguf"])
def test_a_path_that_does_not_exist(reference: str) -> None:
    with pytest.raises(EdgepipeError, match="does not exist: expected a .gguf file, a folder or a hub id"):
        open_source(reference)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(UnsupportedModel, match="notes.txt is no GGUF file"):
        open_source(str(tmp_path / "notes.txt"))


def test_revisions_belong_to_hub_ids(tiny_model: TinyModel) -> None:
    with pytest.raises(RecipeError, match="revision 'main' is given"):
        open_source(str(tiny_model("llama")), revision="main")
    with pytest.raises(RecipeError, match="revision 'main' is given"):
        open_source("smollm2-135m", revision="main")


def test_tokenizer_files_are_copied_as_they_are(tiny_model: TinyModel, tmp_path: Path) -> None:
    folder = tiny_model("llama")
    open_source(str(folder)).save_tokenizer(tmp_path)
    for name in (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_generation_config_is_made_where_there_is_none(editable: Callable[..., Path], tmp_path: Path) -> None:
    folder, saved = editable(), tmp_path / "saved"
    (folder / "generation_config.json").unlink()
    saved.mkdir()
    open_source(str(folder)).save_tokenizer(saved)
    made = json.loads((saved / "generation_config.json").read_text())
    assert (made["bos_token_id"], made["eos_token_id"]) == (0, 2)


def test_an_older_tokenizer_becomes_tokenizer_json(editable: Callable[..., Path], tmp_path: Path) -> None:
    """vocab.json and merges.txt, as GPT-2's tokenizers were saved."""
    folder, saved = editable("qwen2"), tmp_path / "saved"
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(merge) for merge in model["merges"]))
    saved.mkdir()
    open_source(str(folder)).save_tokenizer(saved)
    tokens = transformers.AutoTokenizer.from_pretrained(saved).tokenize("the dog")
    assert "".join(tokens) == "theĠdog"


def test_a_missing_tokenizer(editable: Callable[..., Path], tmp_path: Path) -> None:
    folder, saved = editable(), tmp_path / "saved"
    (folder / "tokenizer.json").unlink()
    saved.mkdir()
    with pytest.raises(TokenizerError, match="has no tokenizer: expected tokenizer.json"):
        open_source(str(folder)).save_tokenizer(saved)


@pytest.mark.parametrize(
    ("front_matter", "licence"),
    [
        ("license: apache-2.0", "Apache-2.0"),
        ("license: mit", "MIT"),
        ("license: llama3.2", "LicenseRef-llama3.2"),
        ("license: other\nlicense_name: tiny research", "LicenseRef-tiny-research"),
        ("license: [", None),
        ("tags: [x]", None),
        (None, None),
    ],
)
def test_licence(editable: Callable[..., Path], front_matter: str | None, licence: str | None) -> None:
    folder = editable()
    if front_matter is not None:
        (folder / "README.md").write_text(f"---\n{front_matter}\n---\n# A model\n")
    assert open_source(str(folder)).info.licence == licence


@pytest.mark.slow
def test_memory_stays_that_of_the_largest_tensor(tmp_path: Path) -> None:
    """A bf16 file of 1.2 GiB, tensor by tensor: the peak grows by the largest tensor, not by the file."""
    if not sys.platform.startswith("linux"):
        pytest.skip("ru_maxrss has other units elsewhere")
    from safetensors.torch import save_file

    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=2048, intermediate_size=8192, num_hidden_layers=10, num_attention_heads=16
    )
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in transformers.LlamaForCausalLM(config).named_parameters()}
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    save_file(
        {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()},
        tmp_path / "model.safetensors",
    )
    assert (tmp_path / "model.safetensors").stat().st_size > 1.2 * 2**30
    program = (
        "import resource, sys\n"
        "from edgepipe.exporters.sources import open_source\n"
        "from edgepipe.exporters.sources.spec_from_config import tensor_shapes\n"
        "weights = open_source(sys.argv[1])\n"
        "weights.tensor('model.norm.weight')\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "largest = max(weights.tensor(name).nbytes for name in tensor_shapes(weights.spec))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, largest // 1024)\n"
    )
    result = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    grown, largest = map(int, result.stdout.split())
    assert grown < 1.5 * largest + 40 * 1024  # KiB: the tensor in float32, its bf16 original, a little more
