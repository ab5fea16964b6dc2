"""Writes a decoder for onnxruntime: two graphs (with and without attention scores) over one file of weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgepipe.errors import MissingExtra
from edgepipe.exporters.llm.genai_config import genai_config
from edgepipe.exporters.llm.onnx_decoder import DecoderGraph, StoredDecoder, StoredFusion, StoredLayer
from edgepipe.exporters.llm.onnx_projection import Projection, ProjectionWriter
from edgepipe.exporters.llm.onnx_weights import StoredTensor, WeightFile
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.rope import cos_sin_tables

try:
    import onnx
except ImportError as missing:
    raise MissingExtra("onnx", "export") from missing

SCHEMA_VERSION = 1
PLAIN, SCORED, DATA = "onnx/model.onnx", "onnx/model.scored.onnx", "onnx/model.onnx.data"

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class OnnxReport:
    """What was written.

    ``precision`` names the parts' precisions ("int4", "int4+int8" where layers differ), ``block_size`` likewise;
    ``carried`` counts tensors whose GGUF blocks were kept, ``notes`` are sentences for the export report.
    """

    precision: dict[str, str]
    carried: int
    bytes: int
    notes: tuple[str, ...]


def write_onnx(
    weights: DecoderWeights,
    recipe: DecoderRecipe,
    folder: Path,
    progress: Progress | None = None,
    gives_features: bool = False,
) -> OnnxReport:
    """Write ``model.onnx``, ``model.scored.onnx`` and ``model.onnx.data`` under ``folder/onnx`` and the genai config.

    Tensors are read, quantised, appended and dropped one after another. ``progress`` is called with the fraction
    done and what was just written. A target whose draft is a head ``gives_features``.

    Raises:
        UnsupportedModel: a tensor is missing or cannot be quantised as the recipe asks.
    """
    spec = weights.spec
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    with WeightFile(folder / DATA) as file:
        writer = ProjectionWriter(weights, recipe, file)
        parameters = _store(writer, progress or (lambda fraction, part: None))
    report = _report(writer, parameters)
    metadata = {
        "edgepipe.schema_version": str(SCHEMA_VERSION),
        "edgepipe.spec": json.dumps(spec.to_json()),
        "edgepipe.precision": json.dumps(report.precision),
    }
    for path, scored in ((PLAIN, False), (SCORED, True)):
        model = DecoderGraph(spec, parameters, Path(DATA).name, scored, gives_features).build(metadata)
        onnx.save(model, folder / path)
    config = genai_config(spec, PLAIN)
    (folder / "genai_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return report


def _store(writer: ProjectionWriter, progress: Progress) -> StoredDecoder:
    weights, recipe, file = writer.weights, writer.recipe, writer.file
    spec = weights.spec
    steps = spec.num_layers + 2
    embeddings = writer.write(["model.embed_tokens"], recipe.head, default="int8", gathered=True)
    fusion = _store_fusion(writer) if weights.kind == "head" else None
    progress(1 / steps, "embeddings")
    layers = []
    for index in range(spec.num_layers):
        layers.append(_store_layer(writer, f"model.layers.{index}"))
        progress((index + 2) / steps, f"layer {index + 1} of {spec.num_layers}")
    norm = file.append(weights.tensor("model.norm.weight"))
    head = embeddings
    if not spec.tied_embeddings:
        head = writer.write(["lm_head"], recipe.head, default="int8")
    cos_cache, sin_cache = map(file.append, cos_sin_tables(spec, spec.context_length))
    progress(1.0, "head")
    return StoredDecoder(embeddings, tuple(layers), norm, head, cos_cache, sin_cache, fusion)


def _store_fusion(writer: ProjectionWriter) -> StoredFusion:
    weights, file = writer.weights, writer.file
    return StoredFusion(
        embedding_norm=file.append(weights.tensor("model.embedding_norm.weight")),
        feature_norm=file.append(weights.tensor("model.feature_norm.weight")),
        fc=writer.write(["model.fc"], writer.recipe.precision),
    )


def _store_layer(writer: ProjectionWriter, prefix: str) -> StoredLayer:
    weights, file, precision = writer.weights, writer.file, writer.recipe.precision
    spec = weights.spec
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"

    def norm(name: str) -> StoredTensor:
        return file.append(weights.tensor(f"{name}.weight"))

    qkv = [f"{attention}.{part}_proj" for part in "qkv"]
    gate_up = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
    return StoredLayer(
        input_norm=norm(f"{prefix}.input_layernorm"),
        qkv=writer.write(qkv, precision, biased=spec.qkv_bias),
        q_norm=norm(f"{attention}.q_norm") if spec.qk_norm else None,
        k_norm=norm(f"{attention}.k_norm") if spec.qk_norm else None,
        o=writer.write([f"{attention}.o_proj"], precision, biased=spec.o_bias),
        post_attention_norm=norm(f"{prefix}.post_attention_layernorm"),
        gate_up=writer.write(gate_up, precision, biased=spec.mlp_bias),
        down=writer.write([f"{mlp}.down_proj"], precision, biased=spec.mlp_bias),
    )


def _report(writer: ProjectionWriter, parameters: StoredDecoder) -> OnnxReport:
    layers = parameters.layers
    precision = {
        "embeddings": _precision(parameters.embeddings),
        "attention": _precision(*(part for layer in layers for part in (layer.qkv, layer.o))),
        "mlp": _precision(*(part for layer in layers for part in (layer.gate_up, layer.down))),
        "head": _precision(parameters.head),
    }
    notes = [
        f"{count} {kind} tensors carried over " + ("but for rounded minima" if writer.with_offsets[kind] else "exactly")
        for kind, count in sorted(writer.carried.items())
    ]
    notes += [f"{count} {kind} tensors requantised" for kind, count in sorted(writer.requantized.items()) if kind]
    return OnnxReport(precision, writer.carried.total(), writer.file.size, tuple(notes))


def _precision(*projections: Projection) -> str:
    names = {32: "fp32", 8: "int8", 4: "int4"}
    return "+".join(sorted({names[projection.bits] for projection in projections}))
