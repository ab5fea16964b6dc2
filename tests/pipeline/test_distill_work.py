"""The folders of `edgepipe distill`: refused before anything in them changes, mended when damaged, named when full."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edgepipe.errors import BundleError, EdgepipeError, RecipeError, TokenizerError
from edgepipe.exporters.sources import open_source
from edgepipe.pipeline.cli_distill import command
from edgepipe.pipeline.distill import distill
from edgepipe.pipeline.distill_target import RECORD, exported_target
from edgepipe.pipeline.distillation import Distillation


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Of all files below: when they were written, and what."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def silence(fraction: float, step: str) -> None:
    pass


@pytest.mark.parametrize("output", [".", "", "..", "/", "./", "new/..", "mine", "file.txt", "link"])
def test_a_place_that_is_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    """Before the target, which does not exist, is looked for."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file.txt").touch()
    (tmp_path / "file.txt").touch()
    (tmp_path / "link").symlink_to("mine")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, ["nowhere/model", "--output", output])
    if output == "file.txt":
        assert "'file.txt' is a file" in done.output
    else:
        assert isinstance(done.exception, BundleError)
        assert str(done.exception).endswith(" exists: give the name of a new folder")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file.txt", "file.txt", "link", "mine"]


@pytest.mark.parametrize("work", ["draft", "draft/work", "other/../draft"])
def test_no_work_within_the_draft(tiny_distillation: Distillation, tmp_path: Path, work: str) -> None:
    with pytest.raises(RecipeError, match=r"expected one outside of .*draft: give another --work"):
        distill(tiny_distillation, tmp_path / "draft", tmp_path / work)
    assert list(tmp_path.iterdir()) == []


def test_work_that_cannot_be_made_is_said_at_once(tiny_distillation: Distillation, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EdgepipeError, match=r"cannot make .*: Not a directory; give another --work folder"):
        distill(tiny_distillation, tmp_path / "draft", tmp_path / "file" / "work")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_link_to_nothing_is_followed(tiny_distillation: Distillation, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("draft")
    distill(tiny_distillation, tmp_path / "link", tmp_path / "work")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "draft" / "model.safetensors").is_file()


def test_what_is_refused_leaves_the_work_of_another_as_it_is(
    tiny_distillation: Distillation, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    work, prompts = tmp_path / "work", tmp_path / "prompts.txt"
    distill(tiny_distillation, tmp_path / "draft", work)
    prompts.write_text("\n".join(f"What is {number}?" for number in range(20)))
    before = contents(work)
    for changes, message in (
        ({"target": str(tiny_model("qwen2"))}, "holds samples with target"),
        ({"prompts": prompts}, "holds samples with prompts 'built-in'"),
        ({"seed": 5}, "holds samples with seed 0, not 5"),
    ):
        with pytest.raises(RecipeError, match=message):
            distill(replace(tiny_distillation, **changes), tmp_path / "other", work)
        assert contents(work) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "prompts.txt", "work"]


