"""onnxruntime: keys and values written in place, every buffer reused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from edgepipe.errors import EngineError
from edgepipe.runtimes.llm.decoder import check_tokens
from edgepipe.runtimes.llm.engines.mapped_pages import populate
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.rope import cos_sin_tables
from edgepipe.runtimes.llm.spec import DecoderSpec

try:
    import onnxruntime as ort
except ImportError as error:
    if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C while its binding was initialised
        raise error.__cause__ from None
    raise EngineError(
        f"onnxruntime cannot be loaded ({error}): pip install onnxruntime, on Termux pkg install python-onnxruntime"
    ) from error

# Of a target that a head drafts for, and of the head: rows before the final norm. A head reads the target's, too.
FEATURES_OUT, FEATURES_IN = "hidden_states", "features"

# Long enough for the gaps between operators, on an idle machine as fast as spinning on.
SPIN_US = "50"


class OnnxDecoder:
    """A decoder graph (`edgepipe.exporters.llm.onnx`) in an onnxruntime session.

    The graph with scores (`scored=True`) serves scored caches, the one without serves the others.
    """

    def __init__(self, model: Path, spec: DecoderSpec, *, threads: int | None = None, scored: bool = False) -> None:
        """Load ``model``.

        Args:
            model: path of ``model.onnx`` or ``model.scored.onnx``.
            spec: shape of the decoder.
            threads: intra-op threads, the machine's cores by default.
            scored: whether the graph has the output ``attention_mass``.

        Raises:
            EngineError: onnxruntime refuses the file, or the graph is of another shape.
        """
        self.spec = spec
        self.scored = scored
        self.widths = None
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or os.cpu_count() or 1
        options.enable_mem_pattern = False  # shapes change with every step, so no pattern is ever met again
        # Threads wait for work by spinning. Between runs those of a draft would take the cores from its target, and
        # within a run a program that runs beside: spinning ends with the run, and else after a moment.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_US)
        options.log_severity_level = 3
        try:
            self.session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions share no public base class
            raise EngineError(f"{model}: onnxruntime {ort.__version__} cannot load it: {_first_line(error)}") from error
        self._check(model)
        populate(model.parent)
        self._bindings: WeakKeyDictionary[KVCache, _Binding] = WeakKeyDictionary()
        self._logits = np.empty((0, spec.num_logits), np.float32)
        self.reads_features = FEATURES_IN in {entry.name for entry in self.session.get_inputs()}
        gives_features = FEATURES_OUT in {output.name for output in self.session.get_outputs()}
        self.features = np.empty((0, spec.hidden_size), np.float32) if gives_features else None

    def _check(self, model: Path) -> None:
        """The graph must have this engine's inputs and outputs, and ``spec``'s shape."""
        outputs = {output.name: output.shape for output in self.session.get_outputs()}
        if self.scored and "attention_mass" not in outputs:
            raise EngineError(f"{model} has no output attention_mass: export the bundle again to get a scored graph")
        inputs = {entry.name: entry.shape for entry in self.session.get_inputs()}
        last = f"past_key_values.{self.spec.num_layers - 1}.key"
        found = inputs.get(last)
        expected = (self.spec.num_kv_heads, self.spec.head_dim)
        if found is None or f"past_key_values.{self.spec.num_layers}.key" in inputs or (found[1], found[3]) != expected:
            raise EngineError(
                f"{model}: the graph does not have {self.spec.num_layers} layers of {expected[0]} KV heads "
                f"of {expected[1]}: the bundle's files do not belong together, export it again"
            )
        if (logits := outputs.get("logits")) is None or logits[-1] != self.spec.num_logits:
            raise EngineError(
                f"{model}: the graph does not have {self.spec.num_logits} logits: the bundle's files do not belong "
                "together, export it again"
            )

    def forward(
        self, cache: KVCache, tokens: Sequence[int], *, last_only: bool = False, features: np.ndarray | None = None
    ) -> np.ndarray:
        """One run of the graph; see `edgepipe.runtimes.llm.decoder.Decoder.forward`.

        Raises:
            EngineError: onnxruntime fails, or a token is not in the model's vocabulary.
        """
        width = len(tokens)
        check_tokens(tokens, self.spec)
        rows = 1 if last_only else width
        if self._logits.shape[0] < rows:
            self._logits = np.empty((rows, self.spec.num_logits), np.float32)
        first = cache.next_position + cache.pending
        binding = self._binding(cache)
        row = first - binding.slide_tables(first, width)
        binding.feed("input_ids", np.asarray(tokens, np.int64).reshape(1, width))
        binding.feed("attention_mask", binding.ones[:, : cache.used + width])
        binding.feed("position_ids", np.arange(row, row + width, dtype=np.int64).reshape(1, width))
        binding.feed("logits_from", np.array([width - rows], np.int64))
        if features is not None:
            binding.feed(FEATURES_IN, np.ascontiguousarray(features, np.float32)[None])
        if self.features is not None:
            self.features = np.empty((width, self.spec.hidden_size), np.float32)
            binding.fetch(FEATURES_OUT, self.features[None])
        logits = self._logits[:rows]
        binding.fetch("logits", logits[None])
        if self.scored:
            binding.fetch("attention_mass", cache.mass_rows(width))
        try:
            self.session.run_with_iobinding(binding.io)
        except Exception as error:
            raise EngineError(f"onnxruntime failed: {_first_line(error)}") from error
        cache.append(width)
        return logits

    def _binding(self, cache: KVCache) -> _Binding:
        if (cache.mass is not None) != self.scored:
            raise ValueError("a scored cache needs the scored graph, and a plain cache the plain one")
        if cache not in self._bindings:
            self._bindings[cache] = _Binding(self.session, self.spec, cache)
        return self._bindings[cache]


class _Binding:
    """One cache bound to one session: past and present share the cache's buffer, so rows are written in place."""

    def __init__(self, session: ort.InferenceSession, spec: DecoderSpec, cache: KVCache) -> None:
        self.io = session.io_binding()
        self.spec = spec
        self.ones = np.ones((1, cache.capacity), np.int64)
        self._table = range(spec.context_length)  # positions in the RoPE tables, at first the graph's own
        self._inputs: dict[str, np.ndarray] = {}
        for layer, (keys, values) in enumerate(cache.rows):
            for kind, rows in (("key", keys[None]), ("value", values[None])):
                self.feed(f"past_key_values.{layer}.{kind}", rows)
                self.fetch(f"present.{layer}.{kind}", rows)

    def slide_tables(self, first: int, width: int) -> int:
        """See that the RoPE tables hold ``width`` positions from ``first`` on; returns the position of their row 0.

        An evicting policy may go beyond the model's context. Tables as long as the cache then move along with the
        text, so that their memory does not grow with it.
        """
        if first < self._table.start or first + width > self._table.stop:
            self._table = range(first, first + self.ones.shape[1])
            cosines, sines = cos_sin_tables(self.spec, len(self._table), first)
            self.feed("cos_cache", cosines)
            self.feed("sin_cache", sines)
        return self._table.start

    def feed(self, name: str, array: np.ndarray) -> None:
        """Bind an input to the memory of ``array``, which is kept alive until it is bound anew."""
        self._inputs[name] = array
        self.io.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def fetch(self, name: str, array: np.ndarray) -> None:
        """Bind an output to the memory of ``array``, which the caller keeps alive."""
        self.io.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
