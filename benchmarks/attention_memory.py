"""Prefill memory: attention that never stores S x T scores, against attention that does.

Three ways to prefill the same prompt, each in a process of its own:

    flash         the plain graph, whole prompt at once; no S x T matrix exists
    materialised  the same graph and prompt with onnxruntime's flash attention switched off
    H2O, chunked  the scored graph in chunks of 128 under a budget of 512 tokens: O(chunk x (budget + chunk))

For each prompt length: peak memory above that of the loaded and warmed-up model (all of it: keys and values,
activations, scores), its growth over the length before (2.0 is linear, 4.0 quadratic when nothing else is there), and
how far the logits after the prompt differ between the first two. The last column is what storing scores costs: the
peak of `materialised` less that of `flash`.

Run:   python benchmarks/attention_memory.py --bundle build/smollm2-fp32
Needs: Linux (it reads /proc) and a bundle, in float32 so that logits may be compared to 1e-4:
       edgepipe export --target smollm2-135m --precision fp32 -o build/smollm2-fp32
       About 4 GB of free memory for 8,192 tokens.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from common import MIB, arguments, process_bytes, prose, report, table

from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.session import CacheOptions, DecodeOptions, Session

BUDGET, CHUNK = 512, 128
# Read by onnxruntime's GroupQueryAttention on the CPU when a session is made.
FLASH_SWITCH = "ORT_GQA_DISABLE_FLASH_ATTENTION"


@dataclass(frozen=True)
class Sample:
    """One prefill: bytes above the warmed-up model, bytes of keys and values, the last row of logits."""

    peak_bytes: int
    kv_bytes: int
    logits: np.ndarray


def prefill(bundle: Path, threads: int | None, way: str, length: int) -> Sample:
    """Prefill ``length`` tokens; runs in a fresh process."""
    if way == "materialised":
        os.environ[FLASH_SWITCH] = "1"
    cache = CacheOptions("h2o", str(BUDGET)) if way == "H2O, chunked" else CacheOptions()
    options = DecodeOptions(threads=threads, chunk=CHUNK if cache.budget else length, gamma=1, cache=cache)
    session = Session(Bundle.open(bundle), options)
    tokens = session.tokenizer.encode(prose(8 * length))[:length]
    assert len(tokens) == length
    session.cached("target", cache, 16).prefill(tokens[:16])

    target = session.cached("target", cache, length)
    before = _reset_peak()
    logits = target.prefill(tokens)
    return Sample(process_bytes("VmHWM") - before, length * session.spec.kv_bytes_per_token, logits.copy())


def _reset_peak() -> int:
    """Start a new peak (VmHWM) at the memory resident now, and return it in bytes."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return process_bytes("VmRSS")


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "", bundle="build/smollm2-fp32")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192], help="prompt tokens")
    options = parser.parse_args()
    ways = ("flash", "materialised", "H2O, chunked")
    samples: dict[str, list[Sample]] = {}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for way in ways:
            samples[way] = [
                pool.submit(prefill, options.bundle, options.threads, way, length).result()
                for length in options.lengths
            ]

    rows = []
    differences = []
    for index, length in enumerate(options.lengths):
        flash, stored = samples["flash"][index], samples["materialised"][index]
        differences.append(float(np.abs(flash.logits - stored.logits).max()))
        peaks = [_with_growth([sample.peak_bytes for sample in samples[way]], index) for way in ways]
        scores = [b.peak_bytes - a.peak_bytes for a, b in zip(samples["flash"], samples["materialised"], strict=True)]
        kv = f"{flash.kv_bytes / MIB:.0f}"
        rows.append([f"{length:,}", kv, *peaks, _with_growth(scores, index), f"{differences[-1]:.1e}"])
    header = ["tokens", "keys and values, MiB", *(f"{way}, MiB" for way in ways), "scores, MiB", "max abs logit diff."]
    print(table(header, rows))
    report(
        options,
        {
            "budget": BUDGET,
            "chunk": CHUNK,
            "max_abs_logit_difference": dict(zip(options.lengths, differences, strict=True)),
            "samples": {
                way: [
                    {"tokens": length, **{key: value for key, value in asdict(sample).items() if key != "logits"}}
                    for length, sample in zip(options.lengths, measured, strict=True)
                ]
                for way, measured in samples.items()
            },
        },
    )


def _with_growth(values: list[int], index: int) -> str:
    """MiB, and the factor over the value before."""
    text = f"{values[index] / MIB:.0f}"
    return text if index == 0 else f"{text} (x{values[index] / values[index - 1]:.2f})"


if __name__ == "__main__":
    main()
