"""Inference engines for decoders, by the name the user types and the format they run; the first choice first."""

from __future__ import annotations

from importlib.util import find_spec

ENGINES = {
    "onnx": "edgepipe.runtimes.llm.engines.onnx:OnnxDecoder",
    "tflite": "edgepipe.runtimes.llm.engines.tflite:TFLiteDecoder",
    "executorch": "edgepipe.runtimes.llm.engines.executorch:ExecuTorchDecoder",
}

# What runs TFLite files is called LiteRT, by others and of images: either name will do, of the engine and the format.
ALIASES = {"litert": "tflite"}

# What runs it: one of these.
_MODULES = {"onnx": ("onnxruntime",), "tflite": ("ai_edge_litert", "tflite_runtime"), "executorch": ("executorch",)}


def is_installed(engine: str) -> bool:
    """Whether a package that runs ``engine`` is there; loading it may still fail."""
    return any(find_spec(module) is not None for module in _MODULES[engine])
