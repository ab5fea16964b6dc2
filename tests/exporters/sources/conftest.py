"""GGUF files of the tiny decoders, written with the gguf package in the conventions of llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

GGUF_ARCHITECTURES = {"llama": "llama", "llama3_rope": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}

WriteGguf = Callable[..., Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGguf:
    """``write_gguf(folder, quantisation="F32", **metadata)``: the model of ``folder`` as a GGUF file.

    ``quantisation`` is that of the matrices; norms and biases are F32. ``metadata`` adds or, with None, leaves out
    keys (dots as double underscores).
    """
    pytest.importorskip("gguf")

    def write(folder: Path, quantisation: str = "F32", **metadata: Any) -> Path:
        path = tmp_path / f"{folder.name}.{quantisation}.gguf"
        _write(path, folder, quantisation, {key.replace("__", "."): value for key, value in metadata.items()})
        return path

    return write


def _write(path: Path, folder: Path, quantisation: str, metadata: dict[str, Any]) -> None:
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    kind = GGUF_ARCHITECTURES[
        {"Llama": "llama", "Mistral": "mistral", "Qwen2": "qwen2", "Qwen3": "qwen3"}[
            config["architectures"][0].removesuffix("ForCausalLM")
        ]
    ]
    writer = gguf.GGUFWriter(path, kind)
    rope = config["rope_parameters"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    fields: dict[str, Any] = {
        "general.name": "tiny",
        f"{kind}.block_count": config["num_hidden_layers"],
        f"{kind}.context_length": config["max_position_embeddings"],
        f"{kind}.embedding_length": config["hidden_size"],
        f"{kind}.feed_forward_length": config["intermediate_size"],
        f"{kind}.attention.head_count": heads,
        f"{kind}.attention.head_count_kv": kv_heads,
        f"{kind}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{kind}.attention.key_length": head_dim,
        f"{kind}.rope.dimension_count": head_dim,
        f"{kind}.rope.freq_base": rope["rope_theta"],
        **_tokenizer_fields(folder),
        **metadata,
    }
    for key, value in fields.items():
        _add(writer, key, value)

    tensors = load_file(folder / "model.safetensors")
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind), config["num_hidden_layers"]
    )
    for name, tensor in tensors.items():
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            tensor = _halves_to_interleaved(tensor, heads if "q_proj" in name else kv_heads)
        module, suffix = name.rsplit(".", 1)
        stored = gguf.GGMLQuantizationType[quantisation if tensor.ndim == 2 else "F32"]
        data = gguf.quants.quantize(np.ascontiguousarray(tensor), stored)
        writer.add_tensor(f"{names.get_name(module)}.{suffix}", data, raw_dtype=stored)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, head_dim))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def _tokenizer_fields(folder: Path) -> dict[str, Any]:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokens = {index: token for token, index in vocabulary.items()}
    normal, control, unused = 1, 3, 5
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [tokens.get(index, f"[PAD{index}]") for index in range(size)],
        "tokenizer.ggml.token_type": [
            control if index in special else normal if index in tokens else unused for index in range(size)
        ],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": vocabulary["<|endoftext|>"],
        "tokenizer.ggml.eos_token_id": vocabulary["<|im_end|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text(encoding="utf-8"),
    }


def _halves_to_interleaved(tensor: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's order of query and key rows: row 2i of a head is its channel i, row 2i + 1 its channel i + half."""
    head_dim = tensor.shape[0] // num_heads
    within = [row // 2 + row % 2 * (head_dim // 2) for row in range(head_dim)]
    order = [head * head_dim + row for head in range(num_heads) for row in within]
    return tensor[order]


def _llama3_factors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """Divisors of the frequencies, by wavelength as Llama 3.1's reference code has it."""
    factors = []
    for channel in range(0, head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (channel / head_dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        if turns < rope["low_freq_factor"]:
            factors.append(rope["factor"])
        elif turns > rope["high_freq_factor"]:
            factors.append(1.0)
        else:
            smooth = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)
