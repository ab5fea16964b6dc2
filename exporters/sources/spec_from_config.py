"""From a transformers configuration to the numbers the exporters need, refusing what they cannot compute."""

from __future__ import annotations

import re
from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any

from edgepipe.errors import MissingExtra, UnsupportedModel
from edgepipe.runtimes.llm.spec import LARGEST, DecoderSpec, RopeSpec

try:
    from optimum.utils import NormalizedConfigManager
    from transformers import PreTrainedConfig
except ImportError as missing:
    raise MissingExtra(missing.name or "transformers", "export") from missing

# transformers' model_type of every architecture that is read.
ARCHITECTURES: dict[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

# A configuration's name of every size in `LARGEST`.
SIZES: dict[str, str] = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "context_length",
}


def supported_architecture(fields: Mapping[str, Any], name: str) -> str:
    """The architecture that a config.json (as a dict) names.

    Raises:
        UnsupportedModel: it is none of `ARCHITECTURES`, or the weights are stored quantised.
    """
    named = fields.get("architectures")
    if named is not None and not isinstance(named, list):
        raise UnsupportedModel(f"{name}: architectures is {shown(named)}: expected a list of one name")
    named = named or [
        architecture for architecture, model_type in ARCHITECTURES.items() if model_type == fields.get("model_type")
    ]
    architecture = str(named[0]) if named else str(fields.get("model_type") or "an unnamed architecture")
    if architecture not in ARCHITECTURES:
        remote = " (its code lives in the repository, and remote code is never run)" if "auto_map" in fields else ""
        raise UnsupportedModel(f"{name} is {architecture}{remote}: supported are {', '.join(ARCHITECTURES)}")
    quantisation = fields.get("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
        method = method or "an unnamed method"
        raise UnsupportedModel(f"{name} is stored quantised by {method}: export from the original float weights")
    return architecture


def check_sizes(fields: Mapping[str, Any], name: str) -> None:
    """Check the sizes in a configuration (as a dict); those that are absent or null have their defaults.

    Raises:
        UnsupportedModel: a size is no whole number, below 1, or larger than that of any model.
    """
    for key, size in SIZES.items():
        value, largest = fields.get(key), LARGEST[size]
        if value is not None and not (type(value) is int and 1 <= value <= largest):
            raise UnsupportedModel(f"{name}: {key} is {shown(value)}: expected a whole number from 1 to {largest}")


def spec_from_config(
    config: PreTrainedConfig, architecture: str, name: str, eos_token_ids: tuple[int, ...] | None = None
) -> tuple[DecoderSpec, tuple[str, ...]]:
    """The shape of the decoder that ``config`` describes, and notes for the export report.

    ``name`` is what errors call the source. ``eos_token_ids`` replaces the configuration's own (a
    generation_config.json knows better). The context ends where a sliding attention window would begin to slide,
    because up to there it is plain causal attention.

    Raises:
        UnsupportedModel: activation, rotary embedding or sizes that the exporters do not compute, or no model has.
    """
    check_sizes(config.to_dict(), name)
    sizes = NormalizedConfigManager.get_normalized_config_class(ARCHITECTURES[architecture])(config)
    _require("hidden_act", config.hidden_act, "silu")
    hidden_size, num_heads = int(sizes.hidden_size), int(sizes.num_attention_heads)
    num_kv_heads = int(getattr(config, "num_key_value_heads", None) or num_heads)
    head_dim = int(getattr(config, "head_dim", None) or hidden_size // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise UnsupportedModel(
            f"{num_heads} query heads, {num_kv_heads} key/value heads of {head_dim} channels: "
            "the key/value heads must divide the query heads, and the channels must be even"
        )

    context_length, notes = int(config.max_position_embeddings), []
    window = _sliding_window(config, architecture)
    if window is not None and window < context_length:
        notes.append(f"context is {window} tokens, the sliding attention window, not {context_length}")
        context_length = window

    # Mistral and Qwen2 have no such switches, whatever their configuration says.
    attention_bias = architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM") and bool(config.attention_bias)
    mlp_bias = architecture == "LlamaForCausalLM" and bool(config.mlp_bias)
    if eos_token_ids is None:
        eos_token_ids = token_ids(config.eos_token_id)
    bos = token_ids(config.bos_token_id)
    spec = DecoderSpec(
        architecture=architecture,
        num_layers=int(sizes.num_layers),
        hidden_size=hidden_size,
        intermediate_size=int(config.intermediate_size),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=int(sizes.vocab_size),
        context_length=context_length,
        rms_norm_eps=float(config.rms_norm_eps),
        rope=_rope(config),
        tied_embeddings=bool(config.tie_word_embeddings),
        qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
        o_bias=attention_bias,
        mlp_bias=mlp_bias,
        qk_norm=architecture == "Qwen3ForCausalLM",
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos_token_ids,
    )
    if fault := spec.fault():
        raise UnsupportedModel(f"{name} has a damaged configuration: {fault}")
    return spec, tuple(notes)


def tensor_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Hugging Face name and shape of every tensor of a decoder, embeddings first, in the order of computation."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    linear: dict[str, tuple[int, int, bool]] = {
        "self_attn.q_proj": (query, hidden, spec.qkv_bias),
        "self_attn.k_proj": (key, hidden, spec.qkv_bias),
        "self_attn.v_proj": (key, hidden, spec.qkv_bias),
        "self_attn.o_proj": (hidden, query, spec.o_bias),
        "mlp.gate_proj": (inner, hidden, spec.mlp_bias),
        "mlp.up_proj": (inner, hidden, spec.mlp_bias),
        "mlp.down_proj": (hidden, inner, spec.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if spec.qk_norm:
        norms |= {"self_attn.q_norm": spec.head_dim, "self_attn.k_norm": spec.head_dim}

    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, hidden)}
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{name}.weight": (size,) for name, size in norms.items()}
        for name, (out_features, in_features, bias) in linear.items():
            shapes[f"{prefix}{name}.weight"] = (out_features, in_features)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (out_features,)
    shapes["model.norm.weight"] = (hidden,)
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.num_logits, hidden)
    return shapes


