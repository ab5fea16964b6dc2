"""Other forms of the same weights for `peers.py`: made once, kept under build/."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import installed

# What a row needs: the package to import, and how to get it.
REQUIREMENTS = {
    "llama_cpp": "llama-cpp-python",
    "onnxruntime_genai": "onnxruntime-genai",
    "onnx_ir": "onnx-ir",
    "torch": "torch",
    "transformers": "transformers",
}


def missing(modules: tuple[str, ...]) -> str | None:
    """The pip command for those of ``modules`` that are not installed, None if all are."""
    packages = [REQUIREMENTS[module] for module in modules if find_spec(module) is None]
    return f"pip install {' '.join(packages)}" if packages else None


def requantised_gguf(gguf: Path, folder: Path) -> Path:
    """The GGUF with its 4-bit tensors turned into Q4_0 by llama.cpp itself; embeddings stay Q8_0.

    Q4_0 is the 4-bit format whose blocks llama.cpp interleaves for wide registers when it loads them: its fastest.
    """
    path = folder / f"{gguf.name.split('.')[0]}.Q4_0.gguf"
    if not path.exists():
        import llama_cpp

        silence(llama_cpp)
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
        parameters.allow_requantize = True
        parameters.output_tensor_type = parameters.token_embedding_type = llama_cpp.GGML_TYPE_Q8_0
        partial = path.with_suffix(".partial")
        if llama_cpp.llama_model_quantize(str(gguf).encode(), str(partial).encode(), parameters):
            raise SystemExit(f"llama.cpp could not requantise {gguf}")
        partial.rename(path)
    return path


def silence(llama_cpp: Any) -> None:
    """llama.cpp logs a line a tensor to the standard error: let it not."""
    global _log
    _log = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(_log, ctypes.c_void_p())


_log = None  # C holds no reference to the callback


def genai_folder(gguf: Path, folder: Path) -> Path:
    """The weights exported by onnxruntime-genai's own builder: int4, block 32, accuracy level 4, 8-bit head."""
    path = folder / f"genai-{installed('onnxruntime-genai')}"
    if not (path / "genai_config.json").exists():
        from safetensors.torch import save_model

        from edgepipe.exporters.sources import open_source

        source = folder / "hugging-face"
        source.mkdir(exist_ok=True)
        weights = open_source(str(gguf))
        save_model(weights.reference_model(), str(source / "model.safetensors"), metadata={"format": "pt"})
        weights.save_tokenizer(source)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", path]
        command += ["-p", "int4", "-e", "cpu", "-c", folder / "genai-cache", "--extra_options", "block_size=32"]
        command += ["accuracy_level=4", "algo_config=rtn", "matmul_mixed_precision=last_matmul:int8"]
        subprocess.run(list(map(str, command)), check=True, stdout=sys.stderr)
    return path
