"""The job behind `edgepipe measure --device`, for microcontrollers: what a firmware takes for an image, and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns, process_time
from typing import Any

import numpy as np

from edgepipe.devices.boards import find_board
from edgepipe.devices.mcu import BoardAnswer, Mcu
from edgepipe.devices.probes import device_conditions, device_facts
from edgepipe.devices.qemu import qemu_version
from edgepipe.devices.readings import Unreadable, read_all
from edgepipe.errors import BundleError, EdgepipeError
from edgepipe.pipeline.board_gates import judge_board
from edgepipe.pipeline.board_report import (
    BoardLayer,
    BoardMemoryReport,
    BoardOutput,
    BoardReport,
    BoardSeries,
    BoardStep,
)
from edgepipe.pipeline.board_work import NO_INSTRUCTIONS, NO_TIME, Counter
from edgepipe.pipeline.build_firmware import build_firmware, bundle_firmware, linker_map
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.gates import Conditions
from edgepipe.pipeline.linker_map import LinkedMemory, read_linker_map
from edgepipe.pipeline.report import new_report
from edgepipe.pipeline.report_schema import Report
from edgepipe.pipeline.run_on_board import EMULATED, open_board
from edgepipe.pipeline.statistics import Series, series
from edgepipe.pipeline.termination import termination_cleans_up
from edgepipe.pipeline.vision_reference import read_golden
from edgepipe.pipeline.vision_session import vision_component
from edgepipe.runtimes.mcu.board import Board
from edgepipe.runtimes.vision.plan import VisionPlan, read_plan

# The engine whose golden outputs are those of TensorFlow Lite's reference kernels.
_EXACT = "litert"


def measure_board(
    bundle: str | Path,
    device: str,
    *,
    baud: int | None = None,
    repeats: int = 5,
    warmup: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Measure a bundle's firmware on the bundle's first golden image.

    Of a real board, time: by its own clock what it computes, by this computer's what comes with the line. Of an
    emulated one, instructions; the report's ``status`` is at best ``emulated``.

    Args:
        bundle: folder written by `edgepipe.export` with firmware.
        device: as `edgepipe.pipeline.run_on_board.run_on_board` takes it, as is ``baud``.
        repeats, warmup: inferences that count, and before those.
        progress: called with what comes next.

    Raises:
        As `run_on_board` does.
    """
    opened, tell = Bundle.open(bundle), progress or (lambda step: None)
    plan = read_plan(opened.path(vision_component(opened)["plan"]))
    board = find_board(bundle_firmware(opened).board)
    image, is_emulated = read_golden(opened, "images", plan.input)[0], device.startswith(EMULATED)
    before, begin, process_begin = _board_conditions(), perf_counter_ns(), process_time()
    tell("build, start" if is_emulated else "connect")
    with termination_cleans_up(), open_board(opened, device, baud) as mcu:
        runs = []
        for number in range(warmup + repeats):
            tell(f"repetition {number + 1 - warmup} of {repeats}" if number >= warmup else "warm-up")
            runs.append(_run(mcu, plan, image))
        found = _Findings(opened, plan, board, device, Counter(mcu.firmware.clock_mhz, is_emulated), mcu, runs, warmup)
        measured = found.report()
    conditions = Conditions(
        before=before,
        after=_board_conditions(),
        elapsed_s=(perf_counter_ns() - begin) / 1e9,
        process_core_s=process_time() - process_begin,
    )
    configuration = {"repeats": repeats, "warmup": warmup, "device": device, "baud": baud}
    memory = read_all({"peak_rss_bytes": _of_no_process})
    device_ = _board_facts(board, is_emulated)
    report = new_report(bundle, opened, judge_board(measured), device_, conditions, configuration, memory)
    if is_emulated and report["status"] == "ok":
        report["status"] = "emulated"
    report["board"] = measured
    return report


@dataclass(frozen=True, eq=False)
class _Run:
    """One inference: what the board says, the host's time for it, what went over the line."""

    answer: BoardAnswer
    ms: float
    line: dict[str, int]


def _run(mcu: Mcu, plan: VisionPlan, image: np.ndarray) -> _Run:
    before, begin = asdict(mcu.line.statistics), perf_counter_ns()
    answer = mcu.run(plan, image)
    ms = (perf_counter_ns() - begin) / 1e6
    return _Run(answer, ms, {name: count - before[name] for name, count in asdict(mcu.line.statistics).items()})


