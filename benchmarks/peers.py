"""Decoding speed of SmolLM2-135M beside llama.cpp and onnxruntime-genai, and what prompt lookup adds.

First table: plain greedy decoding, batch 1, the same prompt, the same number of threads. Each engine lives in a
process of its own that stays loaded; the processes take turns, in an order that rotates from round to round, and every
ratio is taken within a round, so that what else the machine does falls on all of them. Only decoding is timed: not
loading, not the prefill, not the tokenizer. Rows:

    edgepipe              the product's loop over a bundle
    llama.cpp             the GGUF that the bundle was made from; bare llama_decode and an argmax
    llama.cpp generate()  the same through the Python package's own generator
    llama.cpp Q4_0        the same weights in the format that llama.cpp runs fastest
    genai                 onnxruntime-genai over its own builder's int4 export (block 32, accuracy level 4, 8-bit head)
    genai, our export     onnxruntime-genai over the bundle's target folder

"same tokens" counts the leading tokens that equal edgepipe's: weights differ between rows except in the last one.

Second table: two prompts whose answers copy from them, with prompt lookup at several gammas against plain decoding by
the same loaded engine, in turns. Greedy text may part from the plain one where two tokens nearly tie.

Run:   python benchmarks/peers.py --bundle build/demo
Needs: a bundle:                   edgepipe export --target smollm2-135m -o build/demo
       for rows of llama.cpp:      pip install llama-cpp-python
       for rows of genai:          pip install onnxruntime-genai onnx-ir torch transformers
       Nothing is installed here; a row that cannot be had is left out, and what it needs is printed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from common import arguments, report, table
from peer_engines import Child, Decoded, Edgepipe, Genai, LlamaCpp, LlamaCppGenerate
from peer_models import genai_folder, missing, requantised_gguf

from edgepipe.cache import cache_folder
from edgepipe.pipeline.bundle import Bundle
from edgepipe.runtimes.llm.chat_template import ChatTemplate
from edgepipe.runtimes.llm.tokenizer import Tokenizer, load_tokenizer

STORY = "The history of the lighthouse begins long before electricity. In ancient times, sailors were guided by"

REPEAT = """Repeat this list exactly as it is:

1. Monday: buy bread, milk, eggs and a bag of flour at the market.
2. Tuesday: water the tomatoes, the beans and the lemon tree.
3. Wednesday: call the plumber about the kitchen sink.
4. Thursday: return the library books and pay the electricity bill.
5. Friday: clean the windows in the living room and the hall.
6. Saturday: visit grandmother and bring her the apple cake.
7. Sunday: rest, read a book and write a letter to Anna.
8. Next week: paint the fence, order firewood and have the old clock repaired.
9. Next month: book the train to the coast and find a hotel near the harbour."""

EDIT = """Correct the spelling of this text and repeat all of it:

The old lighthouse stands on a rocky hill above the harbour. It was built in 1862 by a local \
stonemason, and its light could be seen from a distance of twenty miles. Every evening the keeper \
climed the ninety-eight steps to the lamp room, cleaned the glass and lit the oil lamp. In winter \
the storms were so strong that he could not leave the tower for days. The lighthouse was made \
automatic in 1974, and since then nobody has lived in it. Today it is a small museum, and visitors \
can see the old lamp, the keeper's diary and a collection of maps."""

Turns = dict[str, Callable[[], Decoded]]


