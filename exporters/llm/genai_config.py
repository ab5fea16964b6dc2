"""genai_config.json: what onnxruntime-genai needs to know to run the exported graph."""

from __future__ import annotations

from typing import Any

from edgepipe.runtimes.llm.spec import DecoderSpec


def genai_config(spec: DecoderSpec, filename: str) -> dict[str, Any]:
    """The configuration of a decoder whose graph is ``filename``, relative to the folder of the config.

    Special tokens that the model does not have are left out.
    """
    tokens: dict[str, Any] = {}
    if spec.bos_token_id is not None:
        tokens["bos_token_id"] = spec.bos_token_id
    if spec.eos_token_ids:
        tokens |= {"eos_token_id": list(spec.eos_token_ids), "pad_token_id": spec.eos_token_ids[0]}
    return {
        "model": {
            "type": "llama",
            **tokens,
            "context_length": spec.context_length,
            "vocab_size": spec.num_logits,  # onnxruntime-genai means the width of the logits
            "decoder": {
                "filename": filename,
                "head_size": spec.head_dim,
                "hidden_size": spec.hidden_size,
                "num_attention_heads": spec.num_heads,
                "num_hidden_layers": spec.num_layers,
                "num_key_value_heads": spec.num_kv_heads,
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "position_ids": "position_ids",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {
            "do_sample": False,
            "early_stopping": True,
            "length_penalty": 1.0,
            "max_length": spec.context_length,
            "min_length": 0,
            "no_repeat_ngram_size": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
            "past_present_share_buffer": True,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_k": 1,
            "top_p": 1.0,
        },
    }
