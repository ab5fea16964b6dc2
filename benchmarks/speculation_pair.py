"""The depth-padded pair: does a draft bring what t(S), c and its acceptance predict?"""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

import numpy as np
from padded_pair import padded_pair
from speculation_runs import Decoded, Probe, decode, decoder_of, spread, take_turns

from edgepipe.pipeline.decode_options import CacheOptions, DecodeOptions
from edgepipe.pipeline.session import Session

AS_PREDICTED = 0.9  # observed over predicted
PAYING, PAYS = 8, 1.5  # from this K on, gamma auto over plain
STORIES = (
    "Once upon a time, in a village between two rivers, there lived a clockmaker who",
    "The history of bread begins long before the first ovens were built. People",
)
WIDTHS = (1, 2, 3, 4, 5, 7, 9, 12, 16)


def predicted_ns(decoded: Decoded, forwards: dict[int, float], guess_ns: float) -> float:
    """What the rounds come to by their forwards and guesses alone."""
    widths = [1 + drafted for drafted in decoded.drafted]
    return float(np.interp(widths, list(forwards), list(forwards.values())).sum() + guess_ns * sum(decoded.drafted))


def measure_pair(times: int, options: Any) -> list[dict[str, Any]]:
    """The padded pair of K = ``times``: one entry for each round and story."""
    session = Session(padded_pair(times, options.work), DecodeOptions(threads=options.threads, drafter="model"))
    taken = []
    for story in STORIES:
        prompt = session.tokenizer.encode(story)
        total = len(prompt) + 1 + options.tokens
        half = decoder_of(session, total, 0)
        decode(half, prompt, options.tokens // 2)
        probed = [session.cached(name, CacheOptions(), total + max(WIDTHS)) for name in ("target", "draft")]
        for decoder in probed:
            decoder.prefill(half.text)
        probe = Probe(*probed, WIDTHS)

        def one(gamma: int | str, prompt: list[int] = prompt, total: int = total) -> Decoded:
            return decode(decoder_of(session, total, gamma), prompt, options.tokens)

        for number in range(options.rounds + 1):
            turns = {gamma: lambda gamma=gamma: one(gamma) for gamma in (0, "auto", *options.gammas)}
            decoded = take_turns(turns, number)
            forwards, guess_ns = probe()
            print(f"K = {times}: round {number} of {options.rounds}", file=sys.stderr)
            if number:
                taken.append({"story": story, "decoded": decoded, "forward_ns": forwards, "guess_ns": guess_ns})
    return taken


def pair_rows(times: int, taken: list[dict[str, Any]], failed: list[str]) -> list[list[str]]:
    """Table rows of one K; what falls short is added to ``failed``."""
    rows = []
    for gamma in [name for name in taken[0]["decoded"] if name != 0]:
        observed, predicted, rounds = [], [], []
        for entry in taken:
            plain, ours = entry["decoded"][0], entry["decoded"][gamma]
            observed.append(plain.ns_per_token / ours.ns_per_token)
            alone = entry["forward_ns"][1] * sum(ours.tokens)
            predicted.append(alone / predicted_ns(ours, entry["forward_ns"], entry["guess_ns"]))
            rounds.append(sum(ours.tokens) / len(ours.tokens))
        share = median([a / b for a, b in zip(observed, predicted, strict=True)])
        drafted = sum(sum(entry["decoded"][gamma].drafted) for entry in taken)
        accepted = sum(sum(entry["decoded"][gamma].tokens) - len(entry["decoded"][gamma].tokens) for entry in taken)
        cost = median([entry["guess_ns"] / entry["forward_ns"][1] for entry in taken])
        wide = "" if gamma == "auto" else f"{_relative(taken, int(gamma) + 1):.2f}"
        acceptance = f"{accepted / drafted:.2f}" if drafted else ""
        rows.append(
            [
                *(str(times), str(gamma), f"{cost:.2f}", wide, acceptance, f"{median(rounds):.2f}"),
                *(f"{median(predicted):.2f}x", spread(observed), f"{share:.2f}"),
            ]
        )
        if share < AS_PREDICTED:
            failed.append(f"K = {times}, gamma {gamma}: {share:.2f} of the prediction, expected {AS_PREDICTED}")
        if times >= PAYING and gamma == "auto" and median(observed) < PAYS:
            failed.append(f"K = {times}, gamma auto: {median(observed):.2f}x, expected {PAYS}x")
    return rows


def _relative(taken: list[dict[str, Any]], width: int) -> float:
    """t(S) / t(1)."""
    shares = []
    for entry in taken:
        forwards = entry["forward_ns"]
        shares.append(np.interp(width, list(forwards), list(forwards.values())) / forwards[1])
    return median(shares)
