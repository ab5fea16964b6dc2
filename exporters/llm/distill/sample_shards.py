"""The samples of a distillation, on disk: shards written as they are done, the same however often interrupted."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from edgepipe.errors import EdgepipeError, EdgepipeWarning, RecipeError
from edgepipe.exporters.llm.distill.prompt_sources import Prompts
from edgepipe.exporters.llm.distill.samples import Sample, read_samples, replaced, write_samples
from edgepipe.exporters.llm.distill.sampling import BatchSampler, Request

SETTINGS = "settings.json"
HELD_OUT = "held-out.npz"


@dataclass(frozen=True)
class SampleSettings:
    """What the samples depend on.

    Attributes:
        target: what the target is: its source's name, revision or checksums.
        prompts: what the prompts are.
        temperatures: each conversation is sampled at one of them; held-out ones at 0.
        seed: of prompts, temperatures and draws.
        max_answer: tokens of the longest answer; longer ones are cut.
        capacity: tokens of the longest conversation.
        shard_size: conversations in a shard.
        held_out: conversations that are kept for evaluation.
    """

    target: str
    prompts: str
    temperatures: tuple[float, ...]
    seed: int
    max_answer: int = 192
    capacity: int = 512
    shard_size: int = 256
    held_out: int = 96


class SampleShards:
    """The folder of the samples.

    Shard ``i`` holds the conversations ``[i * shard_size, (i + 1) * shard_size)``, whenever it is sampled.
    """

    def __init__(self, folder: Path, settings: SampleSettings, prompts: Prompts) -> None:
        """Open or make the folder.

        Raises:
            RecipeError: it holds samples made with other settings.
            EdgepipeError: it does not say which, or cannot be made.
        """
        self.folder = folder
        self.settings = settings
        self.prompts = prompts
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EdgepipeError(f"cannot make {folder}: {error.strerror}; give another --work folder") from error
        path = folder / SETTINGS
        asked = json.loads(json.dumps(asdict(settings)))
        if path.is_file():
            found = _read_settings(path)
            for name, value in asked.items():
                if found.get(name) != value:
                    raise RecipeError(
                        f"{folder} holds samples with {name} {found.get(name)!r}, not {value!r}: "
                        "give another --work folder, or remove this one"
                    )
        else:
            with replaced(path) as partial:
                partial.write_text(json.dumps(asked, indent=2) + "\n", encoding="utf-8")

    def path(self, index: int) -> Path:
        return self.folder / f"{index:05}.npz"

    def held_out(self, sampler: Callable[[], BatchSampler]) -> list[Sample]:
        """The held-out samples, sampled greedily if they are not there yet."""
        path = self.folder / HELD_OUT
        if not path.is_file():
            requests = [self._request(index, True) for index in range(self.settings.held_out)]
            self._sample(path, requests, sampler())
        return read_samples(path)

    def take(self, written_tokens: int, sampler: Callable[[], BatchSampler]) -> Iterator[list[Sample]]:
        """Shards, sampled if they are not there yet, until the target wrote ``written_tokens`` in them."""
        index = total = 0
        while total < written_tokens:
            if not self.path(index).is_file():
                first = index * self.settings.shard_size
                requests = [self._request(first + offset, False) for offset in range(self.settings.shard_size)]
                self._sample(self.path(index), requests, sampler())
            samples = read_samples(self.path(index))
            total += sum(int(sample.written.sum()) for sample in samples)
            index += 1
            yield samples

    def _sample(self, path: Path, requests: Sequence[Request], sampler: BatchSampler) -> None:
        samples = sampler.run(requests, self.settings.max_answer)
        if len(samples) < len(requests):
            prompts = f"{len(requests) - len(samples)} of {len(requests)} prompts ({self.settings.prompts})"
            message = f"{prompts} have no tokens, or leave no room for an answer within {sampler.capacity} tokens"
            if not samples:
                raise RecipeError(f"{message}: give shorter ones")
            warnings.warn(f"{message}: they are left out", EdgepipeWarning, stacklevel=2)
        write_samples(path, samples)

    def _request(self, index: int, held_out: bool) -> Request:
        settings = self.settings
        draw = random.Random(f"temperature {settings.seed} {index}")
        temperature = 0.0 if held_out else draw.choice(settings.temperatures)
        return Request(self.prompts.turns(index, held_out), temperature, (settings.seed, index, int(held_out)))


def _read_settings(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise EdgepipeError(f"{path} is damaged: give another --work folder, or remove {path.parent}")
    return found
