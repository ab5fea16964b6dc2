"""The fp32 graphs against transformers: every architecture, however the tokens are fed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from edgepipe.runtimes.llm.rope import cos_sin_tables

TOLERANCE = 2e-3
both_graphs = pytest.mark.parametrize("scored", [False, True], ids=["plain", "scored"])
both_heads = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


@both_graphs
@both_heads
def test_logits_of_a_prompt_fed_at_once_in_chunks_and_token_by_token(
    architecture: str, tied: bool, scored: bool, export_tiny: Any
) -> None:
    export = export_tiny(architecture, tied, precision="fp32")
    ids = export.ids(100)
    expected = export.reference(ids)
    session = export.session(scored)
    for chunk in (100, 7, 1):
        np.testing.assert_allclose(session.logits(ids, chunk), expected, atol=TOLERANCE)


@both_graphs
@pytest.mark.parametrize("changes", [{"attention_bias": True}, {"mlp_bias": True}, {"num_key_value_heads": 4}], ids=str)
def test_llama_with_biases_and_with_as_many_kv_heads_as_query_heads(
    changes: dict[str, Any], scored: bool, export_tiny: Any
) -> None:
    export = export_tiny("llama", model=changes, precision="fp32")
    ids = export.ids(40)
    np.testing.assert_allclose(export.session(scored).logits(ids, 9), export.reference(ids), atol=TOLERANCE)


@both_graphs
def test_positions_need_not_be_slot_numbers(architecture: str, scored: bool, export_tiny: Any) -> None:
    """Each token is rotated by its own position, with a past and S > 1, in slots of any order."""
    import torch

    export = export_tiny(architecture, precision="fp32")
    ids = export.ids(24)
    positions = [*range(3, 13), *np.random.default_rng(1).permutation(np.arange(20, 34))]
    session = export.session(scored)
    parts = [
        session.forward(ids[start:stop], positions[start:stop])["logits"][0]
        for start, stop in ((0, 10), (10, 19), (19, 20), (20, 24))
    ]
    with torch.inference_mode():
        # An explicit causal mask over slots: transformers would otherwise derive one from the positions.
        causal = torch.full((24, 24), float("-inf")).triu(1)[None, None]
        expected = export.model(
            torch.tensor(ids[None]), attention_mask=causal, position_ids=torch.tensor([positions])
        ).logits[0]
    np.testing.assert_allclose(np.concatenate(parts), expected.numpy(), atol=TOLERANCE)


@both_graphs
def test_without_a_past_positions_follow_the_first(scored: bool, export_tiny: Any) -> None:
    """What the engine does, so that a change of it is noticed: scattered positions need a past."""
    export = export_tiny("llama", precision="fp32")
    ids = export.ids(6)
    consecutive = export.session(scored).forward(ids, [4, 5, 6, 7, 8, 9])["logits"]
    scattered = export.session(scored).forward(ids, [4, 90, 30, 60, 2, 70])["logits"]
    np.testing.assert_array_equal(scattered, consecutive)


@both_graphs
def test_longer_rotation_tables_reach_beyond_the_context(architecture: str, scored: bool, export_tiny: Any) -> None:
    import torch

    export = export_tiny(architecture, precision="fp32")
    spec = export.weights.spec
    first = 3 * spec.context_length
    ids, positions = export.ids(12), list(range(first, first + 12))
    cos_cache, sin_cache = cos_sin_tables(spec, 4 * spec.context_length)
    session = export.session(scored)
    parts = [
        session.forward(ids[start:stop], positions[start:stop], cos_cache=cos_cache, sin_cache=sin_cache)["logits"][0]
        for start, stop in ((0, 5), (5, 12))
    ]
    with torch.inference_mode():
        expected = export.model(torch.tensor(ids[None]), position_ids=torch.tensor([positions]))
    np.testing.assert_allclose(np.concatenate(parts), expected.logits[0].numpy(), atol=TOLERANCE)


@both_graphs
def test_logits_from_drops_the_rows_before_it(scored: bool, export_tiny: Any) -> None:
    export = export_tiny("qwen2", tied=False, precision="fp32")
    ids = export.ids(20)
    expected = export.session(scored).forward(ids)["logits"]
    for first in (0, 7, 19):
        found = export.session(scored).forward(ids, logits_from=first)["logits"]
        np.testing.assert_allclose(found, expected[:, first:], atol=1e-5)


def test_forgetting_the_last_tokens_needs_only_a_shorter_length(export_tiny: Any) -> None:
    export = export_tiny("llama", precision="fp32")
    ids, other = export.ids(30), export.ids(30, seed=1)
    session = export.session()
    session.forward(ids[:10])
    session.forward(other[:8])
    session.length = 10
    found = session.forward(ids[10:])["logits"]
    np.testing.assert_allclose(found[0], export.reference(ids)[10:], atol=TOLERANCE)


def test_attention_mass_is_the_probability_summed_over_the_heads_of_a_group(
    architecture: str, export_tiny: Any
) -> None:
    import torch

    export = export_tiny(architecture, precision="fp32")
    spec = export.weights.spec
    ids = export.ids(50)
    model = export.weights.reference_model()  # one of its own, since it is altered
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        attentions = model(torch.tensor(ids[None]), output_attentions=True).attentions
    expected = np.stack([layer[0].numpy() for layer in attentions])  # [L, H, S, T]
    expected = expected.reshape(spec.num_layers, spec.num_kv_heads, -1, 50, 50).sum(axis=2)

    session = export.session(scored=True)
    for start, stop in ((0, 20), (20, 49), (49, 50)):
        mass = session.forward(ids[start:stop])["attention_mass"]
        assert mass.shape == (spec.num_layers, spec.num_kv_heads, stop - start, stop)
        np.testing.assert_allclose(mass, expected[:, :, start:stop, :stop], atol=1e-4)


def test_a_batch_may_be_decoded_by_the_plain_graph(export_tiny: Any) -> None:
    """Two prompts of one length, then a token each; the cache is bound as the engine's own outputs."""
    import onnxruntime

    export = export_tiny("qwen3", precision="fp32")
    spec = export.weights.spec
    ids = np.stack([export.ids(12), export.ids(12, seed=1)])
    session = onnxruntime.InferenceSession(export.folder / "onnx" / "model.onnx")
    cache = {
        f"past_key_values.{layer}.{part}": np.zeros((2, spec.num_kv_heads, 0, spec.head_dim), np.float32)
        for layer in range(spec.num_layers)
        for part in ("key", "value")
    }
    found = []
    for start, stop in ((0, 11), (11, 12)):
        names = [output.name for output in session.get_outputs()]
        positions = np.tile(np.arange(start, stop), (2, 1))
        feeds = {
            "input_ids": ids[:, start:stop],
            "attention_mask": np.ones((2, stop), np.int64),
            "position_ids": positions,
        }
        results = dict(zip(names, session.run(None, feeds | cache), strict=True))
        found.append(results.pop("logits"))
        cache = {name.replace("present", "past_key_values"): value for name, value in results.items()}
    for row, logits in zip(ids, np.concatenate(found, axis=1), strict=True):
        np.testing.assert_allclose(logits, export.reference(row), atol=TOLERANCE)


