"""What `edgepipe measure` does with a vision model: latency of an image and of its patches, memory planned and seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter_ns

import numpy as np

from edgepipe.devices.readings import Unreadable, read_all
from edgepipe.errors import EngineError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.report_schema import Activations, Part, Vision
from edgepipe.pipeline.statistics import Summary, series
from edgepipe.pipeline.vision_reference import read_images
from edgepipe.pipeline.vision_session import VisionOptions, VisionSession
from edgepipe.runtimes.vision.engine import TAIL, WHOLE, Engine
from edgepipe.runtimes.vision.engines.litert import LiteRTEngine
from edgepipe.runtimes.vision.patch_stream import run_streamed, run_whole

Progress = Callable[[str], None]

# A sample is the mean of as many images as take this long: one alone is over before the clock of a core has settled.
SAMPLE_NS = 100_000_000


class VisionMeasurement:
    """One bundle's vision model in one engine: loads, warms up, times. The image is the bundle's first golden one."""

    def __init__(self, bundle: Bundle, options: VisionOptions, warmup: int, repeats: int, progress: Progress) -> None:
        """See that all is there; nothing is timed yet.

        Raises:
            BundleError: the bundle has no vision model, or no golden image, or is damaged.
            MissingExtra: the engine is not installed.
        """
        self.bundle, self.options, self.warmup, self.repeats = bundle, options, warmup, repeats
        self.progress = progress
        self.session = VisionSession(bundle, options)
        self.image = read_images(self.session)[0]
        self.ways = [False, True] if self.session.plan.stage is not None else [True]

    def warm_up(self) -> None:
        """Load for the first time, and run once and again."""
        self.first_load_ms = self._load_ms()
        self.progress("vision: warm-up")
        begin = perf_counter_ns()
        self._run(self.session.engine, whole=self.ways[0])
        self.runs = max(1, SAMPLE_NS // (perf_counter_ns() - begin))
        self.warm = {whole: [self._time(whole)[0] for _ in range(self.warmup)] for whole in self.ways}

    def measure(self) -> Vision:
        """Time everything. Patch by patch and at once take turns."""
        taken: dict[bool, list[float]] = {whole: [] for whole in self.ways}
        parts: dict[str, list[float]] = defaultdict(list)
        for repetition in range(1, self.repeats + 1):
            self.progress(f"vision: repetition {repetition} of {self.repeats}")
            for whole in self.ways:
                image_ms, part_ms = self._time(whole)
                taken[whole].append(image_ms)
                for part, milliseconds in part_ms.items():
                    parts[part].append(milliseconds)
        load_ms = [self._load_ms() for _ in range(self.repeats)]
        plan = self.session.plan
        return Vision(
            engine=self.session.engine_name,
            grid=list(plan.grid),
            images_per_sample=self.runs,
            load_ms=series([self.first_load_ms], load_ms),
            streamed_ms=series(self.warm[False], taken[False]) if False in taken else None,
            whole_ms=series(self.warm[True], taken[True]),
            parts=[
                Part(
                    part=part,
                    tiles=sum(tile.graph == part for tile in plan.tiles) if part != TAIL else None,
                    **series([], parts[part]),
                )
                for part in (*plan.parts, TAIL)
                if part in parts
            ],
            activations=self._activations(),
        )

    def _load_ms(self) -> float:
        """Load plan and engine afresh, all files that an image needs included."""
        self.progress("vision: load")
        del self.session
        begin = perf_counter_ns()
        self.session = VisionSession(self.bundle, self.options)
        self._run(self.session.engine, whole=self.ways[0])
        return (perf_counter_ns() - begin) / 1e6

    def _time(self, whole: bool) -> tuple[float, dict[str, float]]:
        """Milliseconds for an image, and for each call of every part, means of one sample."""
        engine = _TimedEngine(self.session.engine)
        begin = perf_counter_ns()
        for _ in range(self.runs):
            self._run(engine, whole=whole)
        image_ms = (perf_counter_ns() - begin) / 1e6 / self.runs
        return image_ms, {part: float(np.mean(times)) / 1e6 for part, times in engine.taken.items() if part != WHOLE}

    def _run(self, engine: Engine, *, whole: bool) -> np.ndarray:
        return (run_whole if whole else run_streamed)(engine, self.session.plan, self.image)

    def _activations(self) -> Activations:
        """Memory as planned, and as the engine has allocated it."""
        engine, plan = self.session.engine, self.session.plan
        if isinstance(engine, LiteRTEngine) and not engine.exact:
            engine = LiteRTEngine(self.session.folder, threads=1)  # The fast kernels do not tell.
        for whole in self.ways:
            self._run(engine, whole=whole)

        def seen(part: str) -> int:
            try:
                return engine.activation_bytes(part)
            except EngineError as error:
                raise Unreadable(str(error)) from error

        def seen_streamed() -> int:
            if plan.stage is None:
                raise Unreadable("the model runs at once")
            held = plan.stage.nbytes + (plan.input.nbytes if plan.mode == "resident" else 0)
            return max(held + max(map(seen, plan.parts)), seen(TAIL))

        readings = read_all({"seen_bytes": seen_streamed, "seen_whole_bytes": lambda: seen(WHOLE)})
        return Activations(
            planned_bytes=plan.memory.planned_bytes,
            planned_whole_bytes=plan.memory.whole_bytes,
            budget_bytes=plan.memory.budget_bytes,
            seen_bytes=readings["seen_bytes"],
            seen_whole_bytes=readings["seen_whole_bytes"],
            unreadable=readings["unreadable"],
        )


class _TimedEngine:
    """An engine that keeps how long each call took, in nanoseconds, by part."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.taken: dict[str, list[int]] = defaultdict(list)

    def run(self, part: str, image: np.ndarray) -> np.ndarray:
        begin = perf_counter_ns()
        output = self.engine.run(part, image)
        self.taken[part].append(perf_counter_ns() - begin)
        return output

    def activation_bytes(self, part: str) -> int:
        return self.engine.activation_bytes(part)


def timed_series(vision: Vision) -> dict[str, Summary]:
    """The series that the gates look at, by name; those of parts are parts of them."""
    timed = {"vision load": vision["load_ms"]["statistics"], "image at once": vision["whole_ms"]["statistics"]}
    if vision["streamed_ms"] is not None:
        timed["image patch by patch"] = vision["streamed_ms"]["statistics"]
    return timed
