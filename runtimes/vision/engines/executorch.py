"""ExecuTorch: one program, ``executorch/model.pte``, with a method for each part."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from edgepipe.errors import EngineError, MissingExtra
from edgepipe.runtimes.vision.engine import check_input, damaged, first_line, unknown_part
from edgepipe.runtimes.vision.engines.quiet import quiet

DTYPES = {0: np.uint8, 1: np.int8, 6: np.float32}  # by ExecuTorch's ScalarType

# ExecuTorch has one pool of threads, and ends the process if that changes under a loaded method.
_pool_users: WeakSet[ExecuTorchEngine] = WeakSet()


class _Part(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype
    method: Any


class ExecuTorchEngine:
    """The parts of a model written by `edgepipe.exporters.vision.write_executorch`; see `Engine` for the contract.

    XNNPACK's int8 kernels run, which round some values to the code beside that of TensorFlow Lite Micro.
    """

    def __init__(self, folder: Path, *, threads: int | None = None) -> None:
        """``folder`` is the bundle's ``vision``; by default ExecuTorch chooses ``threads``: the fast cores.

        Raises:
            MissingExtra: executorch is not installed.
            EngineError: another engine in this process has another number of threads.
        """
        self._torch, self._binding = _binding()
        self.path = folder / "executorch" / "model.pte"
        self._program: Any = None
        self._parts: dict[str, _Part] = {}
        self._set_threads(threads)

    def run(self, part: str, image: np.ndarray) -> np.ndarray:
        """Run ``part`` on ``image``; see `edgepipe.runtimes.vision.engine.Engine.run`."""
        if part not in self._parts:
            self._parts[part] = self._load(part)
        loaded = self._parts[part]
        check_input(part, image, loaded.shape, loaded.dtype)
        try:
            (output,) = loaded.method([self._torch.tensor(image)])
        except RuntimeError as error:
            raise EngineError(f"ExecuTorch failed on {part}: {first_line(error)}") from error
        return output.numpy()

    def activation_bytes(self, part: str) -> int:
        """Unknown; see `edgepipe.runtimes.vision.engine.Engine.activation_bytes`."""
        raise EngineError("XNNPACK, in ExecuTorch, does not tell its memory")

    def _set_threads(self, threads: int | None) -> None:
        with quiet():
            found = self._binding._threadpool_get_thread_count()
            if threads is not None and threads != found:
                if _pool_users:
                    raise EngineError(
                        f"{threads} threads for ExecuTorch, which runs with {found} in this process: ask for {found}"
                    )
                self._binding._unsafe_reset_threadpool(threads)
        _pool_users.add(self)

    def _load(self, part: str) -> _Part:
        if not self.path.is_file():
            raise unknown_part(part, self.path.parent, ())
        try:
            with quiet():
                if self._program is None:
                    self._program = self._open()
                known = [self._program.get_method_name(index) for index in range(self._program.num_methods())]
                if part not in known:
                    raise unknown_part(part, self.path, known)
                method = self._program.load_method(part)
                entry = method.method_meta().input_tensor_meta(0)
        except (RuntimeError, ValueError) as error:
            raise damaged(self.path, error) from error
        return _Part(tuple(entry.sizes()), np.dtype(DTYPES[entry.dtype()]), method)

    def _open(self) -> Any:
        with self.path.open("rb") as file:
            if file.read(6)[4:] != b"ET":  # ExecuTorch ends the process on other files
                raise damaged(self.path, "it is no ExecuTorch program")
        return self._binding._load_program(str(self.path))


def _binding() -> tuple[Any, Any]:
    """torch, whose tensors go in and out, and ExecuTorch's binding.

    ``executorch.runtime``, around the binding, would load the exporter too: three more seconds and 130 MB.
    """
    try:
        import torch  # noqa: TID251
        from executorch.extension.pybindings import _portable_lib
    except ImportError as error:
        raise MissingExtra("executorch", "executorch") from error
    return torch, _portable_lib
