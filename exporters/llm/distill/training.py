"""Trains a draft on samples, within a budget; a run that was interrupted goes on where its last checkpoint left it."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from edgepipe.errors import EdgepipeError, RecipeError
from edgepipe.exporters.llm.distill.batches import Batch, batches
from edgepipe.exporters.llm.distill.loss import Acceptance
from edgepipe.exporters.llm.distill.samples import Sample, replaced

CHECKPOINT_SECONDS = 60.0
WARM_UP_STEPS = 100
WEIGHT_DECAY = 0.01
# Peaks: of a draft that starts from its target's layers, and of one that goes on from an earlier training.
RATE, CONTINUED_RATE = 2e-3, 1e-3
# The rate falls to this share of its peak.
FINAL_RATE = 0.02
EVALUATIONS = 20


class TrainableDraft(Protocol):
    """A draft as it is trained."""

    def loss(self, batch: Batch) -> torch.Tensor:
        """What is minimised, a scalar."""
        ...

    def acceptances(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Greedy and sampled acceptance of every step, ``[W]`` each."""
        ...

    def rates(self) -> list[tuple[Iterable[torch.nn.Parameter], float]]:
        """Parameters, and what share of the learning rate they take; those that need no gradient are not trained."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> object: ...


@dataclass(frozen=True)
class TrainingSettings:
    """How a draft is trained.

    Attributes:
        passes: how often every sample is seen.
        minutes: end after so long, however far; the learning rate falls accordingly. None: no limit.
        rate: peak learning rate of AdamW.
        batch_tokens: tokens of a step, padding included.
        seed: of the order.
    """

    passes: float = 5.0
    minutes: float | None = None
    rate: float = RATE
    batch_tokens: int = 512
    seed: int = 0


@dataclass
class TrainingState:
    """How far a training is; all that a checkpoint holds besides weights and moments."""

    turn: int = 0
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    evaluations: list[dict[str, float]] = field(default_factory=list)


class Training:
    """One training of ``draft``.

    With the same samples, settings, threads and machine the result is the same, however often it was interrupted;
    under a limit of minutes it depends on the machine's speed too.
    """

    def __init__(
        self,
        draft: TrainableDraft,
        samples: Sequence[Sample],
        held_out: Sequence[Sample],
        settings: TrainingSettings,
        checkpoint: Path,
        identity: dict[str, Any],
    ) -> None:
        """Prepare, and go back to ``checkpoint`` if there is one.

        ``identity`` is what else the result depends on, JSON-ready: a checkpoint of another is refused.

        Raises:
            RecipeError: the checkpoint is of a training with other settings.
            EdgepipeError: it is damaged.
        """
        self.draft = draft
        self.samples = samples
        self.held_out = held_out
        self.settings = settings
        self.checkpoint = checkpoint
        self.identity = {**identity, **asdict(settings)}
        self.groups = parameter_groups(draft, settings.rate)
        self.peaks = [group["lr"] for group in self.groups]
        self.optimizer = torch.optim.AdamW(self.groups, betas=(0.9, 0.95), fused=True)
        self.total_tokens = settings.passes * sum(sample.tokens.size for sample in samples)
        self.state = TrainingState()
        if checkpoint.is_file():
            self._restore()

    def run(self, progress: Callable[[float, str], None]) -> TrainingState:
        """Train until the budget is spent; ``progress`` is called after every step."""
        started = time.monotonic() - self.state.seconds
        saved = time.monotonic()
        while self._done() < 1:
            first = self.state.step
            order = (self.settings.seed, self.state.turn)
            for index, batch in enumerate(batches(self.samples, self.settings.batch_tokens, order)):
                if index < first:
                    continue
                self._step(batch)
                self.state.step += 1
                self.state.seconds = time.monotonic() - started
                done = self._done()
                if done * EVALUATIONS >= len(self.state.evaluations) + 1:
                    self._evaluate()
                progress(min(done, 1.0), self._line())
                if done >= 1:
                    break
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self.save()
                    saved = time.monotonic()
            else:
                self.state.turn, self.state.step = self.state.turn + 1, 0
        self.save()
        return self.state

    def acceptance(self) -> Acceptance:
        """On the held-out samples."""
        greedy, sampled = [], []
        with torch.no_grad(), low_precision():
            for batch in batches(self.held_out, self.settings.batch_tokens, (0,)):
                results = self.draft.acceptances(batch)
                greedy.append(results[0])
                sampled.append(results[1])
        return Acceptance(torch.cat(greedy).mean().item(), torch.cat(sampled).mean().item())

    def save(self) -> None:
        """Write the checkpoint, which replaces the last one when it is whole."""
        content = {
            "identity": self.identity,
            "state": asdict(self.state),
            "draft": self.draft.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        with replaced(self.checkpoint) as partial, partial.open("wb") as file:
            torch.save(content, file)

    def _restore(self) -> None:
        try:
            with zipfile.ZipFile(self.checkpoint) as archive:  # torch does not look at its checksums
                if damaged := archive.testzip():
                    raise zipfile.BadZipFile(damaged)
            content = torch.load(self.checkpoint, weights_only=True)
            identity = content["identity"]
        except Exception as error:  # torch raises whatever its unpickler meets
            raise EdgepipeError(f"{self.checkpoint} is damaged: remove it to train from the start") from error
        for name, value in self.identity.items():
            if identity.get(name) != value:
                raise RecipeError(
                    f"{self.checkpoint} is of a training with {name} {identity.get(name)!r}, not {value!r}: "
                    "remove it to train from the start"
                )
        self.draft.load_state_dict(content["draft"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.state = TrainingState(**content["state"])

    def _done(self) -> float:
        """The share of the budget that is spent."""
        done = self.state.tokens / self.total_tokens
        return max(done, self.state.seconds / 60 / self.settings.minutes) if self.settings.minutes else done

    def _step(self, batch: Batch) -> None:
        steps = self.state.tokens / self.settings.batch_tokens + 1
        share = min(1.0, steps / WARM_UP_STEPS) * max(FINAL_RATE, 1 - self._done())
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * share
        with low_precision():
            loss = self.draft.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([each for group in self.groups for each in group["params"]], 1.0)
        self.optimizer.step()
        self.state.tokens += batch.size
        self.state.loss = 0.98 * (self.state.loss or loss.item()) + 0.02 * loss.item()

    def _evaluate(self) -> None:
        acceptance = self.acceptance()
        self.state.evaluations.append({"tokens": self.state.tokens, "loss": self.state.loss, **asdict(acceptance)})

    def _line(self) -> str:
        state = self.state
        line = f"{state.tokens / 1e6:.2f} M tokens, {state.tokens / state.seconds:.0f}/s, loss {state.loss:.3f}"
        if state.evaluations:
            line += f", held-out acceptance {state.evaluations[-1]['greedy']:.3f}"
        return line


def parameter_groups(draft: TrainableDraft, rate: float) -> list[dict[str, Any]]:
    """What is trained, as AdamW takes it, at the peak rate: matrices, and norms and biases, which do not decay."""
    groups = []
    for parameters, share in draft.rates():
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for matrices, decay in ((True, WEIGHT_DECAY), (False, 0.0)):
            if chosen := [parameter for parameter in trained if (parameter.ndim > 1) == matrices]:
                groups.append({"params": chosen, "lr": rate * share, "weight_decay": decay})
    return groups


def low_precision() -> AbstractContextManager[Any]:
    """bfloat16 for matrix products where the processor multiplies it, else nothing."""
    capabilities = torch.cpu.get_capabilities()
    if any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16")):
        return torch.autocast("cpu", torch.bfloat16)
    return nullcontext()
