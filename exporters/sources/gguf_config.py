"""The transformers configuration of a GGUF file, with what transformers leaves out of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra, UnsupportedModel
from edgepipe.exporters.sources.quiet import no_warnings
from edgepipe.exporters.sources.spec_from_config import ARCHITECTURES, token_ids
from edgepipe.exporters.sources.weights import one_line
from edgepipe.runtimes.llm.rope import inverse_frequencies
from edgepipe.runtimes.llm.spec import RopeSpec

try:
    from transformers import AutoConfig, PreTrainedConfig
except ImportError as missing:
    raise MissingExtra(missing.name or "transformers", "export") from missing

# GGUF's general.architecture; Mistral's models go by "llama" there.
GGUF_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


def config_from_gguf(
    path: Path, fields: Mapping[str, Any], tensor_shapes: Mapping[str, tuple[int, ...]], rope_factors: np.ndarray | None
) -> tuple[PreTrainedConfig, str, tuple[int, ...]]:
    """Configuration, architecture (``"LlamaForCausalLM"``, ...) and end tokens.

    ``fields`` is the file's metadata, ``tensor_shapes`` are in torch's order by GGUF name, ``rope_factors`` the
    tensor rope_freqs.weight (float32 ``[head_dim / 2]``) where there is one.

    Raises:
        UnsupportedModel: another architecture, a mixture of experts, a rotary embedding that is not exported.
    """
    kind = str(fields["general.architecture"])
    if kind not in GGUF_ARCHITECTURES:
        raise UnsupportedModel(f"{path.name} is of architecture {kind}: supported are {', '.join(GGUF_ARCHITECTURES)}")
    if fields.get(f"{kind}.expert_count"):
        raise UnsupportedModel(f"{path.name} is a mixture of {fields[f'{kind}.expert_count']} experts: not supported")
    try:
        with no_warnings():
            config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except Exception as error:  # metadata missing or of a wrong type, wherever transformers meets it
        raise UnsupportedModel(f"transformers cannot read the metadata of {path}: {one_line(error)}") from error

    architecture = next(name for name, model_type in ARCHITECTURES.items() if model_type == config.model_type)
    config.architectures = [architecture]
    embeddings = tensor_shapes.get("token_embd.weight")
    if embeddings:
        config.vocab_size = embeddings[0]
    head_dim = fields.get(f"{kind}.attention.key_length")
    if head_dim:
        config.head_dim = int(head_dim)
    if architecture == "MistralForCausalLM":  # the default of transformers is one checkpoint's window
        config.sliding_window = fields.get(f"{kind}.attention.sliding_window")
    if kind != "qwen2":
        config.attention_bias = "blk.0.attn_q.bias" in tensor_shapes
        config.mlp_bias = "blk.0.ffn_up.bias" in tensor_shapes
    config.rope_parameters = _rope_parameters(kind, fields, config, rope_factors)

    ends = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    eos = tuple(dict.fromkeys(int(end) for end in ends if end is not None))
    return config, architecture, eos or token_ids(config.eos_token_id)


def _rope_parameters(
    kind: str, fields: Mapping[str, Any], config: PreTrainedConfig, factors: np.ndarray | None
) -> dict[str, Any]:
    """The rotary embedding; transformers reads its base only."""
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    rotated = int(fields.get(f"{kind}.rope.dimension_count") or head_dim)
    if rotated != head_dim:
        raise UnsupportedModel(f"rotary embedding of {rotated} of {head_dim} channels: only all of them are supported")

    theta = float(config.rope_parameters["rope_theta"])
    scaling = str(fields.get(f"{kind}.rope.scaling.type", "none"))
    if scaling == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": float(fields[f"{kind}.rope.scaling.factor"])}
    if scaling != "none":
        raise UnsupportedModel(f"rope scaling {scaling!r}: only none, linear and llama3 can be exported")
    if factors is None:
        return {"rope_type": "default", "rope_theta": theta}

    # A GGUF keeps only the factors that result from the ramp; Llama 3.1 and 3.2 use this one.
    llama3 = RopeSpec(theta, "llama3", float(factors.max()), 1.0, 4.0, original_context_length=8192)
    expected = inverse_frequencies(RopeSpec(theta), head_dim) / inverse_frequencies(llama3, head_dim)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise UnsupportedModel("rope_freqs.weight holds factors other than those of Llama 3.1: not supported")
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": llama3.factor,
        "low_freq_factor": llama3.low_freq_factor,
        "high_freq_factor": llama3.high_freq_factor,
        "original_max_position_embeddings": llama3.original_context_length,
    }
