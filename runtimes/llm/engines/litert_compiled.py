"""LiteRT's compiled models, run over memory of ours: caches of many megabytes are not copied for each run.

The Python binding makes buffers of one dimension only. LiteRT's C interface, which it stands on, makes them of any
shape: the type of a buffer is read from one that LiteRT has made, and handed back as it is.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Mapping
from functools import cache as once
from pathlib import Path
from typing import Any, NamedTuple

import ai_edge_litert
import numpy as np
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.environment import Environment
from ai_edge_litert.options import CpuOptions, Options
from ai_edge_litert.tensor_buffer import TensorBuffer

from edgepipe.runtimes.llm.engines.static_widths import cache_inputs
from edgepipe.runtimes.llm.kv_cache import ALIGNMENT, KVCache
from edgepipe.runtimes.vision.engines.quiet import quiet

_STDERR = 2
# More than the C structure of a tensor's type takes.
_TYPE_BYTES = 512
# XNNPACK packs weights for its kernels. So named, one packed copy in memory serves all signatures.
_WEIGHT_CACHE = ":memory" if sys.platform in ("linux", "android") else ""


class _Binding(NamedTuple):
    """One cache bound to one signature: arrays that are read and written in place, and the buffers over them."""

    feeds: dict[str, np.ndarray]
    results: dict[str, np.ndarray]
    inputs: list[TensorBuffer]
    outputs: list[TensorBuffer]


class CompiledSession:
    """A file in a `CompiledModel`; ``signatures`` are the names of its inputs and outputs, and their shapes."""

    def __init__(self, path: Path, threads: int) -> None:
        """Load ``path``.

        Raises:
            RuntimeError: LiteRT refuses it.
            OSError, AttributeError: this LiteRT has not the C interface that is needed here.
        """
        self._buffers = _SharedBuffers()
        cpu = CpuOptions(num_threads=threads, xnnpack_weight_cache_path=_WEIGHT_CACHE)
        environment = Environment.create()
        try:
            self._model = CompiledModel.from_file(str(path), environment=environment, options=Options(cpu_options=cpu))
        except Exception:  # else it lives on in the traceback, and its end is not quiet
            environment.close()
            raise
        weakref.finalize(self, _close, self._model)
        self._names = self._model.get_signature_list()
        self._capacities: dict[str, int] = {}  # what each signature has last run with
        self._bindings: weakref.WeakKeyDictionary[KVCache, dict[str, _Binding]] = weakref.WeakKeyDictionary()

    @property
    def signatures(self) -> list[str]:
        """The names of the file's signatures."""
        return list(self._names)

    def shapes(self, signature: str) -> dict[str, list[int]]:
        """Shapes of a signature's inputs and outputs."""
        inputs = self._model.get_input_tensor_details(signature)
        outputs = self._model.get_output_tensor_details(signature)
        return {name: list(details["shape"]) for name, details in (inputs | outputs).items()}

    def run(self, signature: str, feeds: Mapping[str, np.ndarray], cache: KVCache) -> dict[str, np.ndarray]:
        """Run a signature over a cache; the outputs are overwritten by the next run with that cache.

        Raises:
            RuntimeError: LiteRT fails.
        """
        bindings = self._bindings.setdefault(cache, {})
        if self._capacities.get(signature) == cache.capacity and signature in bindings:
            return self._run(signature, feeds, bindings[signature])
        with quiet():  # LiteRT tells of each tensor that changes its size
            if signature not in bindings:
                bindings[signature] = self._bind(signature, feeds, cache)
            self._capacities[signature] = cache.capacity
            return self._run(signature, feeds, bindings[signature])

    def _run(self, signature: str, feeds: Mapping[str, np.ndarray], binding: _Binding) -> dict[str, np.ndarray]:
        for name, values in feeds.items():
            binding.feeds[name][...] = values
        self._model.run_by_index(self._model.get_signature_index(signature), binding.inputs, binding.outputs)
        _silence_exit()
        return binding.results

    def _bind(self, signature: str, feeds: Mapping[str, np.ndarray], cache: KVCache) -> _Binding:
        names, index = self._names[signature], self._model.get_signature_index(signature)
        rows = cache_inputs(cache)
        arrays = {name: _aligned(values.shape, values.dtype) for name, values in feeds.items()}
        for position, name in enumerate(names["inputs"]):
            if name in rows or name == "mask":
                self._model.resize_input_tensor(position, (rows | arrays)[name].shape, index)
        inputs = [
            self._buffers.over((rows | arrays)[name], self._model.create_input_buffer_by_name(signature, name))
            for name in names["inputs"]
        ]
        results = {}
        for name in names["outputs"]:
            shape = self.shapes(signature)[name]
            if name == "mass":  # as wide as the mask
                shape[-1] = feeds["mask"].shape[-1]
            results[name] = _aligned(tuple(shape), np.dtype(np.float32))
        outputs = [
            self._buffers.over(results[name], self._model.create_output_buffer_by_name(signature, name))
            for name in names["outputs"]
        ]
        return _Binding(arrays, results, inputs, outputs)


@once
def _silence_exit() -> None:
    """LiteRT's first run makes an object that writes notes to stderr as the process ends: Python is gone by then, and
    what was registered last runs first.
    """
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(libc.close, ctypes.c_void_p(_STDERR), None)


def _close(model: CompiledModel) -> None:
    """Let a model go, without the notes that LiteRT writes then, in the end even on exit."""
    with quiet():
        model.close()
        model.environment.close()


class _SharedBuffers:
    """Makes tensor buffers over arrays."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(Path(ai_edge_litert.__file__).with_name("libLiteRt.so")))
        self._read_type = self._library.LiteRtGetTensorBufferTensorType
        self._create = self._library.LiteRtCreateTensorBufferFromHostMemory
        self._destroy = self._library.LiteRtDestroyTensorBuffer
        self._name_of = ctypes.pythonapi.PyCapsule_GetName
        self._pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        self._capsule = ctypes.pythonapi.PyCapsule_New
        self._name_of.argtypes, self._name_of.restype = [ctypes.py_object], ctypes.c_void_p
        self._pointer_of.argtypes, self._pointer_of.restype = [ctypes.py_object, ctypes.c_void_p], ctypes.c_void_p
        self._capsule.argtypes, self._capsule.restype = [ctypes.c_void_p] * 3, ctypes.py_object

    def over(self, array: np.ndarray, like: Any) -> TensorBuffer:
        """A buffer of the type of ``like`` over ``array``, which the caller keeps alive.

        Raises:
            RuntimeError: LiteRT does not take the memory.
        """
        name = self._name_of(like.capsule)
        kind, buffer = ctypes.create_string_buffer(_TYPE_BYTES), ctypes.c_void_p()
        status = self._read_type(ctypes.c_void_p(self._pointer_of(like.capsule, name)), kind)
        like.destroy()
        status = status or self._create(
            kind,
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(array.nbytes),
            None,
            ctypes.byref(buffer),
        )
        if status:
            raise RuntimeError(f"LiteRT does not take a buffer of shape {array.shape} (status {status})")
        shared = TensorBuffer(self._capsule(buffer, name, None))
        weakref.finalize(shared, self._destroy, buffer)
        return shared


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros in memory that LiteRT takes."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
