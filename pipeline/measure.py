"""The job behind `edgepipe measure`: latency and memory of a bundle on this device, and whether to trust them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns, process_time

from edgepipe.devices.probes import device_conditions, device_facts, peak_rss_bytes, temperature_c
from edgepipe.devices.readings import read_all
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.cooling import cool_down
from edgepipe.pipeline.gates import Conditions, Moment, judge
from edgepipe.pipeline.measure_decoder import DecoderMeasurement, Plan, Progress, measure_in_turns, speedup
from edgepipe.pipeline.measure_vision import VisionMeasurement, timed_series
from edgepipe.pipeline.report import new_report
from edgepipe.pipeline.report_schema import OtherEngine, Report
from edgepipe.pipeline.session import DecodeOptions
from edgepipe.pipeline.statistics import Summary
from edgepipe.pipeline.vision_session import COMPONENT, VisionOptions, decoders


def measure(
    bundle: str | Path,
    options: DecodeOptions | None = None,
    plan: Plan | None = None,
    *,
    vision: VisionOptions | None = None,
    engines: Sequence[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Measure a bundle on this device: its decoders, its vision model, or both.

    Nothing but the product's own loop is timed, on a monotonic clock; memory, temperature and clocks are read
    outside of timed sections. A gate that fails sets ``status`` to ``untrustworthy`` and is no error here.

    Args:
        bundle: folder written by `edgepipe.export`.
        options: how text is decoded; greedy, full cache, no drafter by default.
        plan: what is measured; of a vision model only ``repeats``, ``warmup`` and ``cool_to_c``.
        vision: how images are run.
        engines: names from `edgepipe.runtimes.llm.engines.ENGINES` in which decoders are measured in turns, the first
            being the one that others are compared with; by default that of ``options`` alone.
        progress: called between timed sections with what comes next.

    Returns:
        A JSON-ready report; `edgepipe.pipeline.report.write_report` writes it.

    Raises:
        ContextError: a prompt length does not fit the model's context.
        EdgepipeError: the bundle is damaged, an option is out of range, the device does not cool down.
    """
    opened, plan = Bundle.open(bundle), plan or Plan()
    during: list[Moment] = []

    def tell(step: str) -> None:
        """Take the temperature between timed sections, and pass on what comes next."""
        heat: float | None = read_all({"temperature_c": temperature_c})["temperature_c"]
        during.append(Moment(step=step, elapsed_s=(perf_counter_ns() - begin) / 1e9, temperature_c=heat))
        if progress is not None:
            progress(step)

    texts: list[DecoderMeasurement] = []
    images = None
    if decoders(opened):
        decoding = options or DecodeOptions()
        for engine in engines or (decoding.engine,):
            told = partial(_tell_of, engine, tell) if len(engines) > 1 else tell
            texts.append(DecoderMeasurement(opened, replace(decoding, engine=engine), plan, told))
    if COMPONENT in opened.manifest["components"]:
        images = VisionMeasurement(opened, vision or VisionOptions(), plan.warmup, plan.repeats, tell)
    if plan.cool_to_c is not None:
        cool_down(plan.cool_to_c, plan.cool_limit_s, progress or (lambda step: None))
    device = device_facts()
    before, begin, process_begin = device_conditions(), perf_counter_ns(), process_time()
    for text in texts:
        text.warm_up()
    if images:
        images.warm_up()
    # The warm-ups have been through everything but the baseline, which, like the later loads, would add to it.
    memory = read_all({"peak_rss_bytes": peak_rss_bytes})
    decoded = measure_in_turns(texts) if texts else []
    seen = images.measure() if images else None
    conditions = Conditions(
        before=before,
        after=device_conditions(),
        elapsed_s=(perf_counter_ns() - begin) / 1e9,
        process_core_s=process_time() - process_begin,
        during=during,
    )
    series: dict[str, Summary] = timed_series(seen) if seen else {}
    for results in decoded:
        prefix = f"{results.engine}: " if len(decoded) > 1 else ""
        series |= {prefix + name: summary for name, summary in results.timed_series().items()}
    gates = judge(series, conditions, device["cores"])
    configuration = {**asdict(plan), "prompt_lengths": list(plan.prompt_lengths)}
    configuration |= texts[0].configuration() if texts else {}
    configuration |= {"engines": [results.engine for results in decoded]} if len(decoded) > 1 else {}
    configuration |= {"vision": asdict(images.options)} if images else {}
    report = new_report(bundle, opened, gates, device, conditions, configuration, memory)
    if decoded:
        report["load_ms"] = decoded[0].load_ms
        report["prompts"] = decoded[0].prompts
        report["cost_curve"] = decoded[0].cost_curve
    if len(decoded) > 1:
        report["other_engines"] = [
            OtherEngine(
                engine=results.engine,
                load_ms=results.load_ms,
                prompts=results.prompts,
                cost_curve=results.cost_curve,
                against_first=[speedup(text, texts[0], length) for length in plan.prompt_lengths],
            )
            for results, text in zip(decoded[1:], texts[1:], strict=True)
        ]
    if seen is not None:
        report["vision"] = seen
    return report


def _tell_of(engine: str | None, tell: Progress, step: str) -> None:
    tell(f"{engine}: {step}")
