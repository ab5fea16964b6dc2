"""Holds an exported decoder against its source, which transformers runs in float32."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra, ValidationFailed
from edgepipe.exporters.llm.onnx import PLAIN, SCORED
from edgepipe.exporters.llm.recipe import Thresholds
from edgepipe.exporters.llm.validation_text import PROMPTS, TEXT
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.engines.onnx import OnnxDecoder
from edgepipe.runtimes.llm.kv_cache import KVCache

# Rows of logits at a time: a long text's do not fit in memory for a large vocabulary.
CHUNK = 128


@dataclass(frozen=True)
class Agreement:
    """How close a decoder is to its source; the terms are those of `Thresholds`."""

    max_abs_logit: float
    top1_agreement: float
    mean_kl: float
    perplexity: float
    perplexity_ratio: float


@dataclass(frozen=True)
class _Input:
    """What a decoder is fed: tokens and, if it is a head, features ``[S, hidden]`` of the tokens before them."""

    ids: list[int]
    features: np.ndarray | None = None


@dataclass(frozen=True)
class _Recorded:
    """What the source says: logits ``[S, V]`` of each prompt; of the text, log-likelihoods and most likely tokens.

    ``text_columns`` are the columns of the logits that belong to the text's tokens, -1 where a trimmed head has none.
    """

    prompts: list[_Input]
    prompt_logits: list[np.ndarray]
    text: _Input
    text_columns: np.ndarray
    text_likelihoods: np.ndarray
    text_top1: np.ndarray


def validate(
    weights: DecoderWeights,
    folder: Path,
    thresholds: Thresholds,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Compare both graphs in ``folder`` (which holds tokenizer.json, too) with the source, and judge.

    The source is run first and let go, so that no more than one model is in memory. Returns
    ``{"prompts", "tokens", "reference_perplexity", "thresholds", "plain": {...}, "scored": {...}}``, where the last two
    are `Agreement`.

    Raises:
        ValidationFailed: a graph misses a threshold; the message has all numbers found and expected.
    """
    progress = progress or (lambda fraction, part: None)
    prompts, text = _tokenize(folder, weights.spec.context_length)
    progress(0.0, "reference")
    recorded = _record(weights, prompts, text)
    gc.collect()  # the source's model, all of it, before the next one is loaded
    results: dict[str, Any] = {
        "prompts": len(prompts),
        "tokens": sum(map(len, prompts)) + len(text),
        "reference_perplexity": _perplexity(recorded.text_likelihoods),
        "thresholds": asdict(thresholds),
    }
    misses: list[str] = []
    for done, (name, path) in enumerate((("plain", PLAIN), ("scored", SCORED))):
        progress((2 + done) / 4, f"{name} graph")
        engine = OnnxDecoder(folder / path, weights.spec, scored=name == "scored")
        agreement = _compare(engine, recorded)
        del engine  # before the next one is loaded
        results[name] = asdict(agreement)
        misses += [f"{path}: {miss}" for miss in judge(agreement, thresholds)]
    progress(1.0, "validated")
    if misses:
        raise ValidationFailed(
            f"{folder.name} {weights.info.name} strays too far from its source: {'; '.join(misses)}; "
            "choose a higher precision or a smaller block_size, or loosen the recipe's thresholds"
        )
    return results


def judge(agreement: Agreement, thresholds: Thresholds) -> list[str]:
    """One phrase for each threshold that ``agreement`` misses; NaN misses every one."""
    limits = (
        ("max |dlogit|", agreement.max_abs_logit, thresholds.max_abs_logit, "at most"),
        ("top-1 agreement", agreement.top1_agreement, thresholds.min_top1_agreement, "at least"),
        ("mean KL", agreement.mean_kl, thresholds.max_mean_kl, "at most"),
        ("perplexity ratio", agreement.perplexity_ratio, thresholds.max_perplexity_ratio, "at most"),
    )
    return [
        f"{name} {found:.4g}, expected {side} {limit:g}"
        for name, found, limit, side in limits
        if limit is not None and not (found >= limit if side == "at least" else found <= limit)
    ]


def _tokenize(folder: Path, context_length: int) -> tuple[list[list[int]], list[int]]:
    try:
        from tokenizers import Tokenizer
    except ImportError as missing:
        raise MissingExtra("tokenizers", "export") from missing
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [tokenizer.encode(prompt).ids[:context_length] for prompt in PROMPTS]
    return prompts, tokenizer.encode(TEXT).ids[:context_length]


