"""GGUF files against the gguf package, against transformers and against the models they were written from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.sources import open_source
from edgepipe.exporters.sources.gguf_blocks import repack_q4_k

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")

TinyModel = Callable[..., Path]
WriteGguf = Callable[..., Path]

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture
def tiny(tiny_model: TinyModel, architecture: str) -> Callable[..., Path]:
    """The tiny model of the architecture; Llama 3's ramp as published, the only one a GGUF can carry."""

    def build(tied: bool = True) -> Path:
        changes = {"rope_parameters": LLAMA3_ROPE} if architecture == "llama3_rope" else {}
        return tiny_model(architecture, tied=tied, **changes)

    return build


def state_dict(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("tied", [True, False])
def test_tensors_are_those_of_the_model(tiny: Callable[..., Path], write_gguf: WriteGguf, tied: bool) -> None:
    folder = tiny(tied)
    weights = open_source(str(write_gguf(folder)))
    for name, expected in state_dict(folder).items():
        tensor = weights.tensor(name)
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, expected, err_msg=name)
        assert weights.gguf_type(name) == "F32"
        assert weights.quantized(name) is None
    assert weights.spec.tied_embeddings == tied


def test_spec_is_that_of_the_folder(tiny: Callable[..., Path], write_gguf: WriteGguf, architecture: str) -> None:
    folder = tiny()
    expected = open_source(str(folder)).spec.to_json()
    found = open_source(str(write_gguf(folder))).spec.to_json()
    assert found["rms_norm_eps"] == pytest.approx(expected["rms_norm_eps"], rel=1e-6)  # float32 in the file
    differing = {"rms_norm_eps"}
    if architecture == "mistral":  # a GGUF calls it llama and does not know of sliding windows
        differing |= {"architecture", "context_length"}
    assert {key: found[key] for key in found if key not in differing} == {
        key: expected[key] for key in expected if key not in differing
    }


@pytest.mark.parametrize("quantisation", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_are_carried_over_exactly(
    tiny: Callable[..., Path], write_gguf: WriteGguf, architecture: str, quantisation: str
) -> None:
    folder = tiny(tied=False)
    weights = open_source(str(write_gguf(folder, quantisation)))
    for name, original in state_dict(folder).items():
        matrix = weights.quantized(name)
        if original.ndim == 1:
            assert matrix is None
            continue
        # Rows move, values along a row do not: quantising the rows in Hugging Face's order gives the same blocks.
        kind = gguf.GGMLQuantizationType[quantisation]
        expected = gguf.quants.dequantize(gguf.quants.quantize(original, kind), kind)
        assert matrix is not None
        assert (matrix.bits, matrix.block_size, matrix.zero_points) == (int(quantisation[1]), 32, None)
        if quantisation == "Q4_1":  # the minimum moves into an offset, one addition that rounds
            np.testing.assert_allclose(matrix.dequantize(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())
        else:
            assert matrix.dequantize().tobytes() == expected.tobytes(), name
        assert weights.tensor(name).tobytes() == expected.tobytes(), name
        assert weights.gguf_type(name) == quantisation


def test_superblocks_of_q4_k_are_carried_over() -> None:
    """Random bytes are a valid Q4_K tensor, scales apart; the gguf package can read the type but not write it."""
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (8, 3, 144), dtype=np.uint8)
    blocks[:, :, :4] = random.uniform(0.001, 0.01, (8, 3, 2)).astype("<f2").view(np.uint8).reshape(8, 3, 4)
    rows = blocks.reshape(8, -1)
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType.Q4_K)
    found = repack_q4_k(rows).dequantize()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("quantisation", ["F16", "BF16", "Q5_1", "Q5_0"])
def test_other_types_are_dequantised(tiny_model: TinyModel, write_gguf: WriteGguf, quantisation: str) -> None:
    folder = tiny_model("qwen2")
    weights = open_source(str(write_gguf(folder, quantisation)))
    kind = gguf.GGMLQuantizationType[quantisation]
    name = "model.layers.1.mlp.down_proj.weight"
    expected = gguf.quants.dequantize(gguf.quants.quantize(state_dict(folder)[name], kind), kind)
    np.testing.assert_array_equal(weights.tensor(name), expected)
    assert weights.quantized(name) is None
    assert weights.gguf_type(name) == quantisation


