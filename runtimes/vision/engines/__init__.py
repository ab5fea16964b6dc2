"""Inference engines for vision models, by the name the user types."""

ENGINES = {
    "executorch": "edgepipe.runtimes.vision.engines.executorch:ExecuTorchEngine",
    "litert": "edgepipe.runtimes.vision.engines.litert:LiteRTEngine",
    "onnx": "edgepipe.runtimes.vision.engines.onnx:OnnxEngine",
}
