"""The recipe of one decoder."""

from __future__ import annotations

from typing import Any

import pytest

from edgepipe.errors import RecipeError
from edgepipe.exporters.llm.recipe import DEFAULT_THRESHOLDS, PRECISIONS, DecoderRecipe, Thresholds


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"precision": "int3"}, "precision is 'int3': expected one of auto, fp32, int8, int4"),
        ({"head_precision": "fp16"}, "head_precision is 'fp16': expected one of auto, fp32, int8, int4"),
        ({"block_size": 48}, "block_size is 48: expected one of 32, 64, 128"),
    ],
)
def test_values_out_of_range_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        DecoderRecipe("owner/model", **values)


@pytest.mark.parametrize("text", ["", " ", "\n", "a\0b", "\0", "a\udcffb"])
def test_texts_that_name_nothing(text: str) -> None:
    with pytest.raises(RecipeError, match=r"^source is '.*': expected a hub id, a folder, a \.gguf file") as refusal:
        DecoderRecipe(text)
    assert str(refusal.value).isprintable()
    with pytest.raises(RecipeError, match=r"^revision is '.*': expected a branch, tag or commit"):
        DecoderRecipe("owner/model", revision=text)


def test_any_folder_can_be_a_source() -> None:
    for text in ("a folder/with\u00a0spaces", "Größe/東京", "-leading"):
        assert DecoderRecipe(text).source == text


def test_thresholds_are_those_of_the_precision_unless_given() -> None:
    assert set(DEFAULT_THRESHOLDS) == set(PRECISIONS)
    assert DecoderRecipe("owner/model", precision="fp32").limits.max_abs_logit == 2e-3
    own = Thresholds(max_mean_kl=0.5)
    assert DecoderRecipe("owner/model", precision="fp32", thresholds=own).limits == own


def test_finer_precisions_are_held_to_more() -> None:
    fp32, int8, int4 = (DEFAULT_THRESHOLDS[precision] for precision in ("fp32", "int8", "int4"))
    for finer, coarser in ((fp32, int8), (int8, int4)):
        assert (finer.max_mean_kl or 0) < (coarser.max_mean_kl or 0)
        assert (finer.min_top1_agreement or 0) > (coarser.min_top1_agreement or 0)
        assert (finer.max_perplexity_ratio or 0) < (coarser.max_perplexity_ratio or 0)
