"""The job behind `edgepipe distill`: a target writes samples, a draft is trained on them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepipe.errors import BundleError, RecipeError
from edgepipe.exporters.llm.distill.prompt_sources import ChatTurns, FilePrompts, Prompts, TemplatePrompts, TextPrompts
from edgepipe.exporters.llm.distill.sample_shards import SampleSettings, SampleShards
from edgepipe.exporters.llm.distill.samples import Sample
from edgepipe.exporters.llm.distill.sampling import BatchSampler
from edgepipe.exporters.llm.distill.training import Training, TrainingSettings, TrainingState
from edgepipe.exporters.llm.distill.vocabulary import coverage, frequent_tokens
from edgepipe.exporters.llm.draft_folder import KINDS, quantize_rows, write_draft
from edgepipe.exporters.llm.onnx import PLAIN, write_onnx
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.sources import open_source
from edgepipe.exporters.sources.quiet import no_logs
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.pipeline.draft_card import draft_card
from edgepipe.pipeline.partial_folder import partial_folder
from edgepipe.pipeline.termination import termination_cleans_up
from edgepipe.runtimes.llm.chat_template import ChatTemplate
from edgepipe.runtimes.llm.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import torch

    from edgepipe.exporters.llm.distill.decoder_draft import DecoderDraft
    from edgepipe.exporters.llm.distill.head_draft import HeadDraft

Progress = Callable[[float, str], None]

# Conversations that are sampled at a time: so many that products are bound by arithmetic, if their cache fits.
LARGEST_BATCH = 64
CACHE_BYTES = 3 * 2**30


@dataclass(frozen=True)
class Distillation:
    """What to distil; see `edgepipe distill --help`.

    Attributes:
        target: what `edgepipe.exporters.sources.open_source` takes.
        revision: of a hub id.
        kind: "decoder", or "head" (see `edgepipe.exporters.llm.draft_folder`).
        layers: the target's layers that the draft starts from; by default the first two, or the last for a head.
        output_vocab_size: tokens that the draft can guess.
        prompts: file with one prompt a line, instead of the built-in templates.
        text: file with text that the target continues, instead of prompts.
        temperatures: that conversations are sampled at, each as often as it is there.
        sample_tokens: tokens that the target writes; sampling ends with the shard that reaches them.
        max_answer: tokens of its longest answer.
        shard_size: conversations that are written to the disk together.
        held_out: conversations that acceptance is measured on.
        training: how long and how.
        seed: of prompts, samples and training.
        threads: that sampling and training use.
    """

    target: str
    revision: str | None = None
    kind: str = "decoder"
    layers: tuple[int, ...] | None = None
    output_vocab_size: int = 8192
    prompts: Path | None = None
    text: Path | None = None
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.3, 0.5, 0.7, 0.9)
    sample_tokens: int = 600_000
    max_answer: int = 192
    shard_size: int = 256
    held_out: int = 96
    training: TrainingSettings = field(default_factory=TrainingSettings)
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.prompts and self.text:
            raise RecipeError("both prompts and a text are given: leave one of them out")
        for name, value, fits, expected in (
            ("kind", self.kind, self.kind in KINDS, " or ".join(KINDS)),
            ("output_vocab_size", self.output_vocab_size, self.output_vocab_size >= 1, "1 or more"),
            ("temperatures", self.temperatures, min(self.temperatures, default=-1) >= 0, "some, none below 0"),
            ("sample_tokens", self.sample_tokens, self.sample_tokens >= 1, "1 or more"),
            ("passes", self.training.passes, self.training.passes > 0, "more than 0"),
            ("minutes", self.training.minutes, (self.training.minutes or 1) > 0, "more than 0"),
            ("seed", self.seed, self.seed >= 0, "0 or more"),
            ("threads", self.threads, self.threads >= 1, "1 or more"),
        ):
            if not fits:
                raise RecipeError(f"{name} is {value}: expected {expected}")


@no_logs()
def distill(recipe: Distillation, destination: Path, work: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Write a draft, which appears as ``destination`` when it is trained; returns the facts on its card.

    What the target wrote and the training's checkpoint stay in ``work``: the same call goes on where one that was
    interrupted ended, and other trainings on the same samples need not sample again.

    Raises:
        BundleError: the destination exists or cannot be written.
        RecipeError: an option is out of range, or ``work`` belongs to another distillation.
        EdgepipeError: the target is not found; `UnsupportedModel`: it cannot be exported.
    """
    import torch

    report = progress or (lambda fraction, step: None)
    if destination.exists():
        raise BundleError(f"{destination} exists: give the name of a new folder")
    weights = open_source(recipe.target, recipe.revision)
    layers = _layers(recipe, weights)
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    with termination_cleans_up():
        target = _exported_target(weights, recipe, work, report)
        shards = _shards(weights, recipe, target, work)
        samples, held_out = _sample(shards, weights, recipe, target, report)
        ids = frequent_tokens(samples, recipe.output_vocab_size, weights.spec.vocab_size, weights.spec.eos_token_ids)

        if recipe.kind == "head":
            samples, held_out = _with_features(weights, samples, held_out, work, report)
        draft = _draft(recipe, weights, target, layers, ids)
        facts = {
            "kind": recipe.kind,
            "target": recipe.target,
            "layers": list(layers),
            "sample_tokens": sum(int(sample.written.sum()) for sample in samples),
            "prompts": shards.settings.prompts,
            "temperatures": list(recipe.temperatures),
            "seed": recipe.seed,
            "output_vocab_coverage": round(coverage(held_out, ids), 4),
        }
        digest = hashlib.sha256(ids.tobytes()).hexdigest()
        identity = {**facts, "samples": asdict(shards.settings), "output_token_ids": digest}
        checkpoint = work / f"{destination.name}.checkpoint.pt"
        training = Training(draft, samples, held_out, recipe.training, checkpoint, json.loads(json.dumps(identity)))
        state = training.run(lambda fraction, line: report(0.5 + fraction / 2, f"train: {line}"))
        _round_to_int8(draft)
        facts |= _trained(training, state)
        config = _config(target, layers, ids, facts)
        with partial_folder(destination) as folder:
            write_draft(folder, config, {**draft.tensors(), "output_token_ids": ids})
            (folder / "README.md").write_text(draft_card(facts, weights.info, config), encoding="utf-8")
            if destination.exists():
                raise BundleError(f"{destination} has come to exist meanwhile: move it away, and run this again")
            os.rename(folder, destination)
    return facts