@pytest.mark.parametrize("option", ["prompts", "text"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 "),
        (b"\n \n", "expected at least 10"),
        (b"\x89PNG\r\n\x1a\n\x00", "no text in UTF-8: byte 0 is not"),
        (b"Why is the sky blue?\n", "expected at least 10"),
    ],
)
def test_prompts_that_are_none_are_refused_before_the_target_is_exported(
    tiny_distillation: Distillation, tmp_path: Path, option: str, content: bytes, message: str
) -> None:
    path = tmp_path / "asked.txt"
    path.write_bytes(content)
    steps: list[str] = []
    with pytest.raises(RecipeError, match=message):
        distill(
            replace(tiny_distillation, **{option: path}),
            tmp_path / "draft",
            tmp_path / "work",
            lambda fraction, step: steps.append(step),
        )
    assert steps == []
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_target_that_cannot_be_asked_is_refused_before_it_is_exported(
    tiny_distillation: Distillation, tmp_path: Path, file: str
) -> None:
    """Its own file is named, not a copy that is gone by then."""
    target = tmp_path / "target"
    shutil.copytree(tiny_distillation.target, target)
    refuses = "{{ raise_exception('no user is known here') }}"
    (target / file).write_text(refuses if file.endswith(".jinja") else "{")
    with pytest.raises(TokenizerError) as refused:
        distill(replace(tiny_distillation, target=str(target)), tmp_path / "draft", tmp_path / "work")
    assert str(refused.value).startswith(f"{target}: {file}")
    assert tempfile.gettempdir() + "/edgepipe-" not in str(refused.value)
    assert list(tmp_path.iterdir()) == [target]


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def one_bit_off(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("onnx/model.onnx", truncated),
        ("onnx/model.onnx.data", truncated),
        ("onnx/model.onnx.data", one_bit_off),
        ("tokenizer.json", Path.unlink),
        ("config.json", truncated),
        ("onnx", shutil.rmtree),
        (RECORD, Path.unlink),
        (RECORD, truncated),
        (RECORD, lambda path: path.write_text(path.read_text().partition("\n")[0])),  # as it was before checksums
    ],
)
def test_a_damaged_target_is_exported_again(
    tiny_distillation: Distillation, tmp_path: Path, file: str, damage: Callable[[Path], Any]
) -> None:
    weights = open_source(tiny_distillation.target)
    target = exported_target(weights, tiny_distillation, tmp_path, silence)
    whole = contents(target)
    assert exported_target(weights, tiny_distillation, tmp_path, silence) == target
    assert contents(target) == whole  # not written again

    damage(target / file)
    assert exported_target(weights, tiny_distillation, tmp_path, silence) == target
    assert {name: content for name, (_, content) in contents(target).items()} == {
        name: content for name, (_, content) in whole.items()
    }
    assert list(tmp_path.iterdir()) == [target]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one of its own."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a full disk needs root, to mount one")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield disk
    finally:
        # Lazily: samples and features are mapped until they are collected.
        subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize(
    ("kind", "stage", "full"),
    [
        ("decoder", "export: embeddings", "work"),
        ("decoder", "sample: held-out", "work"),
        ("decoder", "sample: 0.00 M", "work"),
        ("head", "features: ", "work"),
        ("decoder", "train: ", "work"),
        ("decoder", "train: ", "draft"),
    ],
)
def test_a_full_disk_is_named_and_the_same_call_goes_on(
    tiny_distillation: Distillation, tmp_path: Path, disk: Path, kind: str, stage: str, full: str
) -> None:
    recipe = replace(tiny_distillation, kind=kind)
    distill(recipe, tmp_path / "whole", tmp_path / "whole.work")
    places = {"draft": tmp_path / "draft", "work": tmp_path / "work", full: disk / full}

    def fill_at_stage(fraction: float, step: str) -> None:
        if step.startswith(stage):
            fill(disk)

    with pytest.raises(BundleError) as refused:
        distill(recipe, places["draft"], places["work"], fill_at_stage)
    said = str(refused.value)
    assert said.startswith(f"cannot write {disk / full}: No space left on device; free some, and the same command goes")
    assert f"--work {places['work']}" in said or full == "work"
    assert not places["draft"].exists()
    assert [path.name for path in (*disk.rglob(".*"), *tmp_path.glob(".*"))] == []

    (disk / "filler").unlink()
    distill(recipe, places["draft"], places["work"])
    name = "model.safetensors"
    assert (places["draft"] / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_full_disk_with_temporary_files_is_named(
    tiny_distillation: Distillation, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(disk)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    with pytest.raises(BundleError, match=rf"cannot write {disk}: No space left on device; free some, .* TMPDIR"):
        distill(tiny_distillation, tmp_path / "draft", tmp_path / "work")
    assert [path.name for path in disk.iterdir()] == ["filler"]
    assert [path.name for path in tmp_path.iterdir()] == ["disk"]
