"""The functions of the package: a mistake is an `EdgepipeError` of one line, and nobody else writes to the terminal."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgepipe
from edgepipe.errors import EdgepipeError
from edgepipe.exporters.sources.quiet import no_logs

NO_PATHS = (None, 3, 1.5, b"bundle", ["bundle"], {}, object())


def refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(EdgepipeError) as caught:
        call()
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("bundle", NO_PATHS)
def test_bundles_that_are_no_path(bundle: Any) -> None:
    refused(lambda: edgepipe.run(bundle, "Hello"), "the bundle is ")
    refused(lambda: edgepipe.measure(bundle), "the bundle is ")
    refused(lambda: edgepipe.run_image(bundle, np.zeros((1, 1, 3), np.uint8)), "the bundle is ")


@pytest.mark.parametrize("recipe", [None, 3, b"model", ["model"], {"target": "model"}])
def test_recipes_that_are_none(recipe: Any, tmp_path: Path) -> None:
    refused(lambda: edgepipe.export(recipe, tmp_path / "bundle"), "recipe is ")


@pytest.mark.parametrize("destination", NO_PATHS)
def test_destinations_that_are_no_path(destination: Any, tmp_path: Path) -> None:
    refused(lambda: edgepipe.export(str(tmp_path), destination), "cannot write ")


def test_a_path_is_a_source(tmp_path: Path) -> None:
    refused(lambda: edgepipe.export(tmp_path, tmp_path / "bundle"), f"no config.json in {tmp_path}")


@pytest.mark.parametrize("prompt", [b"x", None, 3, ["x"]])
def test_prompts_that_are_no_text(tiny_bundle: Path, prompt: Any) -> None:
    refused(lambda: edgepipe.run(tiny_bundle, prompt), f"the prompt is {type(prompt).__name__}: expected text")


@pytest.mark.parametrize("count", ["3", None, 0, 2.5])
def test_lengths_that_are_none(tiny_bundle: Path, count: Any) -> None:
    refused(lambda: edgepipe.run(tiny_bundle, "x", max_new_tokens=count), f"max_new_tokens is {count!r}: expected 1")


@pytest.mark.parametrize("count", ["3", None, 0, 2.5])
def test_numbers_of_classes_that_are_none(vision_bundle: Path, count: Any) -> None:
    image = np.zeros((24, 20, 3), np.uint8)
    refused(lambda: edgepipe.run_image(vision_bundle, image, top_k=count), f"top_k is {count!r}: expected 1 or more")


@pytest.mark.parametrize("before", [logging.NOTSET, logging.WARNING, logging.CRITICAL])
def test_logs_are_as_they_were(before: int) -> None:
    logging.disable(before)
    try:
        with no_logs():
            assert not logging.getLogger("other").isEnabledFor(logging.WARNING)
            assert logging.getLogger("other").isEnabledFor(logging.ERROR) == (before < logging.ERROR)
        assert logging.root.manager.disable == before
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.slow
def test_an_export_from_python_is_silent(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    """In a process of its own, where torch, transformers and what they import are imported for the first time."""
    script = (
        "import sys, edgepipe\n"
        "from edgepipe.pipeline.recipe import recipe_from\n"
        "recipe = {'target': {'source': sys.argv[1], 'precision': 'fp32'}}\n"
        "edgepipe.export(recipe_from(recipe), sys.argv[2])\n"
    )
    arguments = [sys.executable, "-c", script, str(tiny_model("llama")), str(tmp_path / "bundle")]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
