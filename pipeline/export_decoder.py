"""The part of an export that is a decoder: written in every format, held against its source, its outputs recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.devices.probes import peak_rss_bytes
from edgepipe.exporters.llm.onnx import PLAIN, SCORED, write_onnx
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.llm.static_shape import FormatReport, StaticShape
from edgepipe.exporters.llm.validate import validate
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.lazy import load
from edgepipe.pipeline.bundle_writer import BundleDraft
from edgepipe.pipeline.manifest import GRAPHS
from edgepipe.pipeline.reference import reference_file, write_reference
from edgepipe.pipeline.unchanged import Origin, agreements, take_over
from edgepipe.runtimes.llm.output_vocabulary import TOKEN_IDS

Progress = Callable[[float, str], None]

_WRITERS = {
    "tflite": "edgepipe.exporters.llm.tflite:write_tflite",
    "executorch": "edgepipe.exporters.llm.executorch:write_executorch",
}


def export_decoder(
    name: str,
    weights: DecoderWeights,
    recipe: DecoderRecipe,
    formats: Sequence[str],
    shape: StaticShape,
    draft: BundleDraft,
    check: bool,
    progress: Progress,
    gives_features: bool,
) -> None:
    """Write one decoder into the draft of a bundle, and say in its manifest what was written, and how close it is.

    Formats that the replaced bundle has just as they would be written are taken over from there.

    Raises:
        UnsupportedModel: a format cannot hold it.
        ValidationFailed: a format strays too far from the source.
    """
    started = time.monotonic()
    folder, components = draft.folder / name, draft.manifest["components"]
    ids = weights.output_token_ids
    if ids is not None:
        np.save(folder / TOKEN_IDS, ids)
    origin = Origin.of(weights, recipe, gives_features, folder, draft.manifest)
    steps = len(formats) + check
    files: dict[str, dict[str, Any]] = {}
    taken_over: list[str] = []
    for index, form in enumerate(formats):
        entry = take_over(draft.replaced, draft.folder, name, form, origin, shape)
        if entry is not None:
            taken_over.append(form)
        else:
            share, before, begin = part_of(progress, index, steps, f"write {form}"), _files(folder), time.monotonic()
            report = write_format(form, weights, recipe, shape, folder, share, gives_features)
            entry = {
                **{variant: f"{name}/{path}" for variant, path in report.paths.items()},
                **(asdict(report.shape) if report.shape else {}),
                "precision": report.precision,
                "bytes": report.bytes,
                "export_seconds": round(time.monotonic() - begin, 3),
                "notes": report.notes,
                "written_from": origin.digest(form, report.shape),
                "files": [f"{name}/{path}" for path in sorted(_files(folder) - before)],
            }
        files[form] = entry
    if check:
        known = agreements(draft.replaced, name, recipe.limits)
        found = {form: known["formats"][form] for form in taken_over if form in known["formats"]}
        models = {form: _graphs(name, entry) for form, entry in files.items() if form not in found}
        share = part_of(progress, steps - 1, steps, "validate")
        result = validate(weights, folder, models, recipe.limits, share) if models else known
        found |= {form: result["formats"][form] for form in models}
        draft.manifest["validation"][name] = {**result, "formats": {form: found[form] for form in formats}}
    several = len(formats) > 1
    components[name] = {
        "kind": weights.kind,
        "source": asdict(weights.info),
        "spec": weights.spec.to_json(),
        "precision": files[formats[0]]["precision"],
        "formats": files,
        "tokenizer": f"{name}/tokenizer.json",
        **({} if ids is None else {"output_token_ids": f"{name}/{TOKEN_IDS}"}),
        "export": {
            "seconds": round(time.monotonic() - started, 3),
            "peak_rss_bytes": peak_rss_bytes(),
            "taken_over": taken_over,
            "notes": [
                *weights.info.notes,
                *(f"{form}: {note}" if several else note for form, entry in files.items() for note in entry["notes"]),
            ],
        },
    }
    for form in formats:
        if form not in taken_over:
            write_reference(draft.folder, name, components, form)
            files[form]["files"].append(reference_file(name, form))


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def _graphs(name: str, entry: dict[str, Any]) -> dict[str, str]:
    """By variant, the path of a file under the component's folder."""
    return {variant: entry[variant].removeprefix(f"{name}/") for variant in GRAPHS if variant in entry}


def write_format(
    form: str,
    weights: DecoderWeights,
    recipe: DecoderRecipe,
    shape: StaticShape,
    folder: Path,
    progress: Progress | None = None,
    gives_features: bool = False,
) -> FormatReport:
    """Write a decoder in one format under ``folder``.

    Raises:
        UnsupportedModel: the format cannot hold it.
    """
    if form != "onnx":
        report: FormatReport = load(_WRITERS[form])(weights, recipe, shape, folder, progress)
        return report
    found = write_onnx(weights, recipe, folder, progress, gives_features)
    return FormatReport({"plain": PLAIN, "scored": SCORED}, found.precision, found.bytes, found.notes)


def part_of(progress: Progress, index: int, count: int, name: str) -> Progress:
    """Progress of part ``index`` of ``count``, told as progress of the whole."""
    return lambda fraction, step: progress((index + fraction) / count, f"{name} {step}".strip())
