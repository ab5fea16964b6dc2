"""The job behind `edgepipe run --verify`: replay the bundle's golden outputs on this device."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from edgepipe.errors import BundleError, ValidationFailed
from edgepipe.pipeline.reference import Feed, GoldenCase, read_reference, reference_file, teacher_forced
from edgepipe.pipeline.session import CacheOptions, Session
from edgepipe.pipeline.vision_session import decoders
from edgepipe.runtimes.llm.spec import DecoderSpec


@dataclass(frozen=True)
class Outcome:
    """What replaying showed.

    Attributes:
        components: components replayed.
        engine: that replayed them.
        cases: prompts replayed.
        tokens: greedy tokens compared.
        near_ties: tokens that differ while both logits lie within the tolerance of each other.
        max_abs_logit: largest difference from a golden logit.
    """

    components: tuple[str, ...]
    engine: str
    cases: int
    tokens: int
    near_ties: int
    max_abs_logit: float

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {"verified": True, **asdict(self)}

    def summary(self) -> str:
        """One line for a person."""
        return (
            f"verified {' and '.join(self.components)} with {self.engine}: {self.tokens} greedy tokens of {self.cases} "
            f"prompts as exported ({self.near_ties} near-ties), logits within {self.max_abs_logit:.2g}"
        )


def verify_reference(session: Session) -> Outcome:
    """Replay ``reference/`` through the engine, teacher-forced: each golden token is fed, whatever this device chose.

    Raises:
        BundleError: the bundle has no golden outputs, or they are damaged.
        ValidationFailed: a logit or a greedy token differs by more than the golden file's tolerance.
    """
    cases = tokens = near_ties = 0
    worst = 0.0
    components = decoders(session.bundle)
    for component in components:
        name = reference_file(component, session.engine)
        if name not in session.bundle.manifest["files"]:
            raise BundleError(f"{session.bundle.folder} has no {name} to replay: export the bundle again")
        manifest = session.bundle.manifest["components"][component]
        spec = DecoderSpec.from_json(manifest["spec"])
        parts = [component, "target"] if manifest["kind"] == "head" else [component]
        golden = read_reference(session.bundle.path(name), spec.vocab_size)
        vocabulary = session.output_vocabulary(component)
        for number, case in enumerate(golden.cases):
            length = len(case.prompt_ids) + len(case.greedy_ids)
            cached = [session.cached(part, CacheOptions(), length) for part in parts]
            where = f"{component}, golden prompt {number}"
            ties, difference = _replay(teacher_forced(vocabulary, *cached), case, golden.tolerance, where)
            cases, tokens = cases + 1, tokens + len(case.greedy_ids)
            near_ties, worst = near_ties + ties, max(worst, difference)
    return Outcome(components, session.engine, cases, tokens, near_ties, worst)


def _replay(feed: Feed, case: GoldenCase, tolerance: float, where: str) -> tuple[int, float]:
    """Near-ties and largest logit difference of one case."""
    logits = feed(case.prompt_ids)
    top = zip(case.top_ids, case.top_values, strict=True)
    difference = max(abs(float(logits[token]) - value) for token, value in top)
    if not difference <= tolerance:  # neither is NaN
        raise ValidationFailed(
            f"{where}: a logit differs by {difference:.3g} from the golden one, expected at most {tolerance:g}: "
            "this device's engine computes otherwise, update it or report it"
        )
    near_ties = 0
    for step, expected in enumerate(case.greedy_ids):
        gap = float(logits.max() - logits[expected])
        if not gap <= tolerance:
            raise ValidationFailed(
                f"{where}: greedy token {step} is {int(logits.argmax())}, expected {expected} "
                f"({gap:.3g} below it, tolerance {tolerance:g})"
            )
        near_ties += gap > 0
        logits = feed([expected])
    return near_ties, difference
