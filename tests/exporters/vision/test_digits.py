"""The network that is trained at export time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.exporters.vision.source import open_vision
from edgepipe.exporters.vision.write_tflite import write_tflite

torch = pytest.importorskip("torch")
pytest.importorskip("litert_torch")
pytest.importorskip("sklearn")

from edgepipe.exporters.vision import digits  # noqa: E402


def test_a_fifth_of_the_digits_is_held_out():
    found = digits.load_digits()
    assert (len(found.images), len(found.held_out_images)) == (1437, 360)
    assert found.images.shape[1:] == (1, 8, 8)
    assert (found.images.min(), found.images.max()) == (0, 1)
    assert sorted(set(found.held_out_classes.tolist())) == list(range(10))


def test_training_is_the_same_for_the_same_seed(monkeypatch: pytest.MonkeyPatch):
    few = digits.load_digits()
    monkeypatch.setattr(digits, "_EPOCHS", 1)
    part = digits.Digits(few.images[:64], few.classes[:64], few.held_out_images, few.held_out_classes)
    monkeypatch.setattr(digits, "load_digits", lambda: part)
    states = [digits.train_digits(seed).state_dict() for seed in (5, 5, 6)]
    first, again, other = ([state[name] for name in states[0]] for state in states)
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))


@pytest.mark.slow
def test_int8_reads_held_out_digits(tflm: Any, tmp_path: Path):
    source = open_vision("digits")
    assert source.labels == tuple("0123456789")
    assert source.graph.tensors[source.graph.inputs[0]].shape == (1, 96, 96, 3)
    write_tflite({"main": source.graph}, tmp_path / "digits.tflite")
    run = tflm(tmp_path / "digits.tflite")
    held_out = digits.load_digits()
    images = digits.enlarge(held_out.held_out_images).permute(0, 2, 3, 1).numpy()
    for ink, pixels in (("white", images), ("black", 1 - images)):
        answers = [run((np.round(image * 255) - 128).astype(np.int8)[np.newaxis]).argmax() for image in pixels]
        assert np.mean(np.array(answers) == held_out.held_out_classes.numpy()) >= 0.96, ink
