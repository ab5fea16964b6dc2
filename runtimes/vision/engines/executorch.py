"""ExecuTorch: one program, ``executorch/model.pte``, with a method for each part."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgepipe.errors import EngineError
from edgepipe.runtimes.executorch_binding import load_binding, open_program, use_threads
from edgepipe.runtimes.vision.engine import check_input, first_line, unknown_part, unloadable
from edgepipe.runtimes.vision.engines.quiet import quiet

DTYPES = {0: np.uint8, 1: np.int8, 6: np.float32}  # by ExecuTorch's ScalarType


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
        self._torch, self._binding = load_binding()
        self.path = folder / "executorch" / "model.pte"
        self._program: Any = None
        self._parts: dict[str, _Part] = {}
        use_threads(self, self._binding, threads)

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

    def _load(self, part: str) -> _Part:
        if not self.path.is_file():
            raise unknown_part(part, self.path.parent, ())
        try:
            with quiet():
                if self._program is None:
                    self._program = open_program(self._binding, self.path)
                known = [self._program.get_method_name(index) for index in range(self._program.num_methods())]
                if part not in known:
                    raise unknown_part(part, self.path, known)
                method = self._program.load_method(part)
                entry = method.method_meta().input_tensor_meta(0)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise unloadable(self.path, error) from error
        return _Part(tuple(entry.sizes()), np.dtype(DTYPES[entry.dtype()]), method)
