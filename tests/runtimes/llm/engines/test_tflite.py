"""What the TFLite engine makes of files that LiteRT does not take, and what LiteRT writes to stderr meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from edgepipe.errors import BundleError, EngineError
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.llm.static_shape import StaticShape
from edgepipe.exporters.sources import open_source
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.runtimes.llm.spec import DecoderSpec

pytest.importorskip("ai_edge_litert")
from edgepipe.runtimes.llm.engines import litert_compiled
from edgepipe.runtimes.llm.engines.tflite import TFLiteDecoder
from edgepipe.runtimes.vision.engines import litert

pytestmark = pytest.mark.slow  # litert-torch takes seconds a piece
REFUSAL = r"^\S+model.tflite cannot be loaded \(.*\): if there is memory left for it, copy or export the bundle again$"

# Arguments: the decoder's file, its spec as JSON. Loads the file, and runs a token if it is one of ours.
LOADING = """
import json, sys
from pathlib import Path
from edgepipe.errors import EdgepipeError
from edgepipe.runtimes.llm.engines.tflite import TFLiteDecoder
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.spec import DecoderSpec
spec = DecoderSpec.from_json(json.loads(sys.argv[2]))
try:
    decoder = TFLiteDecoder(Path(sys.argv[1]), spec, threads=1)
    decoder.forward(KVCache(spec, 8, 1), [5])
    print("ran")
except EdgepipeError as error:
    print(error)
"""
# The same where a package has no compiled models, as tflite-runtime has none.
OLDER = "import sys; sys.modules['ai_edge_litert.compiled_model'] = None\n" + LOADING
# LiteRT refuses what an interpreter had not refused before: the engine's own check is left out.
UNCHECKED = """
import sys
from pathlib import Path
from edgepipe.runtimes.llm.engines.litert_compiled import CompiledSession
from edgepipe.runtimes.vision.engines.quiet import quiet
try:
    with quiet():
        CompiledSession(Path(sys.argv[1]), 1)
except RuntimeError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def weights(tiny_model: Callable[..., Path]) -> DecoderWeights:
    return open_source(str(tiny_model("llama")))


@pytest.fixture(scope="module")
def spec(weights: DecoderWeights) -> DecoderSpec:
    return weights.spec


@pytest.fixture(scope="module")
def model(weights: DecoderWeights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from edgepipe.exporters.llm.tflite import write_tflite

    folder = tmp_path_factory.mktemp("tflite")
    recipe = DecoderRecipe("tiny", precision="fp32")
    return folder / write_tflite(weights, recipe, StaticShape((1,), 8), folder).paths["plain"]


@pytest.fixture
def no_model(tmp_path: Path) -> Path:
    path = tmp_path / "model.tflite"
    path.write_bytes(b"not a model at all" * 9)
    return path


@pytest.mark.parametrize("seed", range(3))
def test_a_file_that_is_damaged_inside_is_named(model: Path, spec: DecoderSpec, tmp_path: Path, seed: int) -> None:
    """Its first 64 bytes are left, so that it passes for one until it is read."""
    data = model.read_bytes()
    copy = tmp_path / "model.tflite"
    copy.write_bytes(data[:64] + np.random.default_rng(seed).bytes(len(data) - 64))
    with pytest.raises(BundleError, match=REFUSAL):
        TFLiteDecoder(copy, spec)


@pytest.mark.parametrize(("precision", "expected"), [("fp32", None), ("int8", "takes for zeros"), ("int4", "zeros")])
def test_weights_that_tflite_runtime_takes_for_zeros_are_refused(
    weights: DecoderWeights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, expected: str | None
) -> None:
    """Its interpreter, 2.14, makes zeros of a layer that ai-edge-quantizer quantised by channel; not if by tensor."""
    from edgepipe.exporters.llm.tflite import write_tflite

    written = write_tflite(weights, DecoderRecipe("tiny", precision=precision), StaticShape((1,), 8), tmp_path)
    monkeypatch.setattr(litert.interpreters(), "__name__", "tflite_runtime.interpreter")
    with pytest.raises(EngineError, match=expected) if expected else nullcontext():
        TFLiteDecoder(tmp_path / written.paths["plain"], weights.spec)


def test_tensors_for_which_there_is_no_room_are_one_line(
    model: Path, spec: DecoderSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise MemoryError("std::bad_alloc")  # from_file does, on some damaged sizes

    monkeypatch.setattr(litert_compiled.CompiledModel, "from_file", refuse)
    with pytest.raises(BundleError, match=r"model.tflite cannot be loaded \(std::bad_alloc\): if there is memory"):
        TFLiteDecoder(model, spec)


def test_tensors_that_cannot_be_allocated_are_a_damage(
    model: Path, spec: DecoderSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("Failed to allocate tensors\nand more")  # once shapes are asked for

    monkeypatch.setattr(litert_compiled.CompiledModel, "get_output_tensor_details", refuse)
    with pytest.raises(BundleError, match=REFUSAL):
        TFLiteDecoder(model, spec)


def test_a_model_that_is_no_decoder_is_refused(spec: DecoderSpec, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no decoder that edgepipe wrote: export the bundle again"):
        TFLiteDecoder(add_one(tmp_path), spec)


@pytest.mark.parametrize("script", [LOADING, OLDER], ids=["compiled", "interpreter"])
def test_a_run_leaves_nothing_on_stderr(model: Path, spec: DecoderSpec, script: str) -> None:
    assert written(script, model, spec) == ("ran\n", "")


@pytest.mark.parametrize("script", [LOADING, OLDER, UNCHECKED], ids=["compiled", "interpreter", "unchecked"])
def test_a_refused_file_leaves_nothing_on_stderr(no_model: Path, spec: DecoderSpec, script: str) -> None:
    out, err = written(script, no_model, spec)
    assert "Failed to load model" in out if script == UNCHECKED else "copy or export the bundle again" in out
    assert err == ""


def test_a_model_that_is_no_decoder_leaves_nothing_on_stderr(spec: DecoderSpec, tmp_path: Path) -> None:
    out, err = written(LOADING, add_one(tmp_path), spec)
    assert "no decoder that edgepipe wrote" in out
    assert err == ""


def written(script: str, model: Path, spec: DecoderSpec) -> tuple[str, str]:
    """What a process writes to stdout and stderr until its end."""
    command = [sys.executable, "-c", script, str(model), json.dumps(spec.to_json())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def add_one(folder: Path) -> Path:
    """A whole TFLite file that adds one."""
    import litert_torch
    import torch

    class AddOne(torch.nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value + 1

    path = folder / "model.tflite"
    litert_torch.convert(AddOne(), (torch.zeros(2),)).export(str(path))
    return path