def take_turns(turns: Turns, rounds: int) -> dict[str, list[Decoded]]:
    """Call every entry once a round, the first one rotating; one warm-up round is not kept."""
    names = list(turns)
    taken: dict[str, list[Decoded]] = {name: [] for name in names}
    for number in range(-1, rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            decoded = turns[name]()
            if number >= 0:
                taken[name].append(decoded)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return taken


def rates(taken: list[Decoded]) -> list[float]:
    """Tokens per second of each round."""
    return [len(decoded.tokens) / decoded.seconds for decoded in taken]


def spread(values: list[float], form: str) -> str:
    """The median, and the range in brackets."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def ratio(above: list[Decoded], below: list[Decoded]) -> str:
    """How much faster ``above`` is, round by round."""
    return spread([a / b for a, b in zip(rates(above), rates(below), strict=True)], ".2f") + "x"


def common_prefix(left: list[int], right: list[int]) -> int:
    """Number of leading tokens that are equal."""
    pairs = list(zip(left, right, strict=True))
    return next((index for index, (a, b) in enumerate(pairs) if a != b), len(pairs))


def engines(options: Any, folder: Path) -> dict[str, Child]:
    """All engines that can be had; what the others need goes to the standard error."""
    threads = options.threads
    target = options.bundle / "target"
    rows: dict[str, tuple[tuple[str, ...], Callable[[], Child]]] = {
        "edgepipe": ((), lambda: Child(Edgepipe, options.bundle, threads)),
        "llama.cpp": (("llama_cpp",), lambda: Child(LlamaCpp, options.gguf, threads)),
        "llama.cpp generate()": (("llama_cpp",), lambda: Child(LlamaCppGenerate, options.gguf, threads)),
        "llama.cpp Q4_0": (
            ("llama_cpp",),
            lambda: Child(LlamaCpp, requantised_gguf(options.gguf, folder), threads),
        ),
        "genai": (
            ("onnxruntime_genai", "onnx_ir", "torch", "transformers"),
            lambda: Child(Genai, genai_folder(options.gguf, folder), threads),
        ),
        "genai, our export": (("onnxruntime_genai",), lambda: Child(Genai, target, threads)),
    }
    children = {}
    for name, (modules, make) in rows.items():
        if options.only and name not in options.only:
            continue
        if command := missing(modules):
            print(f"without the row {name!r}: {command}", file=sys.stderr)
        else:
            children[name] = make()
    return children


def plain_table(children: dict[str, Child], tokenizer: Tokenizer, options: Any) -> dict[str, list[Decoded]]:
    """Measure plain decoding and print it."""
    prompt = tokenizer.encode(STORY)
    turns: Turns = {
        name: lambda child=child: child.decode(prompt, options.tokens)  # type: ignore[misc]
        for name, child in children.items()
    }
    taken = take_turns(turns, options.rounds)
    ours = taken["edgepipe"]
    rows = []
    for name, theirs in taken.items():
        same = common_prefix(ours[0].tokens, theirs[0].tokens)
        faster = "" if name == "edgepipe" else ratio(ours, theirs)
        rows.append([name, spread(rates(theirs), ".0f"), faster, same])
    print(f"\nPlain decoding, {options.tokens} tokens, {options.threads} threads, {options.rounds} rounds:\n")
    print(table(["engine", "tokens/s", "edgepipe is faster by", "same tokens"], rows))
    print("\n" + "\n".join(f"- {name}: {child.facts}" for name, child in children.items()))
    return taken


def lookup_table(child: Child, tokenizer: Tokenizer, template: ChatTemplate, options: Any) -> dict[str, Any]:
    """Measure prompt lookup on copy-heavy prompts and print it."""
    rows = []
    raw: dict[str, Any] = {}
    for name, text in (("repeat this list", REPEAT), ("edit this text", EDIT)):
        prompt = tokenizer.encode(template.render([{"role": "user", "content": text}]), add_special_tokens=False)
        turns: Turns = {
            str(gamma): lambda gamma=gamma, prompt=prompt: child.decode(prompt, options.tokens, gamma=gamma)  # type: ignore[misc]
            for gamma in (0, *options.gammas)
        }
        taken = take_turns(turns, options.rounds)
        for gamma, decoded in taken.items():
            per_round = options.tokens / decoded[0].forwards
            faster = "" if gamma == "0" else ratio(decoded, taken["0"])
            same = common_prefix(taken["0"][0].tokens, decoded[0].tokens)
            label = "plain" if gamma == "0" else f"gamma {gamma}"
            rows.append([name, label, spread(rates(decoded), ".0f"), faster, f"{per_round:.2f}", same])
        raw[name] = _raw(taken)
    print(f"\nPrompt lookup against plain decoding, {options.tokens} tokens, {options.rounds} rounds:\n")
    print(table(["prompt", "drafting", "tokens/s", "faster than plain by", "tokens per round", "same tokens"], rows))
    return raw


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__ or "")
    gguf = cache_folder() / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    parser.add_argument("--gguf", type=Path, default=gguf, help="what the bundle was made from (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="decoded per round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="kept, after one warm-up (default: %(default)s)")
    parser.add_argument("--gammas", type=int, nargs="*", default=[2, 4, 6, 8], help="of prompt lookup")
    parser.add_argument("--only", nargs="*", metavar="ROW", help="rows of the first table besides edgepipe")
    options = parser.parse_args()
    options.threads = options.threads or os.cpu_count() or 1
    if options.only is not None:
        options.only.append("edgepipe")
    folder = Path("build/peers")
    folder.mkdir(parents=True, exist_ok=True)
    target = Bundle.open(options.bundle).path("target/tokenizer.json").parent
    tokenizer, template = load_tokenizer(target), ChatTemplate.load(target)
    if template is None:
        sys.exit(f"{target} has no chat template: export an instruction-tuned model")

    children = engines(options, folder)
    plain = plain_table(children, tokenizer, options)
    for name, child in children.items():
        if name != "edgepipe":
            child.stop()
    lookup = lookup_table(children["edgepipe"], tokenizer, template, options)
    children["edgepipe"].stop()
    report(options, {"plain": _raw(plain), "lookup": lookup, "threads": options.threads})


def _raw(taken: dict[str, list[Decoded]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [asdict(decoded) for decoded in rounds] for name, rounds in taken.items()}


if __name__ == "__main__":
    main()
