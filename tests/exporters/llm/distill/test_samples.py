"""Samples on disk: read back as written, whole or not at all, the same however often sampling was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import EdgepipeError, EdgepipeWarning, RecipeError
from edgepipe.exporters.llm.distill.prompt_sources import ChatTurns, TemplatePrompts
from edgepipe.exporters.llm.distill.sample_shards import HELD_OUT, SampleSettings, SampleShards
from edgepipe.exporters.llm.distill.samples import Sample, read_samples, write_samples
from edgepipe.exporters.llm.distill.sampling import BatchSampler, Request
from edgepipe.runtimes.llm.chat_template import ChatTemplate
from edgepipe.runtimes.llm.tokenizer import load_tokenizer

SETTINGS = SampleSettings("tiny", "built-in", (0.0, 0.8), 5, max_answer=8, capacity=400, shard_size=6, held_out=4)


class Interrupted(Exception):
    """Stands for Ctrl-C."""


class InterruptedSampler:
    """Works for some shards, then is interrupted."""

    def __init__(self, sampler: BatchSampler, runs: int) -> None:
        self.sampler = sampler
        self.runs = runs

    def run(self, requests: Sequence[Request], max_answer: int) -> list[Sample]:
        if not self.runs:
            raise Interrupted
        self.runs -= 1
        return self.sampler.run(requests, max_answer)


@pytest.fixture
def prompts(tiny_target: Any) -> TemplatePrompts:
    tokenizer, template = load_tokenizer(tiny_target.folder), ChatTemplate.load(tiny_target.folder)
    return TemplatePrompts(ChatTurns(tokenizer, template, tiny_target.weights.spec.eos_token_ids), SETTINGS.seed)


def test_samples_are_read_back_as_they_were_written(tiny_samples: list[Sample], tmp_path: Path) -> None:
    write_samples(tmp_path / "shard.npz", tiny_samples)
    found = read_samples(tmp_path / "shard.npz")
    assert len(found) == len(tiny_samples)
    for one, other in zip(found, tiny_samples, strict=True):
        for name in ("tokens", "written", "teacher_ids", "teacher_probabilities"):
            left, right = getattr(one, name), getattr(other, name)
            assert left.dtype == right.dtype
            assert np.array_equal(left, right)
    assert [path.name for path in tmp_path.iterdir()] == ["shard.npz"]


@pytest.mark.parametrize("keep", [0, 100, -100])
def test_a_damaged_file_is_named(tiny_samples: list[Sample], tmp_path: Path, keep: int) -> None:
    path = tmp_path / "shard.npz"
    write_samples(path, tiny_samples)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(EdgepipeError, match=r"shard\.npz is damaged"):
        read_samples(path)


def test_a_file_of_a_compression_that_is_not_there_is_named(tiny_samples: list[Sample], tmp_path: Path) -> None:
    path = tmp_path / "shard.npz"
    write_samples(path, tiny_samples)
    content = path.read_bytes()
    entry = content.index(b"PK\x01\x02")  # of the directory; the method follows 10 bytes later
    path.write_bytes(content[: entry + 10] + b"\x63" + content[entry + 11 :])
    with pytest.raises(EdgepipeError, match=r"shard\.npz is damaged"):
        read_samples(path)


def test_interrupted_sampling_goes_on_to_the_same_shards(
    tiny_target: Any, prompts: TemplatePrompts, tmp_path: Path
) -> None:
    sampler = tiny_target.sampler(batch=3, capacity=400)
    whole = SampleShards(tmp_path / "whole", SETTINGS, prompts)
    expected = list(whole.take(120, lambda: sampler))
    assert len(expected) > 2

    for _ in range(2):
        shards = SampleShards(tmp_path / "interrupted", SETTINGS, prompts)
        interrupted: Any = InterruptedSampler(tiny_target.sampler(batch=3, capacity=400), 1)
        with pytest.raises(Interrupted):
            list(shards.take(120, partial(_itself, interrupted)))
    shards = SampleShards(tmp_path / "interrupted", SETTINGS, prompts)
    assert len(list(shards.take(120, lambda: sampler))) == len(expected)
    for index in range(len(expected)):
        assert shards.path(index).read_bytes() == whole.path(index).read_bytes()


def test_held_out_prompts_are_sampled_once_and_greedily(
    tiny_target: Any, prompts: TemplatePrompts, tmp_path: Path
) -> None:
    shards = SampleShards(tmp_path, SETTINGS, prompts)
    held_out = shards.held_out(lambda: tiny_target.sampler(batch=3, capacity=400))
    assert len(held_out) == SETTINGS.held_out
    for sample in held_out:
        assert (sample.tokens[sample.written] == sample.teacher_ids[:, 0]).all()
    before = (tmp_path / HELD_OUT).stat().st_mtime_ns
    shards.held_out(lambda: pytest.fail("sampled again"))
    assert (tmp_path / HELD_OUT).stat().st_mtime_ns == before


def test_samples_of_other_settings_are_refused(prompts: TemplatePrompts, tmp_path: Path) -> None:
    SampleShards(tmp_path, SETTINGS, prompts)
    SampleShards(tmp_path, SETTINGS, prompts)
    with pytest.raises(RecipeError, match=r"samples with seed 5, not 6: give another --work"):
        SampleShards(tmp_path, replace(SETTINGS, seed=6), prompts)
    with pytest.raises(RecipeError, match="temperatures"):
        SampleShards(tmp_path, replace(SETTINGS, temperatures=(0.0,)), prompts)


def _itself(sampler: BatchSampler) -> BatchSampler:
    return sampler


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_settings_that_are_damaged_are_named(prompts: TemplatePrompts, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "settings.json").write_bytes(content)
    with pytest.raises(EdgepipeError, match=r"settings\.json is damaged: give another --work"):
        SampleShards(tmp_path, SETTINGS, prompts)


class Lengths:
    """Prompts as long as they are told to be, in turn."""

    name = "built-in"

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def turns(self, index: int, held_out: bool) -> tuple[list[int], ...]:
        return ([5 + index % 7] * self.lengths[index % len(self.lengths)],)


def test_prompts_that_leave_no_room_are_left_out(tiny_target: Any, tmp_path: Path) -> None:
    """Of a capacity of 30 tokens one must be left for the answer; then it is the same as if the others were not."""
    sampler = tiny_target.sampler(batch=3, capacity=30)
    shards = SampleShards(tmp_path, SETTINGS, Lengths(29, 30, 31, 5000, 0, 3))
    with pytest.warns(EdgepipeWarning, match=r"^4 of 6 prompts \(built-in\) .* within 30 tokens: they are left out$"):
        (samples,) = shards.take(1, lambda: sampler)
    assert [np.flatnonzero(sample.written)[0] for sample in samples] == [29, 3]
    assert samples[0].tokens.size == 30
    again = sampler.run([shards._request(0, False), shards._request(5, False)], SETTINGS.max_answer)
    for one, other in zip(samples, again, strict=True):
        assert np.array_equal(one.tokens, other.tokens)


@pytest.mark.parametrize("length", [0, 30, 999])
def test_prompts_of_which_none_leaves_room_are_an_error(tiny_target: Any, tmp_path: Path, length: int) -> None:
    sampler = tiny_target.sampler(batch=3, capacity=30)
    shards = SampleShards(tmp_path, SETTINGS, Lengths(length))
    for sample in (lambda: list(shards.take(1, lambda: sampler)), lambda: shards.held_out(lambda: sampler)):
        with pytest.raises(RecipeError, match="prompts .* within 30 tokens: give shorter ones"):
            sample()
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]
