"""The job behind `edgepipe distill`: a target writes samples, a draft is trained on them."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgepipe.errors import BundleError, RecipeError
from edgepipe.exporters.llm.distill.prompt_sources import Prompts
from edgepipe.exporters.llm.distill.sample_shards import SampleSettings, SampleShards
from edgepipe.exporters.llm.distill.samples import Sample
from edgepipe.exporters.llm.distill.sampling import BatchSampler
from edgepipe.exporters.llm.distill.training import Training, TrainingState
from edgepipe.exporters.llm.distill.vocabulary import coverage, frequent_tokens
from edgepipe.exporters.llm.draft_folder import quantize_rows, write_draft
from edgepipe.exporters.llm.onnx import PLAIN
from edgepipe.exporters.sources import open_source
from edgepipe.exporters.sources.draft import DraftWeights
from edgepipe.exporters.sources.quiet import no_logs
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.pipeline.distill_target import exported_target, opened_prompts
from edgepipe.pipeline.distillation import OUTPUT_VOCAB_SIZE, Distillation
from edgepipe.pipeline.draft_card import draft_card
from edgepipe.pipeline.full_disk import told_if_full
from edgepipe.pipeline.is_there import is_there
from edgepipe.pipeline.partial_folder import partial_folder
from edgepipe.pipeline.progress import Progress, checked
from edgepipe.pipeline.termination import termination_cleans_up

if TYPE_CHECKING:
    import torch

    from edgepipe.exporters.llm.distill.decoder_draft import DecoderDraft
    from edgepipe.exporters.llm.distill.head_draft import HeadDraft

# Conversations that are sampled at a time: so many that products are bound by arithmetic, if their cache fits.
LARGEST_BATCH = 64
CACHE_BYTES = 3 * 2**30


@no_logs()
def distill(recipe: Distillation, destination: Path, work: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Write a draft, which appears as ``destination`` when it is trained; returns the facts on its card.

    What the target wrote and the training's checkpoint stay in ``work``: the same call goes on where one that was
    interrupted ended, and other trainings on the same samples need not sample again.

    Raises:
        BundleError: the destination exists or cannot be written, or a disk is full.
        RecipeError: an option is out of range, or ``work`` belongs to another distillation.
        EdgepipeError: the target is not found; `UnsupportedModel`: it cannot be exported.
    """
    import torch

    destination = Path(os.path.realpath(destination))
    if is_there(destination):
        raise BundleError(f"{destination} exists: give the name of a new folder")
    if Path(os.path.realpath(work)).is_relative_to(destination):
        raise RecipeError(f"the work folder is {work}, expected one outside of {destination}: give another --work")
    weights = open_source(recipe.target, recipe.revision)
    start = recipe.opened_start(weights)
    layers = recipe.target_layers(weights, start)
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    with termination_cleans_up() as stop_if_asked:
        report = checked(progress, stop_if_asked)
        prompts = opened_prompts(recipe, weights)
        remedy = "free some, and the same command goes on where it was; or move this folder, and give it with --work"
        with told_if_full(work, remedy):
            shards = _shards(weights, recipe, prompts, work)
            target = exported_target(weights, recipe, work, report)
            samples, held_out = _sample(shards, weights, recipe, target, report)
            ids = _output_token_ids(recipe, weights, samples, start)
            if recipe.kind == "head":
                samples, held_out = _with_features(weights, samples, held_out, work, report)
            draft = _draft(recipe, weights, target, layers, ids, start)
            facts = {
                "kind": recipe.kind,
                "target": recipe.target,
                "layers": list(layers),
                **({} if start is None else {"start": _summary(start)}),
                "sample_tokens": sum(int(sample.written.sum()) for sample in samples),
                "prompts": shards.settings.prompts,
                "temperatures": list(recipe.temperatures),
                "seed": recipe.seed,
                "output_vocab_coverage": round(coverage(held_out, ids), 4),
            }
            digest = hashlib.sha256(ids.tobytes())
            if start is not None:
                for values in draft.tensors().values():
                    digest.update(values.tobytes())
            identity = {**facts, "samples": asdict(shards.settings), "beginning": digest.hexdigest()}
            checkpoint = work / f"{destination.name}.checkpoint.pt"
            training = Training(draft, samples, held_out, recipe.training, checkpoint, json.loads(json.dumps(identity)))
            state = training.run(lambda fraction, line: report(0.5 + fraction / 2, f"train: {line}"))
        _round_to_int8(draft)
        facts |= _trained(training, state)
        config = _config(target, layers, ids, facts)
        remedy = f"free some, and the same command goes on; or give -o ELSEWHERE/{destination.name} --work {work}"
        with told_if_full(destination, remedy), partial_folder(destination) as folder:
            write_draft(folder, config, {**draft.tensors(), "output_token_ids": ids})
            (folder / "README.md").write_text(draft_card(facts, weights.info, config), encoding="utf-8")
            if destination.exists():
                raise BundleError(f"{destination} has come to exist meanwhile: move it away, and run this again")
            stop_if_asked()
            os.rename(folder, destination)
    return facts


def _shards(weights: DecoderWeights, recipe: Distillation, prompts: Prompts, work: Path) -> SampleShards:
    settings = SampleSettings(
        target=weights.identity,
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
    samples = features.add(samples, lambda fraction: report(0.5, f"features: {fraction:.0%}"))
    held_out = features.add(held_out, lambda fraction: report(0.5, "features: held-out prompts"))
    features.close()
    return samples, held_out


def _draft(
    recipe: Distillation,
    weights: DecoderWeights,
    target: Path,
    layers: tuple[int, ...],
    ids: np.ndarray,
    start: DraftWeights | None,
) -> DecoderDraft | HeadDraft:
    """The draft before its training."""
    from transformers import AutoConfig

    from edgepipe.exporters.llm.distill.decoder_draft import DecoderDraft
    from edgepipe.exporters.llm.distill.head_draft import HeadDraft

    config = AutoConfig.from_pretrained(target)
    draft: DecoderDraft | HeadDraft
    if recipe.kind == "head":
        draft = HeadDraft(weights, config, layers[0], ids)
    else:
        draft = DecoderDraft(weights, config, layers, ids)
    if start is not None:
        for name, values in draft.tensors().items():
            values[...] = start.tensor(name)
    return draft


def _summary(start: DraftWeights) -> dict[str, Any]:
    """What the card says of the draft that another goes on from."""
    kept = ("sample_tokens", "training_tokens", "seed", "start")
    return {"name": start.info.name, **{key: start.facts[key] for key in kept if key in start.facts}}


def _output_token_ids(
    recipe: Distillation, weights: DecoderWeights, samples: list[Sample], start: DraftWeights | None
) -> np.ndarray:
    if start is not None:
        return start.output_token_ids
    size = recipe.output_vocab_size or OUTPUT_VOCAB_SIZE
    return frequent_tokens(samples, size, weights.spec.vocab_size, weights.spec.eos_token_ids)


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
