"""The job behind `edgepipe measure`: latency and memory of a bundle on this device, and whether to trust them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter_ns, process_time

from edgepipe.devices.probes import device_conditions, device_facts, peak_rss_bytes, temperature_c
from edgepipe.devices.readings import read_all
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.cooling import cool_down
from edgepipe.pipeline.gates import Conditions, Moment, judge
from edgepipe.pipeline.measure_decoder import DecoderMeasurement, Plan, Progress
from edgepipe.pipeline.measure_vision import VisionMeasurement, timed_series
from edgepipe.pipeline.report import new_report
from edgepipe.pipeline.report_schema import Report
from edgepipe.pipeline.session import DecodeOptions
from edgepipe.pipeline.statistics import Summary
from edgepipe.pipeline.vision_session import COMPONENT, VisionOptions, decoders


def measure(
    bundle: str | Path,
    options: DecodeOptions | None = None,
    plan: Plan | None = None,
    *,
    vision: VisionOptions | None = None,
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

    text = images = None
    if decoders(opened):
        text = DecoderMeasurement(opened, options or DecodeOptions(), plan, tell)
    if COMPONENT in opened.manifest["components"]:
        images = VisionMeasurement(opened, vision or VisionOptions(), plan.warmup, plan.repeats, tell)
    if plan.cool_to_c is not None:
        cool_down(plan.cool_to_c, plan.cool_limit_s, progress or (lambda step: None))
    device = device_facts()
    before, begin, process_begin = device_conditions(), perf_counter_ns(), process_time()
    for measurement in (text, images):
        if measurement is not None:
            measurement.warm_up()
    # The warm-ups have been through everything but the baseline, which, like the later loads, would add to it.
    memory = read_all({"peak_rss_bytes": peak_rss_bytes})
    decoding = text.measure() if text else None
    seen = images.measure() if images else None
    conditions = Conditions(
        before=before,
        after=device_conditions(),
        elapsed_s=(perf_counter_ns() - begin) / 1e9,
        process_core_s=process_time() - process_begin,
        during=during,
    )
    series: dict[str, Summary] = (decoding.timed_series() if decoding else {}) | (timed_series(seen) if seen else {})
    gates = judge(series, conditions, device["cores"])
    configuration = {**asdict(plan), "prompt_lengths": list(plan.prompt_lengths)}
    configuration |= text.configuration() if text else {}
    configuration |= {"vision": asdict(images.options)} if images else {}
    report = new_report(bundle, opened, gates, device, conditions, configuration, memory)
    if decoding is not None:
        report["load_ms"] = decoding.load_ms
        report["prompts"] = decoding.prompts
        report["cost_curve"] = decoding.cost_curve
    if seen is not None:
        report["vision"] = seen
    return report
