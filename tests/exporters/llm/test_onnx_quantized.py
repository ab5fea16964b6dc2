"""Quantised graphs: what they compute is the source with dequantised weights, up to int8 activations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgepipe.exporters.llm.onnx import write_onnx
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.runtimes.llm.spec import DecoderSpec

both_heads = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


def dequantized_state(folder: Path, spec: DecoderSpec) -> dict[str, np.ndarray]:
    """All weights under their Hugging Face names, read from the graph by the definition of its operators."""
    model = onnx.load(folder / "onnx" / "model.onnx")
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    state: dict[str, np.ndarray] = {}
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            fields = {attribute.name: attribute.i for attribute in node.attribute}
            matrix = _dequantized(values, node.input[1], fields["bits"])[:, : fields["K"]]
            assert matrix.shape == (fields["N"], fields["K"])
            assert fields["accuracy_level"] == 4
            if node.input[0].endswith(".hidden_and_sums"):  # a block's sum times w adds w to each of its weights
                columns = fields["K"] // (fields["block_size"] + 1) * fields["block_size"]
                matrix = matrix[:, :columns] + matrix[:, columns:].repeat(fields["block_size"], axis=1)
            state |= _parts(node.output[0], matrix, spec)
        elif node.op_type == "GatherBlockQuantized":
            fields = {attribute.name: attribute.i for attribute in node.attribute}
            state[f"{node.output[0]}.weight"] = _dequantized(values, node.input[0], fields["bits"])
    if spec.tied_embeddings:
        np.testing.assert_array_equal(state.pop("lm_head.weight"), state["model.embed_tokens.weight"])
    state |= {name: value for name, value in values.items() if name.endswith("norm.weight")}
    for name, value in values.items():
        if name.endswith("qkv_proj.bias"):
            state |= {f"{part[:-7]}.bias": rows for part, rows in _parts(name[:-5], value, spec).items()}
    return state


def _dequantized(values: dict[str, np.ndarray], weight: str, bits: int) -> np.ndarray:
    name = weight.removesuffix(".weight")
    scales, packed = values[f"{name}.scales"], values[weight].reshape(len(values[weight]), -1)
    rows, blocks = scales.shape
    codes = _codes(packed, bits).reshape(rows, blocks, -1).astype(np.float32)
    if f"{name}.zero_points" in values:
        zeros = _codes(values[f"{name}.zero_points"], bits)[:, :blocks, None].astype(np.float32)
    else:
        zeros = np.float32(2 ** (bits - 1))
    matrix = (codes - zeros) * scales[:, :, None]
    return matrix.reshape(rows, -1)


def _codes(packed: np.ndarray, bits: int) -> np.ndarray:
    if bits == 8:
        return packed
    return np.stack([packed % 16, packed // 16], axis=-1).reshape(len(packed), -1)


def _parts(output: str, matrix: np.ndarray, spec: DecoderSpec) -> dict[str, np.ndarray]:
    """Rows of a fused matrix under the names of its parts."""
    heads, kv_heads = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    if output.endswith("qkv_proj"):
        names, sizes = ("q_proj", "k_proj", "v_proj"), (heads, kv_heads, kv_heads)
    elif output.endswith("gate_up_proj"):
        names, sizes = ("gate_proj", "up_proj"), (spec.intermediate_size,) * 2
    else:
        return {f"{output.replace('logits', 'lm_head')}.weight": matrix}
    pieces = np.split(matrix, np.cumsum(sizes)[:-1])
    return {f"{output.rsplit('.', 1)[0]}.{name}.weight": piece for name, piece in zip(names, pieces, strict=True)}


def reference(export_weights: Any, state: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """Logits of transformers with these weights."""
    import torch

    model = export_weights.reference_model()
    tensors = {name: torch.tensor(value) for name, value in state.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert missing == (["lm_head.weight"] if model.config.tie_word_embeddings else [])
    assert not unexpected
    with torch.inference_mode():
        logits: np.ndarray = model(torch.tensor(ids[None])).logits[0].numpy()
    return logits


@pytest.fixture(scope="module")
def exact_activations(onnx_session: Any) -> Any:
    """``exact_activations(folder, scored=False)``: the graph with float activations; only the weights are quantised."""

    def load(folder: Path, scored: bool = False) -> Any:
        name = "model.scored.onnx" if scored else "model.onnx"
        model = onnx.load(folder / "onnx" / name, load_external_data=False)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = 1
        path = folder / "onnx" / f"float.{name}"
        onnx.save(model, path)
        session = onnx_session(path, 160, threads=1)
        path.unlink()
        return session

    return load


@both_heads
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("block_size", [32, 64, 128])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_the_graph_computes_with_the_weights_it_stores(
    precision: str, block_size: int, symmetric: bool, tied: bool, export_tiny: Any, exact_activations: Any
) -> None:
    recipe = {"precision": precision, "block_size": block_size, "symmetric": symmetric}
    export = export_tiny("llama", tied, **recipe)
    ids = export.ids(50)
    expected = reference(export.weights, dequantized_state(export.folder, export.weights.spec), ids)
    np.testing.assert_allclose(exact_activations(export.folder).logits(ids, 13), expected, atol=2e-3)
    for scored in (False, True):
        found = export.session(scored).logits(ids, 13)
        assert np.sqrt(np.mean((found - expected) ** 2)) < 0.1 * expected.std()


@pytest.mark.parametrize("head", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("body", ["auto", "int8", "int4"])
def test_every_architecture_and_mixed_precisions(
    architecture: str, body: str, head: str, export_tiny: Any, exact_activations: Any
) -> None:
    export = export_tiny(architecture, precision=body, head_precision=head)
    body = "int4" if body == "auto" else body
    assert export.report.precision == {"embeddings": head, "attention": body, "mlp": body, "head": head}
    if head == "fp32":
        return
    ids = export.ids(30)
    expected = reference(export.weights, dequantized_state(export.folder, export.weights.spec), ids)
    for scored in (False, True):
        found = exact_activations(export.folder, scored).logits(ids, 11)
        np.testing.assert_allclose(found, expected, atol=2e-3)


def test_auto_keeps_an_int8_head_over_an_int4_body(export_tiny: Any) -> None:
    export = export_tiny("llama", tied=False)
    assert export.report.precision == {"embeddings": "int8", "attention": "int4", "mlp": "int4", "head": "int8"}


def test_fewer_bits_lie_further_from_the_source(export_tiny: Any) -> None:
    ids = export_tiny("llama", precision="fp32").ids(60)
    expected = export_tiny("llama", precision="fp32").reference(ids)
    errors = {}
    for precision in ("int8", "int4"):
        found = export_tiny("llama", precision=precision).session().logits(ids, 60)
        errors[precision] = np.sqrt(np.mean((found - expected) ** 2)) / expected.std()
    assert errors["int8"] < 0.05 < errors["int4"] < 0.6


MIXES = {
    "Q8_0 embeddings over Q4_1": {"embed_tokens": "Q8_0", "proj": "Q4_1"},
    "one Q8_0 part in a fused Q4_0": {"v_proj": "Q8_0", "up_proj": "Q8_0", "proj": "Q4_0", "embed_tokens": "Q8_0"},
    "one Q4_1 part in a fused Q4_0": {"k_proj": "Q4_1", "gate_proj": "Q6_K", "proj": "Q4_0", "embed_tokens": "Q4_0"},
    "Q8_0, Q4_0 and another in one": {"q_proj": "Q8_0", "k_proj": "Q4_0", "v_proj": "Q6_K", "proj": "Q4_0"},
    "all Q8_0": {"": "Q8_0"},
    "all Q4_1": {"": "Q4_1"},
    "Q8_0 and Q4_1 in one": {"q_proj": "Q8_0", "up_proj": "Q8_0", "": "Q4_1"},
}


@both_heads
@pytest.mark.parametrize("mix", MIXES)
def test_gguf_blocks_are_carried_over_bit_for_bit_but_for_rounded_minima(
    mix: str, tied: bool, export_tiny: Any, exact_activations: Any, blocked_weights: Any, tmp_path: Path
) -> None:
    weights = blocked_weights(export_tiny("qwen2", tied, precision="fp32").weights, MIXES[mix])
    report = write_onnx(weights, DecoderRecipe("tiny", block_size=64), tmp_path)
    state = dequantized_state(tmp_path, weights.spec)

    carried = 0
    for name, value in state.items():
        blocks = weights.quantized(name) if value.ndim == 2 else None
        if blocks is not None and not (name == "model.embed_tokens.weight" and blocks.offsets is not None):
            if blocks.offsets is None:
                np.testing.assert_array_equal(value, blocks.dequantize())
            else:  # what is left of an offset after whole steps is itself quantised
                steps = np.abs(blocks.scales).repeat(blocks.block_size, axis=1)
                assert (np.abs(value - blocks.dequantize()) / steps).max() < 0.25
                assert (np.abs(value - blocks.dequantize()) / steps).mean() < 0.05
            carried += 1
        elif value.ndim == 2:  # quantised, at 4 bits or better
            source = weights.tensor(name)
            assert 0 < np.abs(value - source).max() < 0.15 * np.abs(source).max()
    assert carried == report.carried > 0

    ids = np.arange(40) * 7 % weights.spec.vocab_size
    expected = reference(weights, state, ids)
    np.testing.assert_allclose(exact_activations(tmp_path).logits(ids, 13), expected, atol=2e-3)


def test_the_report_counts_what_was_carried_and_what_was_requantised(
    export_tiny: Any, blocked_weights: Any, tmp_path: Path
) -> None:
    weights = blocked_weights(export_tiny("llama", precision="fp32").weights, MIXES["one Q4_1 part in a fused Q4_0"])
    report = write_onnx(weights, DecoderRecipe("tiny"), tmp_path)
    assert report.notes == (
        "11 Q4_0 tensors carried over exactly",
        "2 Q4_1 tensors carried over but for rounded minima",
        "2 Q6_K tensors requantised",
    )
    # Six bits a weight do not fit four, and the other half of the fused matrix is widened along.
    assert report.precision == {"embeddings": "int4", "attention": "int4", "mlp": "int4+int8", "head": "int4"}


def test_a_recipe_that_names_a_precision_keeps_blocks_of_just_that_format(
    export_tiny: Any, blocked_weights: Any, tmp_path: Path
) -> None:
    weights = blocked_weights(export_tiny("llama", precision="fp32").weights, MIXES["all Q8_0"])
    assert write_onnx(weights, DecoderRecipe("tiny", precision="int8"), tmp_path).carried == 15
    assert write_onnx(weights, DecoderRecipe("tiny", precision="int8", block_size=64), tmp_path).carried == 0
    assert write_onnx(weights, DecoderRecipe("tiny", precision="int4", head_precision="int4"), tmp_path).carried == 0
    assert write_onnx(weights, DecoderRecipe("tiny", precision="fp32"), tmp_path).carried == 0
    offset = blocked_weights(export_tiny("llama", precision="fp32").weights, MIXES["all Q4_1"])
    assert write_onnx(offset, DecoderRecipe("tiny", precision="int4"), tmp_path).carried == 14
    assert write_onnx(offset, DecoderRecipe("tiny", precision="int4", symmetric=True), tmp_path).carried == 0


def test_rows_that_fill_no_whole_block(export_tiny: Any, exact_activations: Any) -> None:
    """An intermediate size of 96 in blocks of 64, a hidden size of 48 in blocks of 32."""
    export = export_tiny("llama", model={"hidden_size": 48, "head_dim": 16}, precision="int4", block_size=64)
    ids = export.ids(30)
    expected = reference(export.weights, dequantized_state(export.folder, export.weights.spec), ids)
    np.testing.assert_allclose(exact_activations(export.folder).logits(ids, 9), expected, atol=2e-3)


def test_a_hidden_size_that_no_block_divides(export_tiny: Any) -> None:
    from edgepipe.errors import UnsupportedModel

    changes = {"hidden_size": 40, "head_dim": 16}
    with pytest.raises(UnsupportedModel, match="hidden_size is 40: expected a multiple of 16"):
        export_tiny("llama", model=changes, precision="int8")
    assert export_tiny("llama", model=changes, precision="int8", head_precision="fp32").report.bytes > 0
