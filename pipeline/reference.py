"""Golden outputs of an exported decoder, for `edgepipe run --verify` to replay on the device."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown
from typing import Any, TypeGuard

import numpy as np

from edgepipe.errors import BundleError, EngineError
from edgepipe.lazy import load
from edgepipe.runtimes.llm.decoder import CachedDecoder
from edgepipe.runtimes.llm.engines import ENGINES
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies.full import Full
from edgepipe.runtimes.llm.output_vocabulary import TOKEN_IDS, OutputVocabulary
from edgepipe.runtimes.llm.spec import DecoderSpec
from edgepipe.runtimes.llm.tokenizer import load_tokenizer

PROMPTS = ("The capital of France is", "def fibonacci(n):\n    ", "Once upon a time, in a land of")
GREEDY_TOKENS = 16
TOP_LOGITS = 32

# Between two processors the same graph differs by rounding. Where activations are quantised to int8, a rounding
# difference moves some to their neighbouring codes: on SmolLM2-135M the largest logits then differ by up to 0.8.
FP32_TOLERANCE = 1e-2
QUANTIZED_TOLERANCE = 1.0


@dataclass(frozen=True)
class GoldenCase:
    """A prompt, the greedy tokens that follow, and ids and values of the largest logits after the prompt."""

    prompt_ids: tuple[int, ...]
    greedy_ids: tuple[int, ...]
    top_ids: tuple[int, ...]
    top_values: tuple[float, ...]


@dataclass(frozen=True)
class Golden:
    """What `write_reference` wrote; ``tolerance`` is that of a logit. There is at least one case."""

    tolerance: float
    cases: tuple[GoldenCase, ...]


def reference_file(component: str, form: str) -> str:
    """Name of the golden outputs of a component in one format, within the bundle."""
    return f"reference/{component}.json" if form == "onnx" else f"reference/{component}.{form}.json"


def write_reference(bundle: Path, name: str, components: dict[str, Any], form: str) -> None:
    """Run a component in one format on fixed prompts and write what it answers into ``bundle/reference``.

    The file holds ``tolerance`` (of a logit) and ``cases``: ``prompt_ids``, the ``greedy_ids`` that follow, and
    ``logits_top``, the ``ids`` and ``values`` of the largest logits after the prompt. Ids are the tokenizer's, also
    where the head is trimmed. ``components`` are those of edgepipe.json, as far as they are exported.

    ExecuTorch runs in a process of its own, as on a device: in one that has loaded torch to export, attention has other
    threads and rounds otherwise (`edgepipe.runtimes.executorch_binding`).

    Raises:
        EngineError: the engine fails.
    """
    if form != "executorch":
        record_reference(bundle, name, components, form, PROMPTS)
        return
    work = json.dumps([str(bundle), name, components, form, PROMPTS])
    done = subprocess.run([sys.executable, "-P", "-c", _RECORD], input=work, capture_output=True, text=True)
    if done.returncode:
        raise EngineError(f"{name} in {form} does not run: {done.stderr.strip().rpartition(chr(10))[2]}")


# A process that does what stdin says.
_RECORD = f"import json, sys; from {__name__} import record_reference; record_reference(*json.load(sys.stdin))"


def record_reference(
    bundle: str | Path, name: str, components: dict[str, Any], form: str, prompts: Sequence[str]
) -> None:
    """What `write_reference` does, here and now."""
    bundle = Path(bundle)
    parts = [name, "target"] if components[name]["kind"] == "head" else [name]
    specs = {part: DecoderSpec.from_json(components[part]["spec"]) for part in parts}
    files = {part: components[part]["formats"][form] for part in parts}
    engines = {part: load(ENGINES[form])(bundle / files[part]["plain"], spec) for part, spec in specs.items()}
    quantized = set(files[name]["precision"].values()) != {"fp32"}
    vocabulary = None
    if specs[name].output_vocab_size is not None:
        vocabulary = OutputVocabulary.read(bundle / name / TOKEN_IDS, specs[name])

    def case(prompt: list[int]) -> dict[str, Any]:
        length = len(prompt) + GREEDY_TOKENS
        decoders = [
            CachedDecoder(engine, KVCache(engine.spec, length, 0), Full(length), length) for engine in engines.values()
        ]
        return _case(teacher_forced(vocabulary, *decoders), prompt, min(TOP_LOGITS, specs[name].num_logits))

    tokenizer = load_tokenizer(bundle / name)
    golden = {
        "tolerance": QUANTIZED_TOLERANCE if quantized else FP32_TOLERANCE,
        "cases": [case(tokenizer.encode(prompt)) for prompt in prompts],
    }
    path = bundle / reference_file(name, form)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(golden) + "\n", encoding="utf-8")


Feed = Callable[[Sequence[int]], np.ndarray]


def teacher_forced(
    vocabulary: OutputVocabulary | None, decoder: CachedDecoder, target: CachedDecoder | None = None
) -> Feed:
    """A function that feeds a prompt, then token by token, and returns logits ``[vocab_size]`` after what it fed.

    A head, whose ``target`` is given, reads the target's features of the prompt, and then its own. Caches are empty.
    """

    def feed(tokens: Sequence[int]) -> np.ndarray:
        if target is None:
            logits = decoder.prefill(tokens)
        elif decoder.cache.next_position == 0:
            target.extend(tokens[:-1])
            logits = decoder.extend(tokens[1:], last_only=True, features=target.decoder.features)[-1]
            decoder.commit(len(tokens) - 1)
        else:
            assert decoder.decoder.features is not None
            logits = decoder.extend(tokens, features=decoder.decoder.features[-1:])[-1]
            decoder.commit(1)
        return logits if vocabulary is None else vocabulary.full(logits)

    return feed


def read_reference(path: Path, vocab_size: int) -> Golden:
    """Read what `write_reference` wrote for a decoder of ``vocab_size`` tokens.

    Raises:
        BundleError: there is nothing to replay, or a value is of a wrong type or out of its range.
    """
    try:
        golden = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON ({error})") from error
    tolerance, cases = (golden.get(key) if isinstance(golden, dict) else None for key in ("tolerance", "cases"))
    if not _is_finite(tolerance) or tolerance < 0:
        raise _damaged(path, f"tolerance is {shown(tolerance)}, expected a number of 0 or more")
    if not isinstance(cases, list) or not cases:
        raise _damaged(path, f"cases is {shown(cases)}, expected one prompt or more")
    return Golden(
        tolerance, tuple(_read_case(path, f"cases[{index}]", case, vocab_size) for index, case in enumerate(cases))
    )


def _read_case(path: Path, where: str, case: object, vocab_size: int) -> GoldenCase:
    table = case if isinstance(case, dict) else {}
    top = table["logits_top"] if isinstance(table.get("logits_top"), dict) else {}
    prompt = _token_ids(path, f"{where}.prompt_ids", table.get("prompt_ids"), vocab_size)
    greedy = _token_ids(path, f"{where}.greedy_ids", table.get("greedy_ids"), vocab_size)
    ids = _token_ids(path, f"{where}.logits_top.ids", top.get("ids"), vocab_size)
    values = top.get("values")
    if not isinstance(values, list) or len(values) != len(ids) or not all(map(_is_finite, values)):
        raise _damaged(path, f"{where}.logits_top.values is {shown(values)}, expected {len(ids)} numbers")
    return GoldenCase(prompt, greedy, ids, tuple(values))


def _token_ids(path: Path, key: str, ids: object, vocab_size: int) -> tuple[int, ...]:
    if isinstance(ids, list) and ids and all(type(id) is int and 0 <= id < vocab_size for id in ids):
        return tuple(ids)
    raise _damaged(path, f"{key} is {shown(ids)}, expected token ids from 0 to {vocab_size - 1}")


def _is_finite(value: object) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _damaged(path: Path, reason: str) -> BundleError:
    return BundleError(f"{path} is damaged: {reason}; export the bundle again")


def _case(feed: Feed, prompt: list[int], top_logits: int) -> dict[str, Any]:
    logits = feed(prompt)
    top = np.argsort(-logits)[:top_logits]
    values = logits[top]
    greedy = []
    for _ in range(GREEDY_TOKENS):
        greedy.append(int(logits.argmax()))
        logits = feed(greedy[-1:])
    return {
        "prompt_ids": prompt,
        "greedy_ids": greedy,
        "logits_top": {"ids": top.tolist(), "values": values.tolist()},
    }
