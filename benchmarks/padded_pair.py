"""A target that costs K times its draft and writes the same text: a model with extra layers that add nothing."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

import edgepipe
from edgepipe.exporters.llm.onnx import PLAIN, SCORED, write_onnx
from edgepipe.exporters.llm.quantize import QuantizedMatrix
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.sources import open_source
from edgepipe.exporters.sources.quiet import no_logs
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.bundle_writer import write_bundle

SOURCE = "smollm2-135m"
_OUTPUT_PROJECTION = re.compile(r"\.(o_proj|down_proj)\.")


class PaddedWeights(DecoderWeights):
    """A source's layers ``times`` times over; those after the first time have output projections of zeros.

    A layer adds to the hidden state what its two output projections (of attention and MLP) let through: here nothing,
    at the full cost of the layer. Zeros are stored in as many bits as the weights in whose place they are.
    """

    def __init__(self, source: DecoderWeights, times: int) -> None:
        self.source = source
        self.spec = replace(source.spec, num_layers=times * source.spec.num_layers)
        self.info = replace(source.info, name=f"{source.info.name}, depth-padded {times} times")

    def tensor(self, name: str) -> np.ndarray:
        """See `DecoderWeights.tensor`."""
        original, silenced = self._original(name)
        values = self.source.tensor(original)
        return np.zeros_like(values) if silenced else values

    def gguf_type(self, name: str) -> str | None:
        """See `DecoderWeights.gguf_type`."""
        return self.source.gguf_type(self._original(name)[0])

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """See `DecoderWeights.quantized`."""
        original, silenced = self._original(name)
        matrix = self.source.quantized(original)
        if matrix is None or not silenced:
            return matrix
        offsets = None if matrix.offsets is None else np.zeros_like(matrix.offsets)
        return replace(matrix, scales=np.zeros_like(matrix.scales), offsets=offsets)

    def save_tokenizer(self, folder: Path) -> None:
        """See `DecoderWeights.save_tokenizer`."""
        self.source.save_tokenizer(folder)

    def reference_model(self) -> None:
        """There is none."""
        raise NotImplementedError

    def _original(self, name: str) -> tuple[str, bool]:
        """The source's tensor in whose place this one is, and whether it is zeros here."""
        found = re.match(r"model\.layers\.(\d+)\.", name)
        if found is None:
            return name, False
        time, layer = divmod(int(found[1]), self.source.spec.num_layers)
        return f"model.layers.{layer}.{name[found.end() :]}", time > 0 and _OUTPUT_PROJECTION.search(name) is not None


@no_logs()
def padded_pair(times: int, work: Path) -> Bundle:
    """The bundle ``work/padded-TIMES``, written if it is not there: the padded target, the source itself as draft."""
    folder = work / f"padded-{times}"
    if folder.exists():
        return Bundle.open(folder)
    source = open_source(SOURCE)
    with write_bundle(folder) as draft:
        draft.manifest = {
            "edgepipe_version": edgepipe.__version__,
            "licence": source.info.licence,
            "components": {},
            "validation": {},
        }
        for name, weights in (("target", PaddedWeights(source, times)), ("draft", source)):
            part = draft.folder / name
            part.mkdir()
            weights.save_tokenizer(part)
            written = write_onnx(weights, DecoderRecipe(SOURCE), part)
            draft.manifest["components"][name] = {
                "kind": "decoder",
                "source": asdict(weights.info),
                "spec": weights.spec.to_json(),
                "precision": written.precision,
                "formats": {"onnx": {"plain": f"{name}/{PLAIN}", "scored": f"{name}/{SCORED}"}},
                "tokenizer": f"{name}/tokenizer.json",
            }
    return Bundle.open(folder)
