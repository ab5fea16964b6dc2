"""Perplexity of a long text under a KV budget: which tokens are worth keeping?

The text is read in chunks of 32 tokens; after each chunk the policy evicts down to its budget, a share of the text.
Each token is scored by the logits that precede it, so it is predicted from what the cache then holds. Compared are
the full cache, the window (4 sinks and the most recent tokens), H2O with its scores divided by the number of queries
that could see a token (the default), and H2O with the paper's plain sums.

The text is, by default, the prose that every Python carries for its `help()`, the longest topic (the data model)
first, without code, tables and headings, cut to 4,000 tokens; its SHA-256 is printed since it differs between versions
of Python. `--text FILE` takes another.

Run:   python benchmarks/quality.py --bundle build/demo
Needs: a bundle: edgepipe export --target smollm2-135m -o build/demo
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from common import arguments, prose, report, sha256, table

from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.session import CacheOptions, DecodeOptions, Session

POLICIES = {
    "full": CacheOptions(),
    "window": CacheOptions("window", "100%"),
    "h2o": CacheOptions("h2o", "100%"),
    "h2o, summed": CacheOptions("h2o", "100%", normalise=False),
}


def losses(session: Session, cache: CacheOptions, tokens: list[int]) -> np.ndarray:
    """Negative log-likelihood of every token but the first, in nats: float64 ``[len(tokens) - 1]``."""
    decoder = session.cached("target", cache, len(tokens))
    found = np.empty(len(tokens) - 1)
    for start in range(0, len(found), decoder.chunk):
        chunk = tokens[start : start + decoder.chunk + 1]
        logits = decoder.extend(chunk[:-1]).astype(np.float64)
        decoder.commit(len(chunk) - 1)
        logits -= logits.max(axis=1, keepdims=True)
        normaliser = np.log(np.exp(logits).sum(axis=1))
        found[start : start + len(normaliser)] = normaliser - logits[np.arange(len(normaliser)), chunk[1:]]
    return found


def perplexity(nats: np.ndarray) -> float:
    """exp of the mean."""
    return math.exp(nats.mean())


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--text", type=Path, metavar="FILE", help="another text (UTF-8)")
    parser.add_argument("--tokens", type=int, default=4_000, help="length of the text (default: %(default)s)")
    parser.add_argument("--chunk", type=int, default=32, help="tokens between evictions (default: %(default)s)")
    parser.add_argument("--budgets", nargs="+", default=["20%", "10%"], help="shares of the text (default: 20%% 10%%)")
    options = parser.parse_args()
    session = Session(Bundle.open(options.bundle), DecodeOptions(threads=options.threads, chunk=options.chunk))
    text = options.text.read_text(encoding="utf-8") if options.text else prose(8 * options.tokens)
    tokens = session.tokenizer.encode(text)[: options.tokens]
    text = session.tokenizer.decode(tokens)
    print(f"{len(tokens):,} tokens, {len(text):,} characters, SHA-256 {sha256(text)}\n")

    raw: dict[str, dict[str, list[float]]] = {}
    rows = []
    for policy, cache in POLICIES.items():
        row = [policy]
        raw[policy] = {}
        for budget in options.budgets:
            if policy == "full" and raw[policy]:
                row.append("")
                continue
            kept = CacheOptions(**{**vars(cache), "budget": budget if cache.budget else None})
            nats = losses(session, kept, tokens)
            raw[policy][budget if cache.budget else "100%"] = nats.tolist()
            row.append(f"{perplexity(nats):.2f} / {perplexity(nats[len(nats) // 2 :]):.2f}")
        rows.append(row)
    print("Perplexity, all tokens / second half:\n")
    print(table(["cache", *options.budgets], rows))
    report(options, {"text_sha256": sha256(text), "tokens": len(tokens), "chunk": options.chunk, "nats": raw})


if __name__ == "__main__":
    main()
