"""A stream far longer than the model's context, in memory that does not grow.

Samples 20,000 tokens one by one under a 512-token budget, once with `h2o` and once with `window`, each in a process of
its own, and reads the resident memory every 500 tokens. Growth is counted from token 2,000 on; resident memory has to
grow by less than 5 MiB, and the bytes of keys and values have to stay the same. The process's own share of the growth
(RssAnon) is printed beside it: the rest is pages of files, such as the mapped weights, which the engine reads in when
it loads them.

Run:   python benchmarks/stream_memory.py --bundle build/demo
Needs: Linux (it reads /proc) and a bundle: edgepipe export --target smollm2-135m -o build/demo
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from common import MIB, arguments, process_bytes, report, table

from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.session import CacheOptions, DecodeOptions, Session
from edgepipe.runtimes.llm.sampling import SamplingParams

LIMIT_BYTES = 5 * MIB


@dataclass
class Stream:
    """What one stream took: bytes resident, own and of keys and values at ``tokens``, seconds in all."""

    policy: str
    tokens: list[int]
    resident_bytes: list[int]
    own_bytes: list[int]
    kv_bytes: list[int]
    last_position: int
    seconds: float

    def growth(self, sizes: list[int], warm_up: int) -> int:
        """The most bytes by which a later sample exceeds the first one at or after ``warm_up`` tokens."""
        settled = [size for at, size in zip(self.tokens, sizes, strict=True) if at >= warm_up]
        return max(settled) - settled[0]


def stream(bundle: Path, threads: int | None, policy: str, budget: int, tokens: int, every: int) -> Stream:
    """Sample ``tokens`` tokens under a budget; runs in a fresh process."""
    options = DecodeOptions(
        threads=threads,
        cache=CacheOptions(policy, str(budget)),
        sampling=SamplingParams(temperature=0.8, seed=0),
    )
    session = Session(Bundle.open(bundle), options)
    decoder = session.decoder(tokens)
    measured = Stream(policy, [], [], [], [], 0, 0.0)
    begin = perf_counter()
    decoder.start(session.tokenizer.encode("Once upon a time"))
    for count in range(1, tokens + 1):
        decoder.step(1)
        if count % every == 0:
            measured.tokens.append(count)
            measured.resident_bytes.append(process_bytes("VmRSS"))
            measured.own_bytes.append(process_bytes("RssAnon"))
            measured.kv_bytes.append(decoder.kv_bytes)
    measured.last_position = decoder.target.cache.next_position - 1
    measured.seconds = perf_counter() - begin
    return measured


def main() -> None:
    """Measure, print, and exit with 1 if memory grew."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--tokens", type=int, default=20_000, help="length of the stream (default: %(default)s)")
    parser.add_argument("--budget", type=int, default=512, help="tokens kept (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=2_000, help="tokens before growth counts (default: %(default)s)")
    parser.add_argument("--every", type=int, default=500, help="tokens between samples (default: %(default)s)")
    options = parser.parse_args()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        streams = [
            pool.submit(
                stream, options.bundle, options.threads, policy, options.budget, options.tokens, options.every
            ).result()
            for policy in ("h2o", "window")
        ]

    rows = []
    for measured in streams:
        kv = sorted(set(measured.kv_bytes))
        rows.append(
            [
                measured.policy,
                f"{measured.last_position:,}",
                f"{measured.resident_bytes[-1] / MIB:.1f}",
                f"{measured.growth(measured.resident_bytes, options.warm_up) / MIB:+.2f}",
                f"{measured.growth(measured.own_bytes, options.warm_up) / MIB:+.2f}",
                " to ".join(f"{size / MIB:.2f}" for size in kv),
                f"{options.tokens / measured.seconds:.0f}",
            ]
        )
    header = ["policy", "last position", "RSS, MiB", "growth, MiB", "of it own, MiB", "KV, MiB", "tokens/s"]
    print(table(header, rows))
    report(options, {"budget": options.budget, "streams": [asdict(measured) for measured in streams]})
    grown = [
        measured.policy
        for measured in streams
        if measured.growth(measured.resident_bytes, options.warm_up) >= LIMIT_BYTES
    ]
    moved = [measured.policy for measured in streams if len(set(measured.kv_bytes)) > 1]
    if grown or moved:
        sys.exit(f"memory grew under {', '.join(grown + moved)}")


if __name__ == "__main__":
    main()