@pytest.mark.parametrize("quantisation", ["F32", "Q4_0"])
def test_reference_model_has_the_same_weights(
    tiny: Callable[..., Path], write_gguf: WriteGguf, quantisation: str
) -> None:
    weights = open_source(str(write_gguf(tiny(tied=False), quantisation)))
    reference = weights.reference_model()
    assert not reference.training
    for name, parameter in reference.state_dict().items():
        np.testing.assert_array_equal(weights.tensor(name), parameter.numpy(), err_msg=name)


def test_reference_model_computes_what_the_original_does(tiny: Callable[..., Path], write_gguf: WriteGguf) -> None:
    """Rotary scaling, head size and biases come through, which transformers alone does not read from the file."""
    from transformers import AutoModelForCausalLM

    folder = tiny()
    original = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    reference = open_source(str(write_gguf(folder))).reference_model()
    tokens = torch.arange(200).reshape(1, -1) % 300
    with torch.no_grad():
        torch.testing.assert_close(reference(tokens).logits, original(tokens).logits, atol=1e-4, rtol=1e-4)


def test_biases_of_llama(tiny_model: TinyModel, write_gguf: WriteGguf) -> None:
    folder = tiny_model("llama", attention_bias=True, mlp_bias=True)
    weights = open_source(str(write_gguf(folder)))
    assert (weights.spec.qkv_bias, weights.spec.o_bias, weights.spec.mlp_bias) == (True, True, True)
    reference = weights.reference_model().state_dict()
    biases = {name: tensor for name, tensor in state_dict(folder).items() if name.endswith(".bias")}
    assert len(biases) == 2 * 7
    for name, expected in biases.items():
        np.testing.assert_array_equal(weights.tensor(name), expected, err_msg=name)
        np.testing.assert_array_equal(reference[name].numpy(), expected, err_msg=name)


def test_linear_rope_scaling_is_read(tiny_model: TinyModel, write_gguf: WriteGguf) -> None:
    path = write_gguf(tiny_model("llama"), llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)
    rope = open_source(str(path)).spec.rope
    assert (rope.scaling, rope.factor, rope.theta) == ("linear", 4.0, 10_000.0)


def test_info(tiny_model: TinyModel, write_gguf: WriteGguf) -> None:
    import hashlib

    path = write_gguf(tiny_model("llama"), general__license="apache-2.0")
    info = open_source(str(path)).info
    assert (info.kind, info.name, info.licence, info.notes) == ("gguf", path.name, "Apache-2.0", ())
    assert info.files == {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}


def test_end_of_turn_is_an_end_too(tiny_model: TinyModel, write_gguf: WriteGguf) -> None:
    path = write_gguf(tiny_model("llama"), tokenizer__ggml__eot_token_id=0)
    assert open_source(str(path)).spec.eos_token_ids == (2, 0)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.expert_count": 8}, "mixture of 8 experts"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
        ({"llama.rope.dimension_count": 8}, "rotary embedding of 8 of 16 channels"),
        ({"llama.block_count": 3}, "no tensor model.layers.2.input_layernorm.weight"),
        ({"llama.feed_forward_length": 128}, r"mlp.gate_proj.weight is \(96, 64\).*promises \(128, 64\)"),
        ({"llama.attention.head_count": None}, "no tensor|promises|cannot read the metadata"),
    ],
)
def test_refusals_say_why(
    tiny_model: TinyModel, write_gguf: WriteGguf, metadata: dict[str, object], message: str
) -> None:
    path = write_gguf(tiny_model("llama"), **metadata)
    with pytest.raises(UnsupportedModel, match=message) as refusal:
        open_source(str(path))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", 0, "num_hidden_layers is 0: expected a whole number from 1"),
        ("block_count", 1, "model.layers.1.*promises only 1 layers"),
        ("context_length", 0, "max_position_embeddings is 0"),
        ("context_length", 10**9, "max_position_embeddings is 1000000000"),
        ("embedding_length", 0, "hidden_size is 0"),
        ("attention.head_count", 0, "num_attention_heads is 0|cannot read the metadata"),
        ("attention.layer_norm_rms_epsilon", -1.0, "rms_norm_eps is -1.0"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "rms_norm_eps is nan"),
        ("rope.freq_base", -1.0, "rope.theta is -1.0"),
    ],
)
def test_numbers_that_no_model_has(
    tiny_model: TinyModel, write_gguf: WriteGguf, key: str, value: float, message: str
) -> None:
    path = write_gguf(tiny_model("llama"), **{f"llama.{key}".replace(".", "__"): value})
    with pytest.raises(UnsupportedModel, match=message) as refusal:
        open_source(str(path))
    assert path.name in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("quantisation", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_weights_that_are_no_numbers_are_named(tiny_model: TinyModel, write_gguf: WriteGguf, quantisation: str) -> None:
    """All bits set are NaN in every float type, and in the scale of a block."""
    path = write_gguf(tiny_model("llama"), quantisation)
    tensor = next(each for each in gguf.GGUFReader(path).tensors if each.name == "blk.1.ffn_up.weight")
    content = bytearray(path.read_bytes())
    content[tensor.data_offset : tensor.data_offset + 4] = b"\xff" * 4
    path.write_bytes(content)
    weights = open_source(str(path))
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(UnsupportedModel, match=f"{path.name}: {name} holds NaN or infinity"):
        weights.tensor(name)
    if quantisation.startswith("Q"):
        with pytest.raises(UnsupportedModel, match=f"{path.name}: {name} holds NaN or infinity"):
            weights.quantized(name)


def test_other_rope_factors_are_refused(tiny_model: TinyModel, write_gguf: WriteGguf) -> None:
    with pytest.raises(UnsupportedModel, match="rope_freqs.weight"):
        open_source(str(write_gguf(tiny_model("llama3_rope"))))


def test_another_architecture_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "phi.gguf", "phi3")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="phi3: supported are llama, mistral, qwen2, qwen3"):
        open_source(str(tmp_path / "phi.gguf"))


