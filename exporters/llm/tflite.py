"""Writes a decoder for LiteRT: a signature per width, with and without attention mass, over one set of weights.

One layer is converted per width, and the others are copies of its graph with weights of their own: converting the
whole decoder would take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.llm.static_shape import FormatReport, StaticShape
from edgepipe.exporters.llm.tflite_model import Parameter, Subgraph, TFLiteModel
from edgepipe.exporters.llm.tflite_trace import SLOTS, Trace, random, schema, trace
from edgepipe.exporters.llm.tflite_weights import Table, WeightStore
from edgepipe.exporters.llm.torch_decoder import DecoderLayer, OutputHead, check_kind
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.engines.static_widths import Entry
from edgepipe.runtimes.llm.spec import DecoderSpec

FILE = "tflite/model.tflite"
CAPACITY = 1024  # of the caches that the file's own shapes are for

Progress = Callable[[float, str], None]


def write_tflite(
    weights: DecoderWeights,
    recipe: DecoderRecipe,
    shape: StaticShape,
    folder: Path,
    progress: Progress | None = None,
) -> FormatReport:
    """Write ``tflite/model.tflite`` under ``folder``, which serves plain and scored caches of any number of slots.

    Tensors are read, quantised, appended and dropped one after another. ``progress`` is called with the fraction
    done and what comes next.

    Raises:
        UnsupportedModel: the model is a draft that reads features, a tensor is missing, or litert-torch fails.
    """
    check_kind(weights)
    progress = progress or (lambda fraction, part: None)
    spec = weights.spec
    path = folder / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    traces = _Traces(spec)
    entries = [
        entry
        for scored in (False, True)
        for entry in (*(Entry(width, False, scored) for width in shape.widths), Entry(shape.chunk, True, scored))
    ]
    with TFLiteModel(path) as model:
        store = WeightStore(weights, recipe, model)
        table = store.table()
        layers = []
        for index in range(spec.num_layers):
            progress(0.6 * index / spec.num_layers, f"layer {index + 1} of {spec.num_layers}")
            layers.append(store.layer(index))
        head = store.head()
        for done, entry in enumerate(entries):
            progress(0.6 + 0.35 * done / len(entries), entry.name)
            graph = _Graph(spec, entry, traces, Subgraph(model, entry.name, entry.width, CAPACITY))
            graph.build(table, layers, head)
        progress(0.95, "file")
        size = model.save(f"edgepipe {spec.architecture}")
    precision, notes = store.precisions.report(), store.precisions.notes()
    return FormatReport({"plain": FILE, "scored": FILE}, precision, size, notes, shape)


class _Traces:
    """The converted pieces of a decoder, each converted once."""

    def __init__(self, spec: DecoderSpec) -> None:
        self.spec = spec
        self._layers: dict[int, Trace] = {}
        self._heads: dict[int, Trace] = {}

    def layer(self, width: int) -> Trace:
        """A layer of ``width`` new tokens, whose last output is the mass."""
        spec = self.spec
        if width not in self._layers:
            angles, slots = (width, spec.head_dim // 2), (spec.num_kv_heads, SLOTS, spec.head_dim)
            shapes = ((width, spec.hidden_size), angles, angles, (width, width + SLOTS), slots, slots)
            self._layers[width] = trace(DecoderLayer(spec, scored=True), [random(*shape) for shape in shapes])
        return self._layers[width]

    def head(self, count: int) -> Trace:
        """The head over ``count`` rows."""
        if count not in self._heads:
            self._heads[count] = trace(OutputHead(self.spec), [random(count, self.spec.hidden_size)])
        return self._heads[count]


class _Graph:
    """One entry's graph; inputs and outputs are those of `edgepipe.runtimes.llm.engines.static_widths`."""

    def __init__(self, spec: DecoderSpec, entry: Entry, traces: _Traces, graph: Subgraph) -> None:
        self.spec = spec
        self.entry = entry
        self.traces = traces
        self.graph = graph

    def build(
        self,
        table: Table,
        layers: Sequence[Mapping[str, Parameter]],
        head: Mapping[str, Parameter],
    ) -> None:
        """Add everything from tokens to logits."""
        spec, graph, width = self.spec, self.graph, self.entry.width
        tokens = graph.input("tokens", (width,), "int32")
        shared = [graph.input(name, (width, spec.head_dim // 2)) for name in ("cos", "sin")]
        shared.append(graph.input("mask", (width, width + SLOTS)))
        if self.entry.last_only:
            logit_rows = graph.input("logit_rows", (1,), "int32")
        slots = (spec.num_kv_heads, SLOTS, spec.head_dim)
        hidden = self._embed(tokens, table)
        traced = self.traces.layer(width)
        outputs = 4 if self.entry.scored else 3
        rows: list[int] = []
        masses: list[int] = []
        for index, parameters in enumerate(layers):
            cache = [graph.input(f"{part}_{index}", slots) for part in ("keys", "values")]
            hidden, keys, values, *mass = graph.add(traced, [hidden, *shared, *cache], parameters, outputs)
            rows += [keys, values]
            masses += mass
        if self.entry.last_only:
            hidden = graph.operator(
                "GATHER", [hidden, logit_rows], (1, spec.hidden_size), schema.GatherOptionsT(axis=0)
            )
        count = 1 if self.entry.last_only else width
        (logits,) = graph.add(self.traces.head(count), [hidden], head)
        graph.output("logits", logits)
        graph.output("rows", self._joined(rows, (width, spec.head_dim)))
        if masses:
            graph.output("mass", self._joined(masses, (width, width + SLOTS)))

    def _embed(self, tokens: int, table: Table) -> int:
        """Rows of the table, times their scales."""
        graph, shape, options = self.graph, (self.entry.width, self.spec.hidden_size), schema.GatherOptionsT(axis=0)
        if table.row_scales is None:
            rows = graph.operator("GATHER", [graph.parameter(table.rows), tokens], shape, options)
        else:
            codes = graph.operator("GATHER", [graph.parameter(table.rows), tokens], shape, options, "int8")
            cast = schema.CastOptionsT(inDataType=schema.TensorType.INT8, outDataType=schema.TensorType.FLOAT32)
            numbers = graph.operator("CAST", [codes], shape, cast)
            scales = graph.operator("GATHER", [graph.parameter(table.row_scales), tokens], (shape[0], 1), options)
            rows = graph.operator("MUL", [numbers, scales], shape, schema.MulOptionsT())
        if table.column_scales is None:
            return rows
        return graph.operator("MUL", [rows, graph.parameter(table.column_scales)], shape, schema.MulOptionsT())

    def _joined(self, parts: Sequence[int], shape: Sequence[int]) -> int:
        """``[len(parts) * Hkv, *shape]`` of parts ``[Hkv, *shape]``: one output is handed over sooner than many."""
        heads = len(parts) * self.spec.num_kv_heads
        return self.graph.operator("CONCATENATION", parts, (heads, *shape), schema.ConcatenationOptionsT(axis=0))
