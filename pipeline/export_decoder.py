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
from edgepipe.pipeline.reference import write_reference
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

    Raises:
        UnsupportedModel: a format cannot hold it.
        ValidationFailed: a format strays too far from the source.
    """
    started = time.monotonic()
    folder = draft.folder / name
    ids = weights.output_token_ids
    if ids is not None:
        np.save(folder / TOKEN_IDS, ids)
    steps = len(formats) + check
    written: dict[str, FormatReport] = {}
    files: dict[str, dict[str, Any]] = {}
    for index, form in enumerate(formats):
        begin = time.monotonic()
        share = part_of(progress, index, steps, f"write {form}")
        report = written[form] = write_format(form, weights, recipe, shape, folder, share, gives_features)
        seconds = round(time.monotonic() - begin, 3)
        files[form] = {
            **{variant: f"{name}/{path}" for variant, path in report.paths.items()},
            **(asdict(report.shape) if report.shape else {}),
            "precision": report.precision,
            "bytes": report.bytes,
            "export_seconds": seconds,
        }
    if check:
        models = {form: report.paths for form, report in written.items()}
        share = part_of(progress, steps - 1, steps, "validate")
        draft.manifest["validation"][name] = validate(weights, folder, models, recipe.limits, share)
    several = len(formats) > 1
    components = draft.manifest["components"]
    components[name] = {
        "kind": weights.kind,
        "source": asdict(weights.info),
        "spec": weights.spec.to_json(),
        "precision": written[formats[0]].precision,
        "formats": files,
        "tokenizer": f"{name}/tokenizer.json",
        **({} if ids is None else {"output_token_ids": f"{name}/{TOKEN_IDS}"}),
        "export": {
            "seconds": round(time.monotonic() - started, 3),
            "peak_rss_bytes": peak_rss_bytes(),
            "notes": [
                *weights.info.notes,
                *(f"{form}: {note}" if several else note for form, report in written.items() for note in report.notes),
            ],
        },
    }
    for form in formats:
        write_reference(draft.folder, name, components, form)


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
