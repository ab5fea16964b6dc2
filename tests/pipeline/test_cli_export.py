"""`edgepipe export`: how options and recipe file make one recipe."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from edgepipe.errors import RecipeError
from edgepipe.pipeline import cli_run
from edgepipe.pipeline.cli_export import _summary, command


def export(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def dry_run(*arguments: str | Path) -> dict[str, Any]:
    done = export(*arguments, "--dry-run")
    assert done.exit_code == 0, done.output
    return tomllib.loads(done.output)


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(
        """
        [target]
        source = "big"
        precision = "int8"
        block_size = 64

        [draft]
        source = "small"
        precision = "int4"
        """
    )
    return path


def test_one_option_is_enough() -> None:
    recipe = dry_run("--target", "model")
    assert recipe["target"]["source"] == "model"
    assert recipe["validate"] is True
    assert "draft" not in recipe


def test_options_apply_to_the_draft_too() -> None:
    options = ("--precision", "int4", "--block-size", "128", "--symmetric", "--head-precision", "int8")
    recipe = dry_run("--target", "big", "--draft", "small", *options)
    assert recipe["draft"] == recipe["target"] | {"source": "small"}
    assert recipe["target"]["block_size"] == 128
    assert recipe["target"]["symmetric"] is True


def test_options_of_the_draft_alone() -> None:
    options = ("--precision", "int4", "--draft-precision", "fp32", "--revision", "a1", "--draft-revision", "b2")
    recipe = dry_run("--target", "big", "--draft", "small", *options)
    assert [recipe[name]["precision"] for name in ("target", "draft")] == ["int4", "fp32"]
    assert [recipe[name]["revision"] for name in ("target", "draft")] == ["a1", "b2"]


def test_options_are_laid_over_the_file(recipe_file: Path) -> None:
    assert dry_run("--recipe", recipe_file)["target"]["block_size"] == 64
    recipe = dry_run("--recipe", recipe_file, "--block-size", "32", "--target", "other", "--no-validate")
    assert recipe["target"]["source"] == "other"
    assert recipe["target"]["precision"] == "int8"
    assert recipe["draft"]["precision"] == "int4"
    assert recipe["draft"]["block_size"] == 32
    assert recipe["validate"] is False


def test_what_dry_run_prints_is_a_recipe(tmp_path: Path) -> None:
    printed = export("--target", "model", "--asymmetric", "--dry-run").output
    (tmp_path / "again.toml").write_text(printed)
    assert export("--recipe", tmp_path / "again.toml", "--dry-run").output == printed


def test_dry_run_as_json() -> None:
    recipe = json.loads(export("--target", "model", "--dry-run", "--json").output)
    assert recipe["target"]["source"] == "model"
    assert recipe["draft"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "bundle"], "nothing to export"),
        (["--target", "model"], "no place to write to"),
        (["--target", "model", "--draft-precision", "int4"], "no --draft DRAFT"),
        (["--target", "model", "--precision", "int3"], "'int3' is not one of 'auto'"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    done = export(*arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_a_value_out_of_range() -> None:
    done = export("--target", "model", "--block-size", "33", "--dry-run")
    assert isinstance(done.exception, RecipeError)
    assert str(done.exception) == "target.block_size is 33: expected one of 32, 64, 128"


@pytest.mark.parametrize("option", ["--target", "--draft", "--revision", "--draft-revision"])
def test_an_empty_text(option: str) -> None:
    options = {"--target": "big", "--draft": "small"} | {option: ""}
    done = export(*(part for pair in options.items() for part in pair), "--dry-run")
    table, key = "draft" if "draft" in option else "target", "revision" if "revision" in option else "source"
    assert isinstance(done.exception, RecipeError)
    assert str(done.exception).startswith(f"{table}.{key} is '': expected ")


@pytest.mark.parametrize("source", ["", "a\\u0000b"])
def test_a_source_in_a_file_that_names_nothing(tmp_path: Path, source: str) -> None:
    (tmp_path / "recipe.toml").write_text(f'[target]\nsource = "{source}"\n')
    done = export("--recipe", tmp_path / "recipe.toml", "--dry-run")
    assert isinstance(done.exception, RecipeError)
    assert str(done.exception).startswith("target.source is '")


@pytest.mark.parametrize("name", ["bundle", "my bundle", "-bundle", "--help", "it's", "$HOME", "a;b", "*"])
def test_the_hint_can_be_pasted(name: str) -> None:
    """A shell takes it apart into a command that the verb reads as this folder and this prompt."""
    facts = {"bundle": name, "bundle_id": "0" * 16, "bytes": 1, "components": {}, "validation": {}}
    hint = _summary(facts).splitlines()[-1].removeprefix("try: ")
    program, verb, *arguments = shlex.split(hint)
    assert (program, verb) == ("edgepipe", "run")
    parsed = cli_run.command.make_context("run", arguments, resilient_parsing=True).params
    assert {str(value) for value in parsed.values() if value is not None} >= {name, "Hello"}


def test_formats_and_shapes_of_a_language_model() -> None:
    flags = ("--formats", "onnx,tflite", "--widths", "1,5,9", "--chunk-width", "32")
    recipe = dry_run("--target", "model", *flags)
    assert recipe["formats"] == ["onnx", "tflite"]
    assert recipe["static"] == {"widths": [1, 5, 9], "chunk": 32}
    assert dry_run("--target", "model")["formats"] == ["onnx"]


@pytest.mark.parametrize(("text", "found"), [("", ""), ("onnx,", ""), (" , ", ""), ("lite", "lite")])
@pytest.mark.parametrize("model", ["--target", "--vision"])
def test_formats_that_there_are_not(model: str, text: str, found: str) -> None:
    done = export(model, "model", "--formats", text, "--dry-run")
    assert isinstance(done.exception, RecipeError)
    assert f"formats has {found!r}: expected " in str(done.exception)


def test_a_format_goes_by_any_name_of_its_engine() -> None:
    recipe = dry_run("--target", "x", "--vision", "digits", "--formats", "onnx,litert", "--widths", "1,3")
    assert recipe["formats"] == recipe["vision"]["formats"] == ["onnx", "tflite"]


def test_formats_are_of_both_models_and_firmware_of_vision() -> None:
    recipe = dry_run("--target", "x", "--vision", "digits", "--formats", "tflite,firmware", "--board", "nrf52840")
    assert recipe["formats"] == ["tflite"]
    assert recipe["vision"]["formats"] == ["tflite", "firmware"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--widths", "1,5"), "--widths and --chunk-width are of the format tflite"),
        (("--formats", "tflite", "--widths", "1,x"), "--widths is '1,x': expected whole numbers"),
        (("--formats", "tflite", "--widths", "0"), "--widths is 0: expected 1 and wider ones"),
        (("--formats", "tflite", "--chunk-width", "0"), "--chunk-width is 0: expected 1 to 65536"),
    ],
)
def test_shapes_that_cannot_be_are_usage_errors(flags: tuple[str, ...], message: str) -> None:
    done = export("--target", "model", *flags, "--dry-run")
    assert done.exit_code == 2
    assert message in done.output
