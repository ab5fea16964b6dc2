"""A tiny target, exported and sampled, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from edgepipe.exporters.llm.distill.samples import Sample
from edgepipe.exporters.llm.distill.sampling import BatchSampler, Request
from edgepipe.exporters.llm.onnx import PLAIN, write_onnx
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.sources import open_source
from edgepipe.exporters.sources.weights import DecoderWeights


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slowed down by a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class TinyTarget:
    """A decoder of random weights, its files and its graph in float32."""

    weights: DecoderWeights
    source: Path
    folder: Path

    def sampler(self, batch: int, capacity: int = 96) -> BatchSampler:
        return BatchSampler(self.folder / PLAIN, self.weights.spec, batch, capacity, threads=1)


@pytest.fixture(scope="session")
def tiny_target(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    source = tiny_model("llama")
    weights = open_source(str(source))
    folder = tmp_path_factory.mktemp("tiny_target")
    weights.save_tokenizer(folder)
    write_onnx(weights, DecoderRecipe(str(source), precision="fp32"), folder)
    return TinyTarget(weights, source, folder)


@pytest.fixture(scope="session")
def requests_() -> list[Request]:
    """Prompts of different lengths, some of several turns, at different temperatures."""
    random = np.random.default_rng(0)

    def turn(length: int) -> list[int]:
        return [int(token) for token in random.integers(3, 300, length)]

    return [
        Request(tuple(turn(3 + 2 * index) for _ in range(1 + index % 3)), (0.0, 0.5, 1.0)[index % 3], (7, index))
        for index in range(12)
    ]


@pytest.fixture(scope="session")
def tiny_samples(tiny_target: TinyTarget, requests_: list[Request]) -> list[Sample]:
    return tiny_target.sampler(batch=5).run(requests_, max_answer=24)
