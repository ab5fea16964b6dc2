"""Inference engines for decoders, by the name the user types."""

ENGINES = {"onnx": "edgepipe.runtimes.llm.engines.onnx:OnnxDecoder"}