@both_heads
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_both_graphs_pass_the_checker_and_share_one_copy_of_the_weights(
    tied: bool, precision: str, export_tiny: Any
) -> None:
    export = export_tiny("llama", tied, precision=precision)
    folder = export.folder / "onnx"
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "model.onnx.data", "model.scored.onnx"]
    extents = []
    for name in ("model.onnx", "model.scored.onnx"):
        onnx.checker.check_model(folder / name, full_check=False)
        model = onnx.load(folder / name, load_external_data=False)
        assert (folder / name).stat().st_size < 100_000
        assert {entry.domain: entry.version for entry in model.opset_import} == {"": 21, "com.microsoft": 1}
        outside = [
            {entry.key: entry.value for entry in tensor.external_data}
            for tensor in model.graph.initializer
            if tensor.data_location == onnx.TensorProto.EXTERNAL
        ]
        assert {entry["location"] for entry in outside} == {"model.onnx.data"}
        assert all(int(entry["offset"]) % 4096 == 0 for entry in outside)
        extents.append({(int(entry["offset"]), int(entry["length"])) for entry in outside})
    assert extents[0] == extents[1]
    used = sum(-(-length // 4096) * 4096 for _, length in extents[0])
    size = (folder / "model.onnx.data").stat().st_size
    assert used - 4096 < size <= used  # every page is used, and by one tensor only
    assert size == export.report.bytes


def test_metadata_describes_the_model(export_tiny: Any) -> None:
    import json

    from edgepipe.runtimes.llm.spec import DecoderSpec

    export = export_tiny("qwen3", precision="fp32")
    model = onnx.load(export.folder / "onnx" / "model.scored.onnx", load_external_data=False)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert properties["edgepipe.schema_version"] == "1"
    assert DecoderSpec.from_json(json.loads(properties["edgepipe.spec"])) == export.weights.spec
    assert json.loads(properties["edgepipe.precision"])["head"] == "fp32"


def test_progress_ends_at_one_and_never_falls(tiny_model: Any, tmp_path: Any) -> None:
    from edgepipe.exporters.llm.onnx import write_onnx
    from edgepipe.exporters.llm.recipe import DecoderRecipe
    from edgepipe.exporters.sources import open_source

    source = str(tiny_model("llama"))
    seen: list[float] = []
    write_onnx(open_source(source), DecoderRecipe(source), tmp_path, lambda fraction, part: seen.append(fraction))
    assert seen == sorted(seen)
    assert seen[-1] == 1
