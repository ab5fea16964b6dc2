"""Which cores are tried and taken for `--threads auto`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepipe.pipeline import core_choice
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.core_choice import Cores, choose_cores, fastest, settings

BIG, LITTLE = (4, 5, 6, 7), (0, 1, 2, 3)


@pytest.fixture(autouse=True)
def unbound() -> Iterator[None]:
    """The process may run on all its cores again afterwards."""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("the system has no affinity")
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def test_big_cores_alone_are_tried() -> None:
    eight = (0, 1, 2, 3, 4, 5, 6, 7)
    assert settings([BIG, LITTLE]) == [Cores(8, eight), Cores(4, BIG), Cores(4, eight), Cores(1, BIG)]


def test_three_kinds_are_left_out_from_the_slowest_on() -> None:
    tried = settings([[7], [4, 5, 6], [0, 1, 2, 3]])
    assert Cores(4, (4, 5, 6, 7)) in tried
    assert Cores(1, (7,)) in tried


def test_cores_of_one_kind() -> None:
    assert settings([[0, 1, 2, 3]]) == [Cores(n, (0, 1, 2, 3)) for n in (4, 2, 1)]
    assert settings([[0]]) == [Cores(1, (0,))]
    assert settings(4) == [Cores(n, None) for n in (4, 2, 1)]


def test_of_two_about_as_fast_the_one_of_fewer_threads_is_taken() -> None:
    all_cores, big, one = Cores(8, None), Cores(4, None), Cores(1, None)
    assert fastest({all_cores: 200.0, big: 100.0, one: 150.0}) == big  # llama.cpp 7176: eight threads at half the speed
    assert fastest({all_cores: 98.0, big: 100.0, one: 150.0}) == big
    assert fastest({all_cores: 90.0, big: 100.0, one: 150.0}) == all_cores


def test_it_is_timed_once_and_the_process_bound(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usable = os.sched_getaffinity(0)
    bundle, said = Bundle.open(tiny_bundle), []
    chosen = choose_cores(bundle, "onnx", said.append)
    assert 1 <= chosen.threads <= len(usable)
    assert chosen.cpus is not None
    assert os.sched_getaffinity(0) == set(chosen.cpus)
    assert said

    def time_again(*arguments: Any) -> float:
        raise AssertionError("it is timed again")

    os.sched_setaffinity(0, usable)
    monkeypatch.setattr(core_choice, "_time", time_again)
    assert choose_cores(bundle, "onnx") == chosen


@pytest.mark.parametrize("kept", ["", "[]", '{"threads": 400, "cpus": null}', '{"threads": 1, "cpus": 7}'])
def test_what_was_kept_and_cannot_be_is_timed_again(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kept: str
) -> None:
    path = tmp_path / "kept.json"
    path.write_text(kept)
    monkeypatch.setattr(core_choice, "cache_path", lambda *arguments: path)
    monkeypatch.setattr(core_choice, "_time", lambda bundle, engine, setting: float(setting.threads))
    assert choose_cores(Bundle.open(tiny_bundle), "onnx").threads == 1
    assert '"threads": 1' in path.read_text()
