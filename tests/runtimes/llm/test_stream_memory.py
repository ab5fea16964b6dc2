"""A stream far beyond the model's context takes no more memory than its beginning."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.runtimes.llm.decoder import CachedDecoder

TOKENS, WARM_UP, BUDGET = 20_000, 2_000, 64

# In a process of its own: the resident memory of pytest moves for other reasons.
STREAM = """
import json, sys
from pathlib import Path
from edgepipe.lazy import load
from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.engines.onnx import OnnxDecoder
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies import POLICIES
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
from edgepipe.runtimes.llm.spec import DecoderSpec
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder

model, spec, name, budget, tokens, warm_up = sys.argv[1:]
spec = DecoderSpec.from_json(json.loads(spec))
policy = load(POLICIES[name])(int(budget))
engine = OnnxDecoder(Path(model), spec, threads=1, scored=policy.needs_scores)
cache = KVCache(spec, policy.budget, 8, scored=policy.needs_scores)
decoder = SpeculativeDecoder(CachedDecoder(engine, cache, policy, 8), Sampler(SamplingParams(1.0, seed=0)))

def resident():
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) * 1024

samples = []
decoder.start([1, 2, 3])
for count in range(int(tokens)):
    decoder.step(1)
    if count >= int(warm_up) and count % 500 == 0:
        samples.append([resident(), decoder.kv_bytes])
print(json.dumps({"samples": samples, "positions": cache.next_position, "slots": cache.length}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("policy", ["window", "h2o"])
def test_a_stream_of_20000_tokens_does_not_grow(policy: str, exported: Callable[..., Any]) -> None:
    component = exported("llama")
    spec, model = component.spec, component.folder / component.paths["scored" if policy == "h2o" else "plain"]
    arguments = [model, json.dumps(spec.to_json()), policy, BUDGET, TOKENS, WARM_UP]
    run = subprocess.run([sys.executable, "-c", STREAM, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)

    resident, kv_bytes = np.array(found["samples"]).T
    assert found["positions"] > 30 * spec.context_length
    assert found["slots"] == BUDGET
    assert set(kv_bytes) == {(BUDGET + 8) * spec.kv_bytes_per_token}
    # The list of the text's tokens grows by 8 bytes and an integer each; a leak of a row a token would be 9 MiB.
    assert resident.max() - resident[0] < 2 * 2**20


@pytest.mark.every_engine
@pytest.mark.parametrize("scored", [False, True])
def test_positions_beyond_the_context_rotate_as_in_transformers(
    scored: bool, cached: Callable[..., CachedDecoder], tiny_model: Callable[..., Path]
) -> None:
    """Two pieces of text far apart: rotation is relative, so that only a jump shows which positions were used."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    from edgepipe.runtimes.llm.kv_policies.h2o import H2O

    decoder = cached("llama", H2O(512) if scored else None)
    context = decoder.decoder.spec.context_length
    tokens = np.random.default_rng(0).integers(0, decoder.decoder.spec.vocab_size, 54)
    positions = [*range(18), *range(3 * context, 3 * context + 18), *range(7 * context, 7 * context + 18)]
    logits = []
    for start in range(0, 54, 9):  # the widest graph of a file of static widths
        if start % 18 == 0:
            decoder.cache.commit(decoder.cache.pending)
            decoder.cache.next_position = positions[start]
        logits.append(decoder.extend(tokens[start : start + 9].tolist()).copy())

    # Its own tables may be any length: it computes rotations from the positions it is given.
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), attn_implementation="eager").eval()
    causal = torch.full((54, 54), torch.finfo(torch.float32).min).triu(1)[None, None]
    with torch.no_grad():
        expected = model(
            torch.tensor(tokens[None]), attention_mask=causal, position_ids=torch.tensor(positions)[None]
        ).logits[0]
    np.testing.assert_allclose(np.concatenate(logits), expected.numpy(), atol=2e-3)
