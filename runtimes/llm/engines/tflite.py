"""LiteRT, or its predecessor tflite-runtime: one signature a width, weights packed once for all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgepipe.errors import EngineError
from edgepipe.runtimes.llm.engines.static_widths import Entry, Feeds, Results, StaticWidthsDecoder, cache_inputs
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.spec import DecoderSpec
from edgepipe.runtimes.vision.engine import first_line, unloadable
from edgepipe.runtimes.vision.engines.litert import interpreters
from edgepipe.runtimes.vision.engines.quiet import quiet


class Session(Protocol):
    """A file in one of LiteRT's runtimes; see `edgepipe.runtimes.llm.engines.litert_compiled.CompiledSession`."""

    @property
    def signatures(self) -> list[str]: ...

    def shapes(self, signature: str) -> dict[str, list[int]]: ...

    def run(self, signature: str, feeds: Mapping[str, np.ndarray], cache: KVCache) -> dict[str, np.ndarray]: ...


class TFLiteDecoder(StaticWidthsDecoder):
    """A decoder written by `edgepipe.exporters.llm.tflite`; caches may be of any capacity."""

    def __init__(self, model: Path, spec: DecoderSpec, *, threads: int | None = None, scored: bool = False) -> None:
        """Load ``model``.

        Args:
            model: path of ``model.tflite``.
            spec: shape of the decoder.
            threads: of XNNPACK, the machine's cores by default.
            scored: whether caches keep attention mass.

        Raises:
            MissingExtra: neither ai-edge-litert nor tflite-runtime is installed.
            EngineError: its graphs are of another shape, or tflite-runtime would take its weights for zeros.
            BundleError: the file is damaged.
        """
        try:
            with quiet():
                self._session = _open(model, threads or os.cpu_count() or 1)
                entries = Entry.all_of(self._session.signatures, scored)
                shapes = {entry: self._session.shapes(entry.name) for entry in entries}
        except (RuntimeError, ValueError, MemoryError) as error:
            raise unloadable(model, error) from error
        if not any(not entry.last_only for entry in entries):
            kind = "with attention mass " if scored else ""
            raise EngineError(f"{model} has no decoder {kind}that edgepipe wrote: export the bundle again")
        super().__init__(spec, entries, scored)
        for entry in entries:
            self._check(model, entry, shapes[entry])

    def _check(self, model: Path, entry: Entry, shapes: dict[str, list[int]]) -> None:
        """A graph must have ``spec``'s shape."""
        spec = self.spec
        keys = shapes.get(f"keys_{spec.num_layers - 1}", [0, 0, 0])
        found = (len([name for name in shapes if name.startswith("keys_")]), keys[0], keys[2], shapes["logits"][-1])
        expected = (spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.num_logits)
        if found != expected:
            raise EngineError(
                f"{model}: {entry.name} does not have {expected[0]} layers of {expected[1]} KV heads of {expected[2]} "
                f"and {expected[3]} logits: the bundle's files do not belong together, export it again"
            )

    def run(self, entry: Entry, feeds: Feeds, cache: KVCache) -> Results:
        """See `StaticWidthsDecoder.run`."""
        given = {name: values for name, values in feeds._asdict().items() if values is not None}
        try:
            results = self._session.run(entry.name, given, cache)
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"LiteRT failed: {first_line(error)}") from error
        return Results(results["logits"], results["rows"], results.get("mass"))


class InterpreterSession:
    """A file in an `Interpreter`, which any package has: the cache is copied for each run, and weights are packed for
    every signature that runs.
    """

    def __init__(self, interpreter: Any) -> None:
        self._interpreter = interpreter
        self._runners: dict[str, Any] = {}
        self._has_run = False

    @property
    def signatures(self) -> list[str]:
        """The names of the file's signatures."""
        return list(self._interpreter.get_signature_list())

    def shapes(self, signature: str) -> dict[str, list[int]]:
        """Shapes of a signature's inputs and outputs."""
        runner = self._runner(signature)
        details = runner.get_input_details() | runner.get_output_details()
        return {name: detail["shape"].tolist() for name, detail in details.items()}

    def run(self, signature: str, feeds: Mapping[str, np.ndarray], cache: KVCache) -> dict[str, np.ndarray]:
        """Run a signature over a cache."""
        with nullcontext() if self._has_run else quiet():  # it tells once that it takes XNNPACK
            found: dict[str, np.ndarray] = self._runner(signature)(**feeds, **cache_inputs(cache))
        self._has_run = True
        return found

    def _runner(self, signature: str) -> Any:
        if signature not in self._runners:
            self._runners[signature] = self._interpreter.get_signature_runner(signature)
        return self._runners[signature]


def _open(model: Path, threads: int) -> Session:
    # It checks the structure of the file, weights aside: on damaged offsets a compiled model ends the process.
    litert = interpreters()
    interpreter = litert.Interpreter(str(model), num_threads=threads)
    if litert.__name__.startswith("tflite_runtime"):
        _refuse_scales_of_rows(model, interpreter)
    try:
        from edgepipe.runtimes.llm.engines.litert_compiled import CompiledSession

        return CompiledSession(model, threads)
    except (ImportError, OSError, AttributeError):  # an older package
        return InterpreterSession(interpreter)


def _refuse_scales_of_rows(model: Path, interpreter: Any) -> None:
    """The last tflite-runtime, 2.14, takes int8 weights with a scale for each row for zeros, and says nothing."""
    for tensor in interpreter.get_tensor_details():
        if tensor["dtype"] is np.int8 and len(tensor["quantization_parameters"]["scales"]) > 1:
            raise EngineError(
                f"{model} has int8 weights, which tflite-runtime takes for zeros: pip install ai-edge-litert, "
                "or export with --precision fp32"
            )
