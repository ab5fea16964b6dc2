"""`edgepipe run --verify` says "verified" only after it has replayed something."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepipe.errors import BundleError, ValidationFailed
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.bundle_writer import write_bundle
from edgepipe.pipeline.session import DecodeOptions, Session
from edgepipe.pipeline.verify import verify_reference

Forge = Callable[[str], Session]


@pytest.fixture
def forge(tiny_bundle: Path, tmp_path: Path) -> Forge:
    """``forge(text)``: the tiny bundle, sealed with ``text`` as the golden file of its target."""

    def forge(text: str) -> Session:
        manifest = Bundle.open(tiny_bundle).manifest
        with write_bundle(tmp_path / "forged") as draft:
            for folder in ("target", "draft", "reference"):
                shutil.copytree(tiny_bundle / folder, draft.folder / folder)
            (draft.folder / "reference/target.json").write_text(text)
            draft.manifest = {key: value for key, value in manifest.items() if key not in ("bundle_id", "files")}
        return Session(Bundle.open(tmp_path / "forged"), DecodeOptions())

    return forge


def golden_of(bundle: Path) -> Any:
    return json.loads((bundle / "reference/target.json").read_bytes())


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "{}", "[]", "3", '{"cases": 3, "tolerance": 1}'])
def test_a_golden_file_of_another_shape_is_named(forge: Forge, text: str) -> None:
    with pytest.raises(BundleError, match=r"reference.target\.json is damaged: .*export the bundle again"):
        verify_reference(forge(text))


@pytest.mark.parametrize(
    ("keys", "value", "named"),
    [
        (["cases"], [], "cases is \\[\\], expected one prompt or more"),
        (["cases", 0], 3, "cases\\[0\\].prompt_ids is None"),
        (["cases", 1, "prompt_ids"], [], "cases\\[1\\].prompt_ids is \\[\\]"),
        (["cases", 1, "greedy_ids"], [], "cases\\[1\\].greedy_ids"),
        (["cases", 1, "greedy_ids"], ["a"], "cases\\[1\\].greedy_ids"),
        (["cases", 1, "greedy_ids"], [10**6], "expected token ids from 0 to"),
        (["cases", 1, "greedy_ids"], [-1], "expected token ids from 0 to"),
        (["cases", 2, "logits_top"], [], "cases\\[2\\].logits_top.ids"),
        (["cases", 2, "logits_top", "values"], [1.0], "cases\\[2\\].logits_top.values"),
        (["cases", 2, "logits_top", "values"], [math.nan] * 32, "cases\\[2\\].logits_top.values"),
        (["tolerance"], math.inf, "tolerance is inf"),
        (["tolerance"], math.nan, "tolerance is nan"),
        (["tolerance"], -1, "tolerance is -1"),
        (["tolerance"], "1", "tolerance is '1'"),
    ],
)
def test_a_wrong_value_in_it_is_named(
    forge: Forge, tiny_bundle: Path, keys: list[Any], value: object, named: str
) -> None:
    golden = copy.deepcopy(golden_of(tiny_bundle))
    table = golden
    for key in keys[:-1]:
        table = table[key]
    table[keys[-1]] = value
    with pytest.raises(BundleError, match=named):
        verify_reference(forge(json.dumps(golden)))


def test_every_case_and_token_is_counted(forge: Forge, tiny_bundle: Path) -> None:
    golden = golden_of(tiny_bundle)
    draft = json.loads((tiny_bundle / "reference/draft.json").read_bytes())
    cases = [*golden["cases"][:1], *draft["cases"]]
    outcome = verify_reference(forge(json.dumps(golden | {"cases": golden["cases"][:1]})))
    assert outcome.cases == len(cases)
    assert outcome.tokens == sum(len(case["greedy_ids"]) for case in cases)


def test_another_token_is_no_verification(forge: Forge, tiny_bundle: Path) -> None:
    golden = golden_of(tiny_bundle)
    least = golden["cases"][0]["logits_top"]["ids"][-1]
    golden["cases"][0]["greedy_ids"][0] = least
    with pytest.raises(ValidationFailed, match=f"greedy token 0 is .*, expected {least}"):
        verify_reference(forge(json.dumps(golden)))
