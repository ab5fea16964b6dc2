"""Golden outputs of an exported decoder, for `edgepipe run --verify` to replay on the device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.engines.onnx import OnnxDecoder
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.full import Full
from edgepipe.runtimes.llm.spec import DecoderSpec
from edgepipe.runtimes.llm.tokenizer import load_tokenizer

PROMPTS = ("The capital of France is", "def fibonacci(n):\n    ", "Once upon a time, in a land of")
GREEDY_TOKENS = 16
TOP_LOGITS = 32

# Between two processors the same graph differs by rounding. Where activations are quantised to int8, a rounding
# difference moves some to their neighbouring codes: on SmolLM2-135M the largest logits then differ by up to 0.8.
FP32_TOLERANCE = 1e-2
QUANTIZED_TOLERANCE = 1.0


def write_reference(path: Path, component: Path, spec: DecoderSpec, quantized: bool) -> None:
    """Run the plain graph in ``component`` on fixed prompts and write what it answers.

    The file holds ``tolerance`` (of a logit) and ``cases``: ``prompt_ids``, the ``greedy_ids`` that follow, and
    ``logits_top``, the ``ids`` and ``values`` of the largest logits after the prompt.
    """
    tokenizer = load_tokenizer(component)
    decoder = OnnxDecoder(component / "onnx/model.onnx", spec)
    golden = {
        "tolerance": QUANTIZED_TOLERANCE if quantized else FP32_TOLERANCE,
        "cases": [_case(decoder, tokenizer.encode(prompt)) for prompt in PROMPTS],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(golden) + "\n", encoding="utf-8")


def _case(engine: OnnxDecoder, prompt: list[int]) -> dict[str, Any]:
    policy = Full(len(prompt) + GREEDY_TOKENS)
    cache = KVCache(engine.spec, policy.budget, len(prompt))
    decoder = CachedDecoder(engine, cache, policy, chunk=len(prompt))
    logits = decoder.prefill(prompt)
    top = np.argsort(-logits)[:TOP_LOGITS]
    values = logits[top]
    greedy = []
    for _ in range(GREEDY_TOKENS):
        greedy.append(int(logits.argmax()))
        logits = decoder.prefill(greedy[-1:])
    return {
        "prompt_ids": prompt,
        "greedy_ids": greedy,
        "logits_top": {"ids": top.tolist(), "values": values.tolist()},
    }
