"""Whatever stands in plan.json, reading it answers with a plan that can run, or with one line that names the key."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepipe.errors import BundleError
from edgepipe.runtimes.vision.plan import read_plan

Keys = tuple[Any, ...]


@pytest.fixture(scope="module")
def content(vision_bundle: Path) -> dict[str, Any]:
    """A plan as the export of a real (tiny) model wrote it."""
    found: dict[str, Any] = json.loads((vision_bundle / "vision" / "plan.json").read_text())
    assert found["grid"] != [1, 1]
    return found


def changed(content: dict[str, Any], keys: Keys, value: object) -> dict[str, Any]:
    content = copy.deepcopy(content)
    table: Any = content
    for key in keys[:-1]:
        table = table[key]
    if value is ...:
        del table[keys[-1]]
    else:
        table[keys[-1]] = value
    return content


def refusal_of(path: Path, content: object) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(BundleError) as refusal:
        read_plan(path)
    message = str(refusal.value)
    assert "plan.json" in message
    assert message.isprintable()
    return message


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("schema_version",), 2, "has schema version 2, this edgepipe reads 1: pip install --upgrade edgepipe"),
        (("schema_version",), ..., "schema_version is missing"),
        (("input",), [], "input is [], expected a table"),
        (("input", "shape"), [24, 20, 3], "input.shape is [24, 20, 3], expected one image"),
        (("input", "shape"), [1, -24, 20, 3], "input.shape is [1, -24, 20, 3], expected some whole numbers"),
        (("input", "shape"), [1, 10**12, 20, 3], "input.shape is"),
        (("input", "shape"), [1, 65536, 65536, 3], "12884901888 elements, expected at most 4194304"),
        (("output", "shape"), [1, 65536, 65536], "output.shape is [1, 65536, 65536], 4294967296 elements, expected at"),
        (("input", "dtype"), "int4", "input.dtype is 'int4', expected int8 or uint8 or float32"),
        (("input", "scale"), 0, "input.scale is 0, expected more than 0"),
        (("input", "scale"), math.nan, "input.scale is nan, expected a number"),
        (("input", "zero_point"), 200, "input.zero_point is 200, expected a whole number of -128 to 127"),
        (("stage",), None, "there are tiles, but no stage"),
        (("mode",), "fast", "mode is 'fast', expected streamed or resident"),
        (("grid",), [0, 1], "grid is [0, 1]"),
        (("grid",), [1, 1], "expected 1 rows of 1"),
        (("tiles",), [], "tiles has 0 entries"),
        (("tiles", 0, "graph"), "", "tiles[0].graph is '', expected text"),
        (("tiles", 0, "window", "rows"), [0, 10**4], "leave the image"),
        (("tiles", 0, "window", "rows"), [5, 5], "tiles[0].window.rows and columns are empty"),
        (("tiles", 0, "output", "columns"), [1, 2], "leave a gap, or overlap"),
        (("labels",), ["one"], "labels has 1 names for 4 classes"),
        (("labels",), [1, 2, 3, 4], "labels is [1, 2, 3, 4], expected a list of texts"),
        (("mean",), [0.5], "mean and std are not given together"),
        (("memory", "planned_bytes"), -1, "memory.planned_bytes is -1"),
        (("memory", "tflite_micro"), ..., "memory.tflite_micro is missing"),
        (("memory", "tflite_micro", "whole"), None, "memory.tflite_micro.whole is None, expected a table"),
        (("memory", "tflite_micro", "drop_in"), 1, "memory.tflite_micro.drop_in is 1, expected a table"),
        (("memory", "tflite_micro", "largest_part", "tail_bytes"), 0.5, "largest_part.tail_bytes is 0.5"),
    ],
)
def test_what_is_wrong_is_named(
    content: dict[str, Any], tmp_path: Path, keys: Keys, value: object, message: str
) -> None:
    assert message in refusal_of(tmp_path / "plan.json", changed(content, keys, value))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 10**5, '{"schema_version": true}'])
def test_what_is_no_plan(tmp_path: Path, text: str) -> None:
    refusal_of(tmp_path / "plan.json", text)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"plan\.json: No such file"):
        read_plan(tmp_path / "plan.json")


def keys_of(content: Any, above: Keys = ()) -> Iterator[Keys]:
    entries = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in entries:
        yield (*above, key)
        if isinstance(value, (dict, list)):
            yield from keys_of(value, (*above, key))


def test_every_key_with_every_kind_of_wrong_value(content: dict[str, Any], tmp_path: Path) -> None:
    """Nothing but a `BundleError` comes of it, and what is read has tiles that lie where they can."""
    path, refusals = tmp_path / "plan.json", []
    wrong = [..., None, True, -1, 0, 10**30, 0.5, math.nan, "", "text", "\ud800", [], [[]], {}, {"": 0}]
    for keys in keys_of(content):
        for value in wrong:
            path.write_text(json.dumps(changed(content, keys, value)))
            try:
                plan = read_plan(path)
            except BundleError as error:
                refusals.append(str(error))
                continue
            assert len(plan.tiles) == plan.grid[0] * plan.grid[1]
            for tile in plan.tiles:
                assert 0 <= tile.window.rows[0] < tile.window.rows[1] <= plan.input.shape[1]
                assert 0 <= tile.window.columns[0] < tile.window.columns[1] <= plan.input.shape[2]
    assert len(refusals) > 500
    assert all("plan.json" in message and message.isprintable() for message in refusals)