def _record(weights: DecoderWeights, prompts: list[list[int]], text: list[int]) -> _Recorded:
    import torch

    sequences = [*prompts, text]
    features = weights.reference_features(sequences)
    inputs = [_Input(ids) for ids in sequences]
    if features is not None:
        inputs = [_Input(ids[1:], rows[:-1]) for ids, rows in zip(sequences, features, strict=True)]
    model = weights.reference_model()

    decoder, head = model.get_decoder(), model.get_output_embeddings()

    def forward(given: _Input) -> Iterator[np.ndarray]:
        """Logits of a sequence, ``[<= CHUNK, V]`` at a time."""
        fed = {} if given.features is None else {"features": torch.from_numpy(given.features)[None]}
        hidden = decoder(input_ids=torch.tensor([given.ids]), use_cache=False, **fed).last_hidden_state[0]
        for rows in hidden.split(CHUNK):
            yield head(rows).numpy()

    with torch.inference_mode():
        prompt_logits = [np.concatenate(list(forward(given))) for given in inputs[:-1]]
        columns = _columns(inputs[-1].ids, weights)
        likelihoods, top1 = _read_text(columns, forward(inputs[-1]))
    return _Recorded(inputs[:-1], prompt_logits, inputs[-1], columns, likelihoods, top1)


def _columns(text: list[int], weights: DecoderWeights) -> np.ndarray:
    ids = weights.output_token_ids
    if ids is None:
        return np.array(text)
    columns = np.full(weights.spec.vocab_size, -1)
    columns[ids] = np.arange(len(ids))
    return columns[text]


def _compare(engine: OnnxDecoder, recorded: _Recorded) -> Agreement:
    worst, agreeing, divergences = [], [], []
    for given, expected in zip(recorded.prompts, recorded.prompt_logits, strict=True):
        found = np.concatenate([logits.copy() for logits in _forward(engine, given)])
        worst.append(np.abs(found - expected).max())
        agreeing.append(found.argmax(-1) == expected.argmax(-1))
        divergences.append(_kl(_log_softmax(expected), _log_softmax(found)))
    likelihoods, top1 = _read_text(recorded.text_columns, _forward(engine, recorded.text))
    agreeing.append(top1 == recorded.text_top1)
    perplexity = _perplexity(likelihoods)
    return Agreement(
        max_abs_logit=float(np.max(worst)),
        top1_agreement=float(np.concatenate(agreeing).mean()),
        mean_kl=float(np.concatenate(divergences).mean()),
        perplexity=perplexity,
        perplexity_ratio=perplexity / _perplexity(recorded.text_likelihoods),
    )


def _forward(engine: OnnxDecoder, given: _Input) -> Iterator[np.ndarray]:
    """Logits of a sequence, ``[<= CHUNK, V]`` at a time, each overwritten by the next."""
    cache = KVCache(engine.spec, len(given.ids), CHUNK, scored=engine.scored)
    for start in range(0, len(given.ids), CHUNK):
        chunk = given.ids[start : start + CHUNK]
        features = None if given.features is None else given.features[start : start + CHUNK]
        yield engine.forward(cache, chunk, features=features)
        cache.commit(len(chunk))


def _read_text(columns: np.ndarray, chunks: Iterator[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Log-likelihoods of the tokens after the first, and the most likely tokens ``[S]``, as columns of the logits.

    Tokens that have no column (-1) have no likelihood either.
    """
    likelihoods, top1, start = [], [], 0
    for logits in chunks:
        following = columns[start + 1 : start + 1 + len(logits)]
        rows = np.flatnonzero(following >= 0)
        likelihoods.append(_log_softmax(logits)[rows, following[rows]])
        top1.append(logits.argmax(-1))
        start += len(logits)
    return np.concatenate(likelihoods), np.concatenate(top1)


def _perplexity(likelihoods: np.ndarray) -> float:
    return float(np.exp(-likelihoods.sum() / max(1, likelihoods.size)))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _kl(expected: np.ndarray, found: np.ndarray) -> np.ndarray:
    """KL(expected || found) per position, from log-probabilities ``[S, V]``."""
    divergence: np.ndarray = (np.exp(expected) * (expected - found)).sum(-1)
    return divergence
