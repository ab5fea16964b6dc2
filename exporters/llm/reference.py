"""Golden outputs of an exported decoder, to be replayed on a device by `edgepipe run --verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra
from edgepipe.exporters.llm.onnx import PLAIN
from edgepipe.exporters.llm.onnx_session import OnnxSession
from edgepipe.exporters.llm.validation_text import PROMPTS

NUM_PROMPTS = 4
GREEDY_TOKENS = 24
TOP_LOGITS = 16

# How far logits of another processor, engine version or chunk width may lie from the golden ones. Rounding alone
# differs in float32; with int8 activations, a difference in rounding moves a value by a whole step.
FLOAT_TOLERANCE = 0.02
QUANTIZED_TOLERANCE = 2.0


def write_reference(folder: Path, destination: Path) -> None:
    """Run a few prompts through the graph in ``folder`` (which holds tokenizer.json, too) and write what came out.

    ``destination`` becomes ``{"tolerance", "cases": [{"prompt_ids", "greedy_ids", "logits_top": {"ids", "values"}}]}``:
    ``logits_top`` are the largest logits after the prompt, ``greedy_ids`` the continuation (up to an end token),
    ``tolerance`` the difference of a logit that is no error.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as missing:
        raise MissingExtra("tokenizers", "export") from missing
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = OnnxSession(folder / PLAIN, capacity=256)
    longest = min(session.spec.context_length, 256) - GREEDY_TOKENS
    cases = [_case(session, tokenizer.encode(prompt).ids[:longest]) for prompt in PROMPTS[:NUM_PROMPTS]]
    tolerance = FLOAT_TOLERANCE if session.precisions == {"fp32"} else QUANTIZED_TOLERANCE
    destination.parent.mkdir(parents=True, exist_ok=True)
    destination.write_text(json.dumps({"tolerance": tolerance, "cases": cases}, indent=1) + "\n", encoding="utf-8")


def _case(session: OnnxSession, prompt: list[int]) -> dict[str, Any]:
    session.length = 0
    logits = session.forward(prompt, logits_from=len(prompt) - 1)["logits"][0, 0]
    top = np.argsort(-logits, kind="stable")[:TOP_LOGITS]
    golden = {"ids": top.tolist(), "values": [round(float(logits[token]), 4) for token in top]}
    greedy: list[int] = []
    while len(greedy) < GREEDY_TOKENS:
        greedy.append(int(logits.argmax()))
        if greedy[-1] in session.spec.eos_token_ids:
            break
        logits = session.forward(greedy[-1:])["logits"][0, 0]
    return {"prompt_ids": prompt, "greedy_ids": greedy, "logits_top": golden}
