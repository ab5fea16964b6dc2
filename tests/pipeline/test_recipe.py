"""Recipes: TOML in, dataclasses out, and every mistake named."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepipe.errors import RecipeError
from edgepipe.exporters.llm.recipe import BLOCK_SIZES, PRECISIONS, DecoderRecipe, Thresholds
from edgepipe.exporters.llm.static_shape import StaticShape
from edgepipe.pipeline.recipe import Recipe, read_recipe, recipe_from, to_toml

EXAMPLE = """
validate = false
formats = ["onnx"]

[target]
source = "owner/model"
revision = "main"
precision = "int4"
block_size = 64
symmetric = true
head_precision = "int8"

[target.thresholds]
max_mean_kl = 1

[draft]
source = "draft.gguf"
"""

texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1).filter(str.strip)
limits = st.none() | st.floats(0, 1)
thresholds = st.builds(Thresholds, limits, limits, limits, limits)
decoders = st.builds(
    DecoderRecipe,
    source=texts,
    revision=st.none() | texts,
    precision=st.sampled_from(PRECISIONS),
    block_size=st.sampled_from(BLOCK_SIZES),
    symmetric=st.booleans(),
    head_precision=st.sampled_from(PRECISIONS),
    thresholds=st.none() | thresholds,
)
shapes = st.builds(
    StaticShape,
    widths=st.sets(st.integers(2, 64)).map(lambda wider: (1, *sorted(wider))),
    chunk=st.integers(1, 512),
)
recipes = st.builds(Recipe, target=decoders, draft=st.none() | decoders, validate=st.booleans(), static=shapes)


def test_a_recipe_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(EXAMPLE)
    target = DecoderRecipe("owner/model", "main", "int4", 64, True, "int8", Thresholds(max_mean_kl=1.0))
    assert recipe_from(read_recipe(path)) == Recipe(target, DecoderRecipe("draft.gguf"), False, ("onnx",))


@given(recipes)
def test_what_is_written_reads_back(recipe: Recipe) -> None:
    assert recipe_from(tomllib.loads(to_toml(recipe))) == recipe


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "target is missing: expected a table, or one called vision"),
        ({"target": {}}, "target.source is missing: expected text in quotes"),
        ({"target": "x"}, "target is 'x': expected a table"),
        ({"target": {"source": 1}}, "target.source is 1: expected text in quotes"),
        (
            {"target": {"source": "x", "block_sise": 1}},
            "unknown key target.block_sise: did you mean target.block_size?",
        ),
        ({"target": {"source": "x"}, "draught": {}}, "unknown key draught: did you mean draft?"),
        (
            {"target": {"source": "x"}, "zzz": 1},
            "unknown key zzz: expected one of target, draft, validate, formats, static, vision",
        ),
        ({"target": {"source": "x", "block_size": "32"}}, "target.block_size is '32': expected a whole number"),
        ({"target": {"source": "x", "block_size": True}}, "target.block_size is True: expected a whole number"),
        ({"target": {"source": "x", "block_size": 33}}, "target.block_size is 33: expected one of 32, 64, 128"),
        ({"target": {"source": "x", "symmetric": 1}}, "target.symmetric is 1: expected true or false"),
        (
            {"target": {"source": "x", "precision": "int3"}},
            "target.precision is 'int3': expected one of auto, fp32, int8, int4",
        ),
        (
            {"target": {"source": "x", "thresholds": {"max_mean_kl": "low"}}},
            "target.thresholds.max_mean_kl is 'low': expected a number",
        ),
        (
            {"target": {"source": "x", "thresholds": {"max_abs_logit": -1}}},
            "target.thresholds.max_abs_logit is -1.0: expected 0 or more",
        ),
        (
            {"target": {"source": "x", "thresholds": {"min_top1_agreement": 97}}},
            "target.thresholds.min_top1_agreement is 97.0: expected a number from 0 to 1",
        ),
        (
            {"target": {"source": "x", "thresholds": {"max_mean_kl": float("nan")}}},
            "target.thresholds.max_mean_kl is nan: expected 0 or more",
        ),
        ({"target": {"source": "x"}, "draft": {"source": []}}, "draft.source is []: expected text in quotes"),
        ({"target": {"source": "x"}, "formats": "onnx"}, "formats is 'onnx': expected a list"),
        ({"target": {"source": "x"}, "formats": ["onyx"]}, "formats has 'onyx': expected onnx, tflite, executorch"),
        ({"target": {"source": "x"}, "formats": [1]}, "formats[0] is 1: expected text in quotes"),
        (
            {"target": {"source": "x"}, "formats": []},
            "formats is empty: expected one or more of onnx, tflite, executorch",
        ),
        ({"target": {"source": "x"}, "formats": ["onnx", "onnx"]}, "formats is onnx, onnx: expected each once"),
        (
            {"target": {"source": "x"}, "static": {"widths": [5, 1]}},
            "static.widths is 5, 1: expected 1 and wider ones, ascending, as in 1, 5, 9 for 4 and 8 guesses a round",
        ),
        (
            {"target": {"source": "x"}, "static": {"widths": []}},
            "static.widths is empty: expected 1 and wider ones, ascending, as in 1, 5, 9 for 4 and 8 guesses a round",
        ),
        ({"target": {"source": "x"}, "static": {"chunk": 0}}, "static.chunk is 0: expected 1 to 65536"),
    ],
)
def test_a_mistake_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_from(values)
    assert str(caught.value) == message


@pytest.mark.parametrize("content", [b"target = ", b"\xff\xfe", b"[target]\n[target]"])
def test_a_file_that_is_no_toml(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "recipe.toml").write_bytes(content)
    with pytest.raises(RecipeError, match=r"recipe\.toml is no TOML"):
        read_recipe(tmp_path / "recipe.toml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot read the recipe"):
        read_recipe(tmp_path / "absent.toml")
