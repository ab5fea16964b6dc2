"""Long texts: does a target that drafts for itself, looking at few of its keys and values, get faster?"""

from __future__ import annotations

import sys
from dataclasses import replace
from statistics import median
from typing import Any

from common import prose
from speculation_runs import Decoded, Probe, decode, spread, take_turns

from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.decode_options import DecodeOptions
from edgepipe.pipeline.session import Session

GAMMA = 4
TASKS = ("", "Summarise the text above in a few sentences.")


def long_prompt(session: Session, length: int, task: str) -> list[int]:
    """Technical prose of so many tokens, to be continued, or followed by a task in the chat template."""
    text = session.tokenizer.encode(prose(8 * length))
    if not task or session.template is None:
        return text[:length]
    content = f"{session.tokenizer.decode(text[: length - 50])}\n\n{task}"
    rendered = session.template.render([{"role": "user", "content": content}])
    return session.tokenizer.encode(rendered, add_special_tokens=False)


def measure_long(bundle: Bundle, length: int, options: Any) -> list[dict[str, Any]]:
    """Texts of ``length`` tokens: one entry for each round and task."""
    base = DecodeOptions(threads=options.threads)
    ways = {"plain": base, "sparse": replace(base, drafter="sparse", gamma=GAMMA)}
    ways["sparse, auto"] = replace(ways["sparse"], gamma="auto")
    session = Session(bundle, base)
    taken = []
    for task in TASKS:
        prompt = long_prompt(session, length, task)
        decoders = {}
        for name, way in ways.items():
            session.options = way  # one loaded engine serves them all
            decoders[name] = session.decoder(len(prompt) + options.tokens + GAMMA + 1)  # the probe feeds so many more
        session.options = ways["sparse"]
        window = session.cached("target", session.options.own_window, len(prompt))
        window.prefill(prompt[:GAMMA] * (window.policy.budget // GAMMA))
        probe = Probe(decoders["plain"].target, window, (1, GAMMA + 1))
        for number in range(options.rounds + 1):
            # From the second time on, only the last token of the prompt is fed anew.
            turns = {
                name: lambda decoder=decoder, prompt=prompt: decode(decoder, prompt, options.tokens)
                for name, decoder in decoders.items()
            }
            decoded = take_turns(turns, number)
            forwards, guess_ns = probe()
            print(f"{length} tokens: round {number} of {options.rounds}", file=sys.stderr)
            if number:
                taken.append({"task": task, "decoded": decoded, "forward_ns": forwards, "guess_ns": guess_ns})
    return taken


def long_rows(length: int, taken: list[dict[str, Any]]) -> list[list[str]]:
    """Table rows of one length."""
    rows = []
    cost = median([entry["guess_ns"] / entry["forward_ns"][1] for entry in taken])
    wide = median([entry["forward_ns"][GAMMA + 1] / entry["forward_ns"][1] for entry in taken])
    for name in ("sparse", "sparse, auto"):
        ours: list[Decoded] = [entry["decoded"][name] for entry in taken]
        faster = [entry["decoded"]["plain"].ns_per_token / entry["decoded"][name].ns_per_token for entry in taken]
        rows.append(
            [
                *(f"{length:,}", f"gamma {GAMMA}" if name == "sparse" else "gamma auto", f"{cost:.2f}", f"{wide:.2f}"),
                f"{median([sum(run.tokens) / len(run.tokens) for run in ours]):.2f}",
                spread(faster),
            ]
        )
    return rows