def _layers(recipe: Distillation, weights: DecoderWeights) -> tuple[int, ...]:
    count = weights.spec.num_layers
    layers = recipe.layers or ((count - 1,) if recipe.kind == "head" else tuple(range(min(2, count))))
    if recipe.kind == "head" and len(layers) != 1:
        raise RecipeError(f"layers is {','.join(map(str, layers))}: expected one, a head has no more")
    if any(not 0 <= layer < count for layer in layers):
        raise RecipeError(f"layers is {','.join(map(str, layers))}: expected layers of the target, 0 to {count - 1}")
    if list(layers) != sorted(set(layers)):
        raise RecipeError(f"layers is {','.join(map(str, layers))}: expected each once, in ascending order")
    return layers


def _exported_target(weights: DecoderWeights, recipe: Distillation, work: Path, report: Progress) -> Path:
    """The target as a device gets it, exported into ``work`` once."""
    folder = work / "target"
    if not folder.is_dir():
        with partial_folder(folder) as partial:
            weights.save_tokenizer(partial)
            source = DecoderRecipe(recipe.target, recipe.revision)
            write_onnx(weights, source, partial, lambda fraction, part: report(0.05 * fraction, f"export: {part}"))
            os.rename(partial, folder)
    return folder


def _shards(weights: DecoderWeights, recipe: Distillation, target: Path, work: Path) -> SampleShards:
    tokenizer = load_tokenizer(target)
    chat = ChatTurns(tokenizer, ChatTemplate.load(target), weights.spec.eos_token_ids)
    prompts: Prompts
    if recipe.text:
        prompts = TextPrompts(recipe.text, tokenizer, recipe.seed)
    elif recipe.prompts:
        prompts = FilePrompts(recipe.prompts, chat, recipe.seed)
    else:
        prompts = TemplatePrompts(chat, recipe.seed)
    info = weights.info
    settings = SampleSettings(
        target=f"{info.name} {info.revision or json.dumps(info.files)}",
        prompts=prompts.name,
        temperatures=recipe.temperatures,
        seed=recipe.seed,
        max_answer=recipe.max_answer,
        shard_size=recipe.shard_size,
        held_out=recipe.held_out,
    )
    return SampleShards(work / "samples", settings, prompts)


