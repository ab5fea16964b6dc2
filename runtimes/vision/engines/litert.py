"""LiteRT, or its predecessor tflite-runtime: ``tflite/model.tflite`` and its split and streamed forms."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgepipe.errors import EngineError, MissingExtra
from edgepipe.runtimes.vision.engine import SPLIT, WHOLE, check_input, first_line, unknown_part, unloadable
from edgepipe.runtimes.vision.engines.litert_memory import arena_bytes
from edgepipe.runtimes.vision.engines.quiet import quiet


class _Part(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype
    run: Callable[[np.ndarray], np.ndarray]
    arena_bytes: Callable[[], int]


FILES = {WHOLE: "model.tflite", SPLIT: "model.split.tflite"}
STREAMED = "model.streamed.tflite"


class LiteRTEngine:
    """The parts of a model written by `edgepipe.exporters.vision.write_tflite`; see `Engine` for the contract.

    By default the reference kernels run. Their bytes are those of TensorFlow Lite Micro, but in fully connected layers
    they may round a value to the neighbouring code. With ``exact=False`` the fast ones run (XNNPACK and ruy),
    which do so in many operators.
    """

    def __init__(self, folder: Path, *, threads: int | None = None, exact: bool = True) -> None:
        """``folder`` is the bundle's ``vision``; ``threads`` are the machine's cores by default.

        Raises:
            MissingExtra: neither ai-edge-litert nor tflite-runtime is installed.
        """
        self._litert = interpreters()
        self.folder = folder / "tflite"
        self.threads = threads or os.cpu_count() or 1
        self.exact = exact
        self._parts: dict[str, _Part] = {}
        self._streamed: Any = None

    def run(self, part: str, image: np.ndarray) -> np.ndarray:
        """Run ``part`` on ``image``; see `edgepipe.runtimes.vision.engine.Engine.run`."""
        loaded = self._part(part)
        check_input(part, image, loaded.shape, loaded.dtype)
        try:
            return loaded.run(image)
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"LiteRT failed on {part}: {first_line(error)}") from error

    def activation_bytes(self, part: str) -> int:
        """Bytes of the arena of a part that has run; see `edgepipe.runtimes.vision.engine.Engine.activation_bytes`."""
        if not self.exact:
            raise EngineError("XNNPACK, in LiteRT, does not tell its memory: it is known of the reference kernels")
        return self._part(part).arena_bytes()

    def _part(self, part: str) -> _Part:
        if part not in self._parts:
            with quiet():
                self._parts[part] = self._load(part)
        return self._parts[part]

    def _load(self, part: str) -> _Part:
        if part in FILES and (self.folder / FILES[part]).is_file():
            return self._main_graph(self.folder / FILES[part])
        if self._streamed is None and (self.folder / STREAMED).is_file():
            self._streamed = self._open(self.folder / STREAMED)
        signatures = self._streamed.get_signature_list() if self._streamed is not None else {}
        if part not in signatures:
            known = [name for name, file in FILES.items() if (self.folder / file).is_file()]
            raise unknown_part(part, self.folder, [*known, *signatures])
        return self._signature(part)

    def _main_graph(self, path: Path) -> _Part:
        """The first graph of a file, which need not have a signature."""
        interpreter = self._open(path)
        (entry,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()

        def run(image: np.ndarray) -> np.ndarray:
            interpreter.set_tensor(entry["index"], image)
            interpreter.invoke()
            return interpreter.get_tensor(result["index"])

        shape, dtype = tuple(entry["shape"].tolist()), np.dtype(entry["dtype"])
        return _Part(shape, dtype, run, lambda: arena_bytes(interpreter, 0, path))

    def _signature(self, part: str) -> _Part:
        """One of the streamed file's graphs."""
        runner = self._streamed.get_signature_runner(part)
        ((name, entry),) = runner.get_input_details().items()
        (output,) = runner.get_output_details()
        return _Part(
            shape=tuple(entry["shape"].tolist()),
            dtype=np.dtype(entry["dtype"]),
            run=lambda image: runner(**{name: image})[output],
            arena_bytes=lambda: arena_bytes(self._streamed, runner._subgraph_index, self.folder / STREAMED),
        )

    def _open(self, path: Path) -> Any:
        kinds = self._litert.OpResolverType
        try:
            interpreter = self._litert.Interpreter(
                str(path),
                num_threads=self.threads,
                experimental_op_resolver_type=kinds.BUILTIN_REF if self.exact else kinds.AUTO,
            )
            interpreter.allocate_tensors()
        except (RuntimeError, ValueError, MemoryError) as error:
            raise unloadable(path, error) from error
        return interpreter


def interpreters() -> Any:
    """The module with ``Interpreter``, the same in both packages."""
    try:
        from ai_edge_litert import interpreter
    except ImportError:
        try:
            from tflite_runtime import interpreter
        except ImportError as error:
            raise MissingExtra("ai-edge-litert", "litert") from error
    return interpreter
