"""Writes a decoder for ExecuTorch: methods for plain and for scored caches, over one set of weights in one file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edgepipe.errors import MissingExtra
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.llm.static_shape import FormatReport, StaticShape
from edgepipe.exporters.llm.torch_decoder import check_kind
from edgepipe.exporters.sources.quiet import no_output
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.spec import DecoderSpec

try:
    with no_output():  # ExecuTorch and torch warn of each other's next versions
        import torch
        from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
        from executorch.exir.passes import MemoryPlanningPass

        from edgepipe.exporters.llm.executorch_methods import Examples, PlainMethod, ScoredMethod, forget_mutations
        from edgepipe.exporters.llm.smooth import SmoothedWeights
        from edgepipe.exporters.llm.xnnpack_layers import Embeddings
        from edgepipe.exporters.llm.xnnpack_lowering import Lowering
        from edgepipe.exporters.llm.xnnpack_modules import (
            AfterAttention,
            AttentionWeights,
            BeforeAttention,
            BetweenAttentions,
            Head,
            Part,
        )
        from edgepipe.exporters.llm.xnnpack_weights import Precisions
except ImportError as missing:
    raise MissingExtra("executorch", "export") from missing

FILE = "executorch/model.pte"
# Of one run at most: tokens, tokens with scores, and rows of logits. The runtime sets memory aside for them.
WIDEST, WIDEST_SCORED, MOST_LOGITS = 128, 16, 32
# Slots of a plain cache at most, or the model's context. A limit there must be, and this one costs nothing.
MOST_SLOTS = 2**16
# Bytes of one layer's attention weights at most, which set a limit to the slots of a scored cache.
SCORES_BYTES = 2**24

Progress = Callable[[float, str], None]


def write_executorch(
    weights: DecoderWeights,
    recipe: DecoderRecipe,
    shape: StaticShape,
    folder: Path,
    progress: Progress | None = None,
) -> FormatReport:
    """Write ``executorch/model.pte`` under ``folder``, which takes any number of tokens and slots, whatever ``shape``.

    ``progress`` is called with the fraction done and what comes next.

    Raises:
        UnsupportedModel: the model is a draft that reads features, or a tensor is missing.
    """
    check_kind(weights)
    progress = progress or (lambda fraction, part: None)
    spec = weights.spec
    if recipe.precision != "fp32":  # XNNPACK quantises activations row by row
        progress(0, "smoothing")
        weights = SmoothedWeights(weights)
    precisions = Precisions(weights, recipe)
    slots = max(MOST_SLOTS, spec.context_length) + WIDEST
    scored_slots = min(slots, SCORES_BYTES // (4 * spec.num_heads * WIDEST_SCORED))
    examples = {
        "plain": Examples(spec, WIDEST, MOST_LOGITS, slots),
        "scored": Examples(spec, WIDEST_SCORED, MOST_LOGITS, scored_slots),
    }
    smallest = Examples(spec, 8, 4, 32)
    lowering = Lowering()

    def delegate(part: Part) -> Any:
        part.load(weights)
        names = list(inspect.signature(part.forward).parameters)
        _, at_first = smallest.of(names)
        with no_output(), torch.no_grad():
            return lowering.lower(part.eval(), *examples["plain"].of(names), at_first)

    delegates = []
    for index, part in enumerate(decoder_parts(spec, precisions)):
        progress(0.6 * index / (spec.num_layers + 2), f"part {index + 1} of {spec.num_layers + 2}")
        delegates.append(delegate(part))
    embeddings = Embeddings(spec, precisions)
    embeddings.load(weights)
    methods = {
        "plain": PlainMethod(embeddings, delegates),
        "scored": ScoredMethod(embeddings, delegates, delegate(AttentionWeights(spec))),
    }
    programs = {}
    for index, (name, method) in enumerate(methods.items()):
        progress(0.6 + 0.1 * index, f"{name} method")
        arguments, shapes = examples[name].of(list(inspect.signature(method.forward).parameters))
        with no_output(), torch.no_grad():
            programs[name] = torch.export.export(method.eval(), arguments, dynamic_shapes=shapes)
    progress(0.8, "program")
    path = folder / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with no_output(), path.open("wb") as file:
        edge = to_edge(programs, compile_config=EdgeCompileConfig(_check_ir_validity=False))
        for name in programs:
            forget_mutations(edge.exported_program(name))
        # Inputs stay where the caller has them.
        planning = MemoryPlanningPass(alloc_graph_input=False)
        edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).write_to_file(file)
    return FormatReport({"plain": FILE, "scored": FILE}, precisions.report(), path.stat().st_size, precisions.notes())


def decoder_parts(spec: DecoderSpec, precisions: Precisions) -> Iterator[Part]:
    """From the embeddings to the logits, one after another: each holds weights."""
    last = spec.num_layers - 1
    yield BeforeAttention(spec, 0, precisions)
    for layer in range(last):
        yield BetweenAttentions(spec, layer, precisions)
    yield AfterAttention(spec, last, precisions)
    yield Head(spec, precisions)
