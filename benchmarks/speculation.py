"""What guessing ahead brings: whether a draft pays as predicted, and whether `--gamma auto` ever costs.

First table, a pair where drafting must pay: the target is SmolLM2-135M with its layers K times over, of which those
after the first time add nothing (`padded_pair.py`), the draft is SmolLM2-135M itself. Both write the same text, the
target at K times the cost. Beside the observed speed-up over plain decoding stands the predicted one: for the rounds
that were made, the time that forwards of their widths, t(S), and c for each guess come to, both measured on their own
in the same round of the benchmark, at the same length of text.

Second table, 20 prompts of five kinds (`speculation_prompts.py`) with `--gamma auto`: how many times faster than plain
decoding each drafter is, the median of all answers and the range over the prompts' medians. `model` needs a draft:
that of the bundle, or `--draft`.

Third table, long texts (`speculation_long.py`), where the target drafts for itself and sees a window of 512 tokens
meanwhile (`--drafter sparse`): c is what a guess costs against a token of the target.

Only decoding is timed: from the first token to the last, at most `--tokens`, less where the answer ends. What is
compared takes turns in one process, over the same loaded engine, in an order that alternates from round to round;
every ratio is taken within a round. The first round is a warm-up and not kept.

Run:   python benchmarks/speculation.py --bundle build/demo --work build/speculation
Needs: a bundle with a chat template: edgepipe export --target smollm2-135m -o build/demo
       About 4 GB of free memory for K = 8, and 1.2 GB of disk (`--work` keeps the pairs for the next time).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from common import arguments, report, table
from padded_pair import SOURCE
from speculation_long import long_rows, measure_long
from speculation_pair import measure_pair, pair_rows
from speculation_prompts import KINDS, prompts
from speculation_runs import decode, decoder_of, raw, take_turns

import edgepipe
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.decode_options import DecodeOptions
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.session import Session
from edgepipe.runtimes.llm.sampling import SamplingParams

NEVER_SLOWER, COPYING = 0.98, 1.5  # over plain decoding, for each kind and for copying


def measure_kinds(bundle: Bundle, drafters: Sequence[str], options: Any) -> dict[str, list[dict[str, Any]]]:
    """For each drafter one entry for each round and prompt."""
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in drafters}
    sampling = SamplingParams(temperature=options.temperature)
    sessions = {
        name: Session(bundle, DecodeOptions(threads=options.threads, drafter=name, sampling=sampling))
        for name in drafters
    }
    for number in range(options.rounds + 1):
        for name, session in sessions.items():
            for index, (kind, prompt) in enumerate(prompts(session)):
                total = len(prompt) + 1 + options.tokens
                turns = {
                    gamma: lambda gamma=gamma, session=session, prompt=prompt, total=total: decode(
                        decoder_of(session, total, gamma), prompt, options.tokens
                    )
                    for gamma in (0, "auto")
                }
                decoded = take_turns(turns, number + index)
                if number and decoded[0].tokens:
                    taken[name].append({"kind": kind, "prompt": index, "decoded": decoded})
        print(f"kinds: round {number} of {options.rounds}", file=sys.stderr)
    return taken


def kind_rows(taken: dict[str, list[dict[str, Any]]], failed: list[str]) -> list[list[str]]:
    """Table rows, one a kind; what falls short is added to ``failed``."""
    rows = []
    for kind in KINDS:
        row = [kind]
        for name, entries in taken.items():
            ratios: dict[int, list[float]] = {}
            for entry in entries:
                if entry["kind"] == kind:
                    plain, ours = entry["decoded"][0], entry["decoded"]["auto"]
                    ratios.setdefault(entry["prompt"], []).append(plain.ns_per_token / ours.ns_per_token)
            middle = median([ratio for prompt in ratios.values() for ratio in prompt])
            medians = [median(prompt) for prompt in ratios.values()]
            row.append(f"{middle:.2f}x ({min(medians):.2f} to {max(medians):.2f})")
            expected = COPYING if kind == "copy-heavy" else NEVER_SLOWER
            if middle < expected:
                failed.append(f"{kind} with {name}: {middle:.3f}x, expected {expected}x")
        rows.append(row)
    return rows


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--work", type=Path, help="folder that keeps the pairs (default: a temporary one)")
    parser.add_argument("--draft", help="draft of the second table, as export takes it (default: the bundle's, if any)")
    parser.add_argument("--times", type=int, nargs="*", default=[4, 8], metavar="K", help="of the pairs (default: 4 8)")
    parser.add_argument("--gammas", type=int, nargs="*", default=[2, 4, 6], help="of the pairs, beside auto")
    parser.add_argument("--drafters", nargs="*", help="of the second table (default: all)")
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="*",
        default=[1024, 2048, 4096, 7168],
        help="of the third table, in tokens",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="of the second table (default: %(default)s, greedy)"
    )
    parser.add_argument("--tokens", type=int, default=96, help="of an answer, at most (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="kept, after one warm-up (default: %(default)s)")
    options = parser.parse_args()
    failed: list[str] = []
    samples: dict[str, Any] = {name: getattr(options, name) for name in ("tokens", "rounds", "temperature")}
    with ExitStack() as stack:
        if options.work is None:
            options.work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options.work.mkdir(parents=True, exist_ok=True)
        if options.times:
            rows = []
            for times in options.times:
                taken = measure_pair(times, options)
                rows += pair_rows(times, taken, failed)
                samples[f"pair_{times}"] = [raw(entry) for entry in taken]
            header = ["K", "gamma", "c", "t(gamma + 1) / t(1)", "acceptance", "tokens per round"]
            print(f"\nDepth-padded pair, {options.tokens} tokens, {options.rounds} rounds:\n")
            print(table([*header, "predicted", "observed", "observed / predicted"], rows))
        bundle = Bundle.open(options.bundle)
        if options.draft:
            folder = options.work / "with-draft"
            recipe = Recipe(DecoderRecipe(SOURCE), DecoderRecipe(options.draft), validate=False)
            bundle = edgepipe.export(recipe, folder, force=folder.exists())
        drafters = options.drafters
        if drafters is None:
            drafters = ["lookup", *(["model", "lookup,model"] if "draft" in bundle.manifest["components"] else [])]
        if drafters:
            kinds = measure_kinds(bundle, drafters, options)
            samples["kinds"] = {name: [raw(entry) for entry in entries] for name, entries in kinds.items()}
            print(f"\nGamma auto against plain decoding, {options.rounds} rounds:\n")
            print(table(["prompts", *drafters], kind_rows(kinds, failed)))
        if options.lengths:
            rows = []
            for length in options.lengths:
                long = measure_long(bundle, length, options)
                rows += long_rows(length, long)
                samples[f"long_{length}"] = [raw(entry) for entry in long]
            header = ["tokens of text", "guesses", "c", "t(5) / t(1)", "tokens per round", "over plain"]
            print(f"\nThe target drafts for itself in a window, {options.rounds} rounds:\n")
            print(table(header, rows))
    print("\n" + ("\n".join(f"- {line}" for line in failed) if failed else "All as it is to be."))
    report(options, {**samples, "failed": failed})


if __name__ == "__main__":
    main()
