"""onnxruntime: one file a part, ``onnx/<part>.onnx``."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from edgepipe.errors import EngineError
from edgepipe.runtimes.vision.engine import check_input, first_line, unknown_part, unloadable

try:
    import onnxruntime as ort
except ImportError as error:
    raise EngineError(
        f"onnxruntime cannot be loaded ({error}): pip install onnxruntime, on Termux pkg install python-onnxruntime"
    ) from error

DTYPES = {"tensor(int8)": np.int8, "tensor(uint8)": np.uint8, "tensor(float)": np.float32}


class OnnxEngine:
    """The parts of a model written by `edgepipe.exporters.vision.write_onnx`; see `Engine` for the contract."""

    def __init__(self, folder: Path, *, threads: int | None = None) -> None:
        """``folder`` is the bundle's ``vision``; ``threads`` are intra-op threads, the machine's cores by default.

        Raises:
            EngineError: onnxruntime is not installed.
        """
        self.folder = folder / "onnx"
        self.threads = threads or os.cpu_count() or 1
        self._files = {path.stem: path for path in self.folder.glob("*.onnx")}
        self._sessions: dict[str, ort.InferenceSession] = {}

    def run(self, part: str, image: np.ndarray) -> np.ndarray:
        """Run ``part`` on ``image``; see `edgepipe.runtimes.vision.engine.Engine.run`."""
        session = self._session(part)
        entry = session.get_inputs()[0]
        check_input(part, image, entry.shape, np.dtype(DTYPES[entry.type]))
        try:
            return session.run(None, {entry.name: image})[0]
        except Exception as error:  # onnxruntime's exceptions share no public base class
            raise EngineError(f"onnxruntime failed on {part}: {first_line(error)}") from error

    def activation_bytes(self, part: str) -> int:
        """See `edgepipe.runtimes.vision.engine.Engine.activation_bytes`."""
        raise EngineError("onnxruntime does not tell the memory of its activations apart")

    def _session(self, part: str) -> ort.InferenceSession:
        if part in self._sessions:
            return self._sessions[part]
        if part not in self._files:
            raise unknown_part(part, self.folder, self._files)
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 4  # errors are raised, and told in one line
        # x86 without VNNI would saturate sums of int8 products at 16 bits; elsewhere this changes nothing.
        options.add_session_config_entry("session.x64quantprecision", "1")
        try:
            session = ort.InferenceSession(str(self._files[part]), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise unloadable(self._files[part], error) from error
        self._sessions[part] = session
        return session
