"""Holds an exported decoder against its source, which transformers runs in float32."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra, ValidationFailed
from edgepipe.exporters.llm.recipe import Thresholds
from edgepipe.exporters.llm.validation_text import PROMPTS, TEXT
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.lazy import load
from edgepipe.runtimes.llm.decoder import Decoder
from edgepipe.runtimes.llm.engines import ENGINES
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
    models: Mapping[str, Mapping[str, str]],
    thresholds: Thresholds,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Compare what was exported with the source, and judge.

    The source is run first and let go, so that no more than one model is in memory. Of ``models`` every forward is
    used: prompts go through those of all widths in turn, and through that of a prefill.

    Args:
        weights: of the source.
        folder: of the component; it holds tokenizer.json, too.
        models: by format, and by variant ("plain", "scored"), the path of a file under ``folder``.
        thresholds: that each must keep to.
        progress: called with the fraction done and what is at hand.

    Returns:
        ``{"prompts", "tokens", "reference_perplexity", "thresholds", "formats": {format: {variant: {...}}}}``, the
        innermost being `Agreement`.

    Raises:
        ValidationFailed: a model misses a threshold; the message has all numbers found and expected.
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
        "formats": {form: {} for form in models},
    }
    misses: list[str] = []
    graphs = [(form, variant, path) for form, paths in models.items() for variant, path in paths.items()]
    for done, (form, variant, path) in enumerate(graphs):
        progress(0.5 + 0.5 * done / len(graphs), f"{form} {variant}")
        engine = load(ENGINES[form])(folder / path, weights.spec, scored=variant == "scored")
        agreement = _compare(engine, recorded, scored=variant == "scored")
        del engine  # before the next one is loaded
        results["formats"][form][variant] = asdict(agreement)
        where = path if len(set(models[form].values())) > 1 else f"{path} ({variant})"
        misses += [f"{where}: {miss}" for miss in judge(agreement, thresholds)]
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


def _compare(engine: Decoder, recorded: _Recorded, scored: bool) -> Agreement:
    worst, agreeing, divergences = [], [], []
    widths = engine.widths or (CHUNK,)
    for given, expected in zip(recorded.prompts, recorded.prompt_logits, strict=True):
        found = np.concatenate([logits.copy() for logits in _forward(engine, given, widths, scored)])
        cache = KVCache(engine.spec, 0, len(given.ids), scored=scored)
        prefill = engine.forward(cache, given.ids, last_only=True, features=given.features)
        worst += [np.abs(found - expected).max(), np.abs(prefill - expected[-1:]).max()]
        agreeing.append(found.argmax(-1) == expected.argmax(-1))
        divergences.append(_kl(_log_softmax(expected), _log_softmax(found)))
    likelihoods, top1 = _read_text(recorded.text_columns, _forward(engine, recorded.text, widths[-1:], scored))
    agreeing.append(top1 == recorded.text_top1)
    perplexity = _perplexity(likelihoods)
    return Agreement(
        max_abs_logit=float(np.max(worst)),
        top1_agreement=float(np.concatenate(agreeing).mean()),
        mean_kl=float(np.concatenate(divergences).mean()),
        perplexity=perplexity,
        perplexity_ratio=perplexity / _perplexity(recorded.text_likelihoods),
    )


def _forward(engine: Decoder, given: _Input, widths: Sequence[int], scored: bool) -> Iterator[np.ndarray]:
    """Logits of a sequence, each overwritten by the next, by forwards of the widths in turn."""
    cache = KVCache(engine.spec, len(given.ids), max(widths), scored=scored)
    turns, start = cycle(widths), 0
    while start < len(given.ids):
        end = start + next(turns)
        chunk = given.ids[start:end]
        yield engine.forward(cache, chunk, features=None if given.features is None else given.features[start:end])
        cache.commit(len(chunk))
        start = end


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