def check_tensors(spec: DecoderSpec, found: Mapping[str, tuple[int, ...]], name: str) -> None:
    """Compare the tensors of a source, by Hugging Face name, with those its configuration promises.

    Raises:
        UnsupportedModel: a tensor is missing or has another shape, or there are more layers.
    """
    for tensor in found:
        layer = re.match(r"model\.layers\.(\d+)\.", tensor)
        if layer and int(layer[1]) >= spec.num_layers:
            raise UnsupportedModel(
                f"{name} has a tensor {tensor}, its configuration promises only {spec.num_layers} layers: "
                "correct num_hidden_layers, or download the model again"
            )
    for tensor, shape in tensor_shapes(spec).items():
        if tensor not in found:
            raise UnsupportedModel(f"{name} has no tensor {tensor}: its configuration promises one of shape {shape}")
        if tuple(found[tensor]) != shape:
            raise UnsupportedModel(f"{name}: {tensor} is {tuple(found[tensor])}, its configuration promises {shape}")


def token_ids(ids: Any) -> tuple[int, ...]:
    """A token id as configurations write it (absent, one or several), as a tuple; whether it is one is not checked."""
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (ids,)


def _require(key: str, value: object, expected: object) -> None:
    if value != expected:
        raise UnsupportedModel(f"{key} is {value!r}: only {expected!r} can be exported")


def _sliding_window(config: PreTrainedConfig, architecture: str) -> int | None:
    window = getattr(config, "sliding_window", None)
    slides = architecture == "MistralForCausalLM" or "sliding_attention" in (getattr(config, "layer_types", None) or ())
    return int(window) if window and slides else None


def _rope(config: PreTrainedConfig) -> RopeSpec:
    fields: dict[str, Any] = config.rope_parameters
    partial = fields.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    if partial is not None:
        _require("partial_rotary_factor", float(partial), 1.0)
    scaling, theta = str(fields.get("rope_type", "default")), float(fields["rope_theta"])
    if scaling == "default":
        return RopeSpec(theta)
    if scaling == "linear":
        return RopeSpec(theta, "linear", factor=float(fields["factor"]))
    if scaling == "llama3":
        return RopeSpec(
            theta,
            "llama3",
            factor=float(fields["factor"]),
            low_freq_factor=float(fields["low_freq_factor"]),
            high_freq_factor=float(fields["high_freq_factor"]),
            original_context_length=int(fields["original_max_position_embeddings"]),
        )
    raise UnsupportedModel(f"rope scaling {scaling!r}: only default, linear and llama3 can be exported")
