"""The command line that repeats a measurement."""

from __future__ import annotations

import shlex
from typing import Any


def measure_command(folder: str, configuration: dict[str, Any]) -> str:
    """`edgepipe measure` with the flags that give ``configuration``, the one of a report."""
    vision = configuration.get("vision")
    flags: dict[str, Any] = {"--repeats": configuration["repeats"], "--warmup": configuration["warmup"]}
    if "device" in configuration:
        flags |= {"--device": configuration["device"], "--baud": configuration["baud"]}
    if "decode" in configuration:
        flags = _decoder_flags(configuration)
    if vision:
        flags |= {"--engine": vision["engine"] or flags.get("--engine"), "--threads": vision["threads"]}
    if configuration.get("cool_to_c") is not None:
        flags |= {"--cool-to": configuration["cool_to_c"], "--cool-limit": configuration["cool_limit_s"]}
    words = ["edgepipe", "measure", folder]
    for flag, value in flags.items():
        if value is not None:
            words += [flag, str(value)]
    if "decode" in configuration and not configuration["decode"]["cache"]["normalise"]:
        words.append("--summed")
    if vision and vision["exact"]:
        words.append("--exact")
    return shlex.join(words)


def _decoder_flags(configuration: dict[str, Any]) -> dict[str, Any]:
    plan, decode = configuration, configuration["decode"]
    cache, draft_cache, sampling = decode["cache"], decode["draft_cache"] or {}, decode["sampling"]
    return {
        "--prompt-lengths": ",".join(str(length) for length in plan["prompt_lengths"]),
        "--new-tokens": plan["new_tokens"],
        "--repeats": plan["repeats"],
        "--warmup": plan["warmup"],
        "--against": plan["against"],
        "--max-width": plan["max_width"],
        "--file": plan["file"],
        "--engine": "all" if "engines" in plan else decode["engine"],
        "--threads": plan.get("threads", decode["threads"]),
        "--chunk": decode["chunk"],
        "--drafter": decode["drafter"],
        "--gamma": decode["gamma"],
        "--policy": cache["policy"],
        "--budget": cache["budget"],
        "--recent": cache["recent"],
        "--sinks": cache["sinks"],
        "--draft-policy": draft_cache.get("policy"),
        "--draft-budget": draft_cache.get("budget"),
        "--temperature": sampling["temperature"],
        "--top-k": sampling["top_k"],
        "--top-p": sampling["top_p"],
        "--min-p": sampling["min_p"],
        "--repetition-penalty": sampling["repetition_penalty"],
        "--seed": sampling["seed"],
    }