@pytest.mark.parametrize("keep", [0, 3, 20, 300, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_one_line_naming_it(tiny_model: TinyModel, write_gguf: WriteGguf, keep: float) -> None:
    path = write_gguf(tiny_model("llama"))
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    with pytest.raises(UnsupportedModel, match="tiny_llama.*gguf") as refusal:
        open_source(str(path))
    assert "\n" not in str(refusal.value)


def test_garbage_is_one_line_naming_it(tmp_path: Path) -> None:
    path = tmp_path / "noise.gguf"
    for seed in range(20):
        noise = np.random.default_rng(seed).integers(0, 256, 5000, dtype=np.uint8).tobytes()
        path.write_bytes(noise if seed % 2 else b"GGUF\x03\0\0\0" + noise)
        with pytest.raises(UnsupportedModel, match="noise.gguf") as refusal:
            open_source(str(path))
        assert "\n" not in str(refusal.value)


def test_flipped_bytes_in_the_header_never_give_a_traceback(tiny_model: TinyModel, write_gguf: WriteGguf) -> None:
    path = write_gguf(tiny_model("llama"))
    data = bytearray(path.read_bytes())
    generator = np.random.default_rng(0)
    opened, refusals = 0, []
    for position in generator.integers(0, 1200, 40):
        damaged = bytearray(data)
        damaged[position] ^= 1 << int(generator.integers(0, 8))
        path.write_bytes(damaged)
        try:
            open_source(str(path))
            opened += 1
        except UnsupportedModel as refusal:
            refusals.append(str(refusal))
    assert opened
    assert refusals
    assert not [refusal for refusal in refusals if "\n" in refusal]


def test_the_file_is_read_not_mapped(tiny_model: TinyModel, write_gguf: WriteGguf) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc/self/maps on this system")
    path = write_gguf(tiny_model("llama"), "Q8_0")
    weights = open_source(str(path))
    weights.tensor("model.embed_tokens.weight")
    assert path.name not in maps.read_text()


def test_config_json_is_loaded_by_transformers(
    tiny: Callable[..., Path], write_gguf: WriteGguf, tmp_path: Path
) -> None:
    from transformers import AutoConfig, GenerationConfig

    folder = tiny()
    weights = open_source(str(write_gguf(folder)))
    weights.save_tokenizer(tmp_path)
    config, original = AutoConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(folder)
    assert config.architectures == [weights.spec.architecture]
    assert config.dtype == torch.float32
    assert config.rope_parameters == original.rope_parameters
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "float32"
    for key in ("hidden_size", "num_key_value_heads", "vocab_size", "tie_word_embeddings", "bos_token_id"):
        assert getattr(config, key) == getattr(original, key), key
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == 2
