"""Where the time of plain decoding goes, in each engine of a bundle.

Each engine decodes greedily in a process of its own, on one thread, after 256 to 512 tokens. Linux `perf` samples it
when it is warm, so shares are of one core's time. The shared object and the function of a sample tell what it is:

    matrix products    of activations and weights
    attention          scores, softmax, weighted values, and what is packed and stored for them
    other operators    norms, activation functions, sums, RoPE, embeddings, and the engine's steps between operators
    Python and numpy   edgepipe's own code, the interpreter, numpy, the engine's binding
    libc and kernel    memory that is allocated, filled and copied, and page faults, whoever causes them
    rest               what no rule knows: if it is over 10 %, a line says what

Where a library has no symbols, more is needed. onnxruntime's own profiler divides the samples that fell on it, by the
time of its operators in a second run. ExecuTorch's wheel has no profiler. Its attention is in a library of its own,
and functions of its main library with instructions for products of int8 are matrix products. Weights must be int8 or
int4, then: in float32, products are not told from other operators there, and in tflite not from attention.

Run:   python benchmarks/engine_profile.py --bundle build/engines
Needs: Linux with perf and objdump, and a bundle for all engines:
       edgepipe export --target smollm2-135m --formats onnx,tflite,executorch -o build/engines
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from common import arguments, report, table
from engine_samples import KINDS, REST, Samples, classify, read_samples, shares_of

from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.decode_options import CacheOptions, DecodeOptions
from edgepipe.pipeline.decoder_engines import exported_engines
from edgepipe.pipeline.session import Session
from edgepipe.runtimes.llm.engines import is_installed

LENGTHS = (256, 512)  # of the text, in tokens
WARM_UP, PROFILED = 20, 100  # forwards
MUCH = 0.1
PERF = ("perf", "record", "--quiet", "--event", "cpu-clock", "--freq", "997", "--output")


def check_tools(folder: Path) -> None:
    """See that there are perf and objdump, and that perf may sample."""
    missing = [tool for tool in ("perf", "objdump") if shutil.which(tool) is None]
    if missing:
        packages = "apt install linux-perf binutils, on Ubuntu linux-tools-generic binutils"
        raise SystemExit(f"{' and '.join(missing)} not found: {packages}")
    if subprocess.run([*PERF, folder / "try", "true"], capture_output=True, check=False).returncode:
        raise SystemExit(
            "perf may not sample: sysctl kernel.perf_event_paranoid=2, or run the container with CAP_PERFMON"
        )


def stepper(options: argparse.Namespace, engine: str) -> Callable[[], None]:
    """A function that decodes the next ``--width`` tokens, over and over from `LENGTHS`' first to its last."""
    shortest, longest = LENGTHS
    session = Session(Bundle.open(options.bundle), DecodeOptions(threads=options.threads, engine=engine))
    target = session.cached("target", CacheOptions(), longest)
    target.prefill([0] * shortest)
    tokens = [0] * options.width

    def step() -> None:
        if target.cache.length + len(tokens) > longest:
            target.cache.truncate(shortest)
        tokens[:] = target.extend(tokens).argmax(axis=1).tolist()
        target.commit(len(tokens))

    for _ in range(WARM_UP):
        step()
    return step


def sample(options: argparse.Namespace, engine: str, data: Path) -> float:
    """Let perf sample this process into ``data``; returns the milliseconds of CPU time of a forward."""
    step = stepper(options, engine)
    perf = subprocess.Popen([*PERF, data, "--pid", str(os.getpid()), "--", "sleep", str(options.seconds)])
    steps, begin = 0, process_time()
    while perf.poll() is None:
        step()
        steps += 1
    return (process_time() - begin) / steps * 1000


def profile_onnxruntime(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Shares of onnxruntime's operators in their sum, by its own profiler."""
    import onnxruntime

    class ProfiledSession(onnxruntime.InferenceSession):
        def __init__(self, model: str, options: Any, **others: Any) -> None:
            options.enable_profiling = True
            options.profile_file_prefix = str(folder / "onnxruntime")
            super().__init__(model, options, **others)
            sessions.append(self)

    sessions: list[ProfiledSession] = []
    onnxruntime.InferenceSession = ProfiledSession
    step = stepper(options, "onnx")
    for _ in range(PROFILED):
        step()
    events = json.loads(Path(sessions[0].end_profiling()).read_text(encoding="utf-8"))
    begin = [event["ts"] for event in events if event["name"] == "model_run"][-PROFILED]
    spent: Counter[str] = Counter()
    for event in events:
        if event["name"].endswith("_kernel_time") and event["ts"] >= begin:
            spent[event["args"]["op_name"]] += event["dur"]
    return {operator: time / spent.total() for operator, time in spent.most_common()}


def unknown(samples: Samples) -> str:
    """The five largest of the rest."""
    return ", ".join([" ".join(name) for name, _ in samples.most_common() if classify(*name) == REST][:5])


def main() -> None:
    """Sample and print."""
    parser = arguments(__doc__ or "", bundle="build/engines")
    parser.set_defaults(threads=1)
    parser.add_argument("--width", type=int, default=1, metavar="S", help="tokens of a forward (default: 1)")
    parser.add_argument("--seconds", type=int, default=10, help="of each engine (default: %(default)s)")
    options = parser.parse_args()
    engines = exported_engines(Bundle.open(options.bundle).manifest["components"]["target"])
    rows, raw = [], {}
    with (
        TemporaryDirectory() as scratch,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        folder = Path(scratch)
        check_tools(folder)
        for engine in filter(is_installed, engines):
            cpu_ms = pool.submit(sample, options, engine, folder / engine).result()
            operators = pool.submit(profile_onnxruntime, options, folder).result() if engine == "onnx" else {}
            samples = read_samples(folder / engine)
            shares = shares_of(samples, operators)
            rows.append([engine, *(f"{shares[kind]:.1%}" for kind in KINDS), f"{cpu_ms:.2f}"])
            functions = {f"{Path(library).name} {symbol}": count for (library, symbol), count in samples.most_common()}
            raw[engine] = {"shares": shares, "cpu_ms": cpu_ms, "onnx_operators": operators, "samples": functions}
            if shares[REST] > MUCH:
                print(f"{engine}: {shares[REST]:.0%} is in what no rule knows: {unknown(samples)}")
    print(table(["engine", *KINDS, "CPU ms a forward"], rows))
    report(options, {"width": options.width, "engines": raw})


if __name__ == "__main__":
    main()
