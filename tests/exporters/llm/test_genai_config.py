"""onnxruntime-genai loads the exported folder as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import EdgepipeError
from edgepipe.exporters.llm.genai_config import genai_config
from edgepipe.exporters.llm.onnx import write_onnx
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.sources import open_source


def test_the_config_describes_the_graph(architecture: str, export_tiny: Any) -> None:
    export = export_tiny(architecture, precision="fp32")
    spec = export.weights.spec
    config = json.loads((export.folder / "genai_config.json").read_text())
    assert config == genai_config(spec, "onnx/model.onnx")
    decoder = config["model"]["decoder"]
    assert (export.folder / decoder["filename"]).is_file()
    assert decoder["head_size"] * decoder["num_attention_heads"] == spec.num_heads * spec.head_dim
    assert config["model"]["eos_token_id"] == list(spec.eos_token_ids)


def genai_greedy(folder: Path, prompt: list[int], count: int) -> list[int]:
    """The greedy continuation by onnxruntime-genai; an end token is not part of it."""
    genai = pytest.importorskip("onnxruntime_genai")
    model = genai.Model(str(folder))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=len(prompt) + count, do_sample=False)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(np.array(prompt, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)][len(prompt) :]


def our_greedy(onnx_session: Any, folder: Path, prompt: list[int], count: int) -> list[int]:
    session = onnx_session(folder / "onnx" / "model.onnx", len(prompt) + count)
    logits = session.forward(prompt)["logits"][0, -1]
    tokens: list[int] = []
    while len(tokens) < count and (token := int(logits.argmax())) not in session.spec.eos_token_ids:
        tokens.append(token)
        logits = session.forward([token])["logits"][0, -1]
    return tokens


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_genai_continues_a_prompt_as_we_do(
    architecture: str, precision: str, export_tiny: Any, onnx_session: Any
) -> None:
    export = export_tiny(architecture, precision=precision)
    prompt = export.ids(20).tolist()
    expected = our_greedy(onnx_session, export.folder, prompt, 30)
    assert genai_greedy(export.folder, prompt, 30)[: len(expected)] == expected
    assert len(expected) > 3


def test_genai_loads_a_model_without_special_tokens(export_tiny: Any, onnx_session: Any) -> None:
    export = export_tiny("qwen2", model={"bos_token_id": None, "eos_token_id": None}, precision="fp32")
    assert export.weights.spec.eos_token_ids == ()
    prompt = export.ids(5).tolist()
    assert genai_greedy(export.folder, prompt, 10) == our_greedy(onnx_session, export.folder, prompt, 10)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["auto", "int8"])
def test_genai_answers_with_smollm2_as_we_do(precision: str, tmp_path: Path, onnx_session: Any) -> None:
    pytest.importorskip("onnxruntime_genai")
    from tokenizers import Tokenizer

    try:
        weights = open_source("smollm2-135m")
    except EdgepipeError as error:
        pytest.skip(f"no SmolLM2-135M: {error}")
    write_onnx(weights, DecoderRecipe("smollm2-135m", precision=precision), tmp_path)
    weights.save_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    prompt = tokenizer.encode(question).ids
    expected = our_greedy(onnx_session, tmp_path, prompt, 40)
    assert "Paris" in tokenizer.decode(expected)
    assert genai_greedy(tmp_path, prompt, 40)[: len(expected)] == expected