@dataclass(frozen=True, eq=False)
class _Findings:
    """All runs on a board, the ``warmup`` ones first."""

    bundle: Bundle
    plan: VisionPlan
    board: Board
    device: str
    counter: Counter
    mcu: Mcu
    runs: list[_Run]
    warmup: int

    def report(self) -> BoardReport:
        """What a report has of them."""
        counted, has_time = self.runs[self.warmup :], not self.counter.is_emulated
        latency = self._series([run.ms for run in self.runs])
        compute_ms = [sum(run.answer.step_cycles) / self.counter.clock_mhz / 1000 for run in self.runs]
        transfer = self._series([run.ms - ms for run, ms in zip(self.runs, compute_ms, strict=True)])
        reasons = dict.fromkeys(("us", "latency_ms", "transfer_ms"), NO_TIME)
        return BoardReport(
            device=self.device,
            is_emulated=self.mcu.firmware.is_emulated,
            clock_mhz=self.counter.clock_mhz,
            grid=list(self.plan.grid),
            compute=self._work([sum(run.answer.step_cycles) for run in self.runs]),
            steps=[
                BoardStep(step=name, **self._work([run.answer.step_cycles[index] for run in self.runs]))
                for index, name in enumerate(self._step_names())
            ],
            layers=self._layers(),
            latency_ms=latency if has_time else None,
            transfer_ms=transfer if has_time else None,
            line=[run.line for run in counted],
            memory=self._memory(counted[-1].answer),
            output=self._output([run.answer.output for run in counted]),
            unreadable={"instructions": NO_INSTRUCTIONS} if has_time else reasons,
        )

    def _series(self, values: list[float]) -> Series:
        return series(values[: self.warmup], values[self.warmup :])

    def _work(self, cycles: list[int]) -> BoardSeries:
        counts = self._series([self.counter.work(count).count for count in cycles])
        is_emulated = self.counter.is_emulated
        return BoardSeries(us=None if is_emulated else counts, instructions=counts if is_emulated else None)

    def _step_names(self) -> list[str]:
        if self.plan.stage is None:
            return ["image"]
        if self.plan.mode == "resident":
            return ["all patches", "tail"]
        return [*(f"patch {row},{column}" for row, column in np.ndindex(self.plan.grid)), "tail"]

    def _layers(self) -> list[BoardLayer]:
        cycles = np.array([[layer.cycles for layer in run.answer.layers] for run in self.runs])
        counted = cycles[self.warmup :].sum(axis=0)
        return [
            BoardLayer(
                layer=layer.name,
                calls=layer.calls,
                share=float(counted[index] / counted.sum()),
                **self._work(cycles[:, index].tolist()),
            )
            for index, layer in enumerate(self.runs[-1].answer.layers)
            if layer.calls
        ]

    def _memory(self, last: BoardAnswer) -> BoardMemoryReport:
        linked = read_all({"linked": self._linked})
        place = linked["linked"]
        keys = ("linked_arena_bytes", "linked_ram_bytes", "linked_flash_bytes")
        return BoardMemoryReport(
            planned_arena_bytes=self.plan.memory.planned_bytes,
            firmware_arena_bytes=last.memory.arena_bytes,
            linked_arena_bytes=place and place.arena_bytes,
            painted_arena_bytes=last.memory.arena_peak_bytes,
            stack_bytes=last.memory.stack_bytes,
            painted_stack_bytes=last.memory.stack_peak_bytes,
            linked_ram_bytes=place and place.ram_bytes,
            linked_flash_bytes=place and place.flash_bytes,
            sram_bytes=self.board.sram,
            flash_bytes=self.board.flash,
            unreadable=dict.fromkeys(keys, linked["unreadable"]["linked"]) if place is None else {},
        )

    def _linked(self) -> LinkedMemory:
        """Of the firmware as it is built here: its model has the hash of the one that runs on the board."""
        try:
            return read_linker_map(linker_map(build_firmware(self.bundle, bundle_firmware(self.bundle))))
        except EdgepipeError as error:
            raise Unreadable(str(error)) from error

    def _output(self, outputs: list[np.ndarray]) -> BoardOutput:
        differences = read_all({"max_difference": lambda: self._differences(outputs)})
        found = differences["max_difference"]
        return BoardOutput(
            is_always_the_same=all(np.array_equal(output, outputs[0]) for output in outputs),
            differing_bytes=None if found is None else int(np.count_nonzero(found)),
            max_difference=None if found is None else int(found.max()),
            unreadable=differences["unreadable"],
        )

    def _differences(self, outputs: list[np.ndarray]) -> np.ndarray:
        """Codes between all outputs and the golden one."""
        try:
            golden = read_golden(self.bundle, _EXACT, self.plan.output)[0]
        except BundleError as error:
            raise Unreadable(str(error)) from error
        return np.abs(np.stack(outputs).astype(np.int32) - golden)


def _board_facts(board: Board, is_emulated: bool) -> dict[str, Any]:
    """What `device_facts` says of a computer, said of a board; the computer that drives it under ``host``."""

    def unknown() -> None:
        raise Unreadable("a microcontroller runs its firmware alone")

    def emulator() -> str:
        if not is_emulated:
            raise Unreadable("the board is a real one")
        return qemu_version()

    known = {
        "board": board.title,
        "cpu_model": f"{board.core} at {board.clock_mhz} MHz",
        "cpu_features": board.compiler.split(),
        "architecture": "arm",
        "cores": 1,
        "usable_cores": 1,
        "memory_bytes": board.sram,
        "flash_bytes": board.flash,
        "packages": {},
    }
    nothing = dict.fromkeys(("os", "kernel", "platform", "python"), unknown)
    return {**known, **read_all({**nothing, "emulator": emulator}), "host": device_facts()}


def _board_conditions() -> dict[str, Any]:
    """Those that `device_conditions` reads of a computer: a firmware tells none."""

    def unknown() -> None:
        raise Unreadable("the firmware does not tell")

    names = device_conditions().keys() - {"unreadable"}
    return read_all(dict.fromkeys(sorted(names), unknown))


def _of_no_process() -> int:
    raise Unreadable("a microcontroller has no processes; its arena and stack are under board")