def _sample(
    shards: SampleShards, weights: DecoderWeights, recipe: Distillation, target: Path, report: Progress
) -> tuple[list[Sample], list[Sample]]:
    """Samples to train on and held-out ones."""

    @cache
    def sampler() -> BatchSampler:
        capacity = min(shards.settings.capacity, weights.spec.context_length)
        rows = CACHE_BYTES // (capacity * weights.spec.kv_bytes_per_token)
        return BatchSampler(target / PLAIN, weights.spec, max(1, min(LARGEST_BATCH, rows)), capacity, recipe.threads)

    report(0.05, "sample: held-out prompts")
    held_out = shards.held_out(sampler)
    samples: list[Sample] = []
    written = 0
    for shard in shards.take(recipe.sample_tokens, sampler):
        samples += shard
        written += sum(int(sample.written.sum()) for sample in shard)
        share = min(1.0, written / recipe.sample_tokens)
        report(0.05 + 0.45 * share, f"sample: {written / 1e6:.2f} M tokens written")
    return samples, held_out


def _with_features(
    weights: DecoderWeights, samples: list[Sample], held_out: list[Sample], work: Path, report: Progress
) -> tuple[list[Sample], list[Sample]]:
    """The same samples with the target's features, which a head reads."""
    from edgepipe.exporters.llm.distill.features import Features

    features = Features(weights, work / "features")
    name = f"{len(samples)}-samples"
    samples = features.add(name, samples, lambda fraction: report(0.5, f"features: {fraction:.0%}"))
    held_out = features.add("held-out", held_out, lambda fraction: report(0.5, "features: held-out prompts"))
    features.close()
    return samples, held_out


def _draft(
    recipe: Distillation, weights: DecoderWeights, target: Path, layers: tuple[int, ...], ids: np.ndarray
) -> DecoderDraft | HeadDraft:
    """The draft before its training."""
    from transformers import AutoConfig

    from edgepipe.exporters.llm.distill.decoder_draft import DecoderDraft
    from edgepipe.exporters.llm.distill.head_draft import HeadDraft

    config = AutoConfig.from_pretrained(target)
    if recipe.kind == "head":
        return HeadDraft(weights, config, layers[0], ids)
    return DecoderDraft(weights, config, layers, ids)


def _round_to_int8(draft: torch.nn.Module) -> None:
    """Give trained matrices the values that they will have on the disk."""
    import torch

    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.requires_grad and parameter.ndim == 2:
                codes, scales = quantize_rows(parameter.detach().numpy())
                parameter.copy_(torch.from_numpy(codes * scales.astype(np.float32)[:, None]))


def _config(target: Path, layers: tuple[int, ...], ids: np.ndarray, facts: dict[str, Any]) -> dict[str, Any]:
    """config.json of the draft: the target's but for what is cut."""
    config = json.loads((target / "config.json").read_text("utf-8"))
    if config.get("layer_types"):
        config["layer_types"] = [config["layer_types"][layer] for layer in layers]
    return {
        **config,
        "num_hidden_layers": len(layers),
        "tie_word_embeddings": False,
        "output_vocab_size": len(ids),
        "edgepipe": facts,
    }


def _trained(training: Training, state: TrainingState) -> dict[str, Any]:
    acceptance = training.acceptance()
    return {
        "training": asdict(training.settings),
        "training_tokens": state.tokens,
        "training_minutes": round(state.seconds / 60, 1),
        "acceptance": {
            "greedy": round(acceptance.greedy, 4),
            "sampled": round(acceptance.sampled, 4),
            "held_out_tokens": sum(int(sample.written.sum()) for sample in training.held_out),
        },
        "evaluations": [{key: round(value, 4) for key, value in each.items()} for each in state.evaluations],
    }
