"""The kernels as Cortex-M4, M7 and M55 run them: cross-compiled, in QEMU, on what the portable build has answered."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.exporters.vision.graph import Graph, GraphBuilder, Quantization, Tensor
from edgepipe.exporters.vision.operators import Conv2D, DepthwiseConv2D, Operator, Pads

HERE = Path(__file__).parent
RUNTIME = HERE.parents[2] / "runtimes/mcu"
COMPILER = "arm-none-eabi-gcc"
QEMU = "qemu-system-arm"


@dataclass(frozen=True)
class Machine:
    """A machine of QEMU: where code and data go (address, bytes), and ticks of SysTick for each instruction."""

    name: str
    core: tuple[str, ...]
    flash: tuple[int, int]
    ram: tuple[int, int]
    ticks: float


# One instruction is 2**6 ns of the emulated time.
NETDUINO = Machine("netduinoplus2", ("-mcpu=cortex-m4",), (0x08000000, 2**20), (0x20000000, 192 * 1024), 168 * 0.064)
M4 = Machine("mps2-an386", ("-mcpu=cortex-m4",), (0, 2**22), (0x20000000, 2**22), 25 * 0.064)
M7 = Machine("mps2-an500", ("-mcpu=cortex-m7",), (0, 2**22), (0x20000000, 2**22), 25 * 0.064)
M55 = Machine("mps3-an547", ("-mcpu=cortex-m55", "-mfloat-abi=hard"), (0, 2**19), (0x20000000, 2**19), 32 * 0.064)
MACHINES = {machine.name: machine for machine in (NETDUINO, M4, M7, M55)}

# Random operators, so many of each kind, and as many networks.
SEEDS = 40


@pytest.fixture(scope="module")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``firmware(machine, *flags)`` → the driver as an ELF file for a machine."""
    for tool in (COMPILER, QEMU):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")

    def build(machine: Machine, *flags: str) -> Path:
        program = tmp_path_factory.mktemp(machine.name) / "driver.elf"
        regions = zip(("FLASH", "RAM"), (machine.flash, machine.ram), strict=True)
        symbols = [
            f"-Wl,--defsym={name}_{what}={value}"
            for name, region in regions
            for what, value in zip(("BEGIN", "BYTES"), region, strict=True)
        ]
        sources = [HERE / "driver.c", HERE / "cortex_m_io.c", *sorted(RUNTIME.glob("*.c"))]
        command = [COMPILER, "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", *machine.core, "-mthumb", *flags]
        command += [
            f"-I{RUNTIME}",
            f"-DPOOL_BYTES={machine.ram[1] - 32 * 1024}",
            "-nostartfiles",
            "--specs=nosys.specs",
        ]
        command += [*map(str, sources), f"-T{HERE / 'cortex_m.ld'}", *symbols, "-o", str(program)]
        subprocess.run(command, check=True)
        return program

    return build


def emulate(machine: Machine, program: Path, calls: Sequence[Any]) -> tuple[list[list[np.ndarray]], list[float]]:
    """Blocks as each call left them, and the instructions that it took."""
    cases = b"".join(call.encoded() for call in calls) + struct.pack("<i", -1)
    (program.parent / "cases.bin").write_bytes(cases)
    command = [QEMU, "-M", machine.name, "-nographic", "-monitor", "none", "-serial", "none", "-icount", "shift=6"]
    command += ["-semihosting-config", "enable=on,target=native", "-kernel", str(program)]
    subprocess.run(command, cwd=program.parent, check=True, timeout=600)
    answers = (program.parent / "answers.bin").read_bytes()
    blocks, instructions, at = [], [], 0
    for call in calls:
        instructions.append(struct.unpack_from("<I", answers, at)[0] / machine.ticks)
        at += 4
        left = []
        for block in call.blocks:
            left.append(np.frombuffer(answers, block.dtype, block.size, at))
            at += block.nbytes
        blocks.append(left)
    assert at == len(answers)
    return blocks, instructions


@pytest.fixture(scope="module")
def recorded(
    random_node_calls: Any, random_graph: Any, follow_graph: Any, driver: Any
) -> list[tuple[Any, list[np.ndarray]]]:
    """Calls of every kernel and of whole networks, and what the sanitized portable build made of them."""
    calls = [call for seed in range(SEEDS) for call in random_node_calls(random.Random(seed))]
    steps = [(call, driver.run(call)) for call in calls]
    for seed in range(SEEDS):
        graph = random_graph(seed)
        shape = graph.tensors[graph.inputs[0]].shape
        steps += follow_graph(graph, np.random.default_rng(seed).integers(-128, 128, shape, np.int8))
    assert sum(call.residual is not None for call, _ in steps) > 3
    return steps


SLOW_FLAGS = ["-O3", "-Os", "-DEDGEPIPE_PORTABLE", "-DEP_COLUMN_LENGTH=32"]


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("flags", ["-O2", *(pytest.param(flags, marks=pytest.mark.slow) for flags in SLOW_FLAGS)])
def test_processors_agree(name: str, flags: str, firmware: Any, recorded: Any) -> None:
    """No byte differs, in the output or anywhere else in memory."""
    found, _ = emulate(MACHINES[name], firmware(MACHINES[name], flags), [call for call, _ in recorded])
    for (call, expected), left in zip(recorded, found, strict=True):
        for mine, theirs in zip(left, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs.reshape(-1), err_msg=str(call.kernel))


def layer(operator: Operator, shape: tuple[int, ...], filters: tuple[int, ...], axis: int) -> Graph:
    """A layer as quantised networks have them: scales by channel, outputs all over their range."""
    generator, channels = np.random.default_rng(0), filters[axis]
    scales = tuple(float(scale) for scale in np.float32(generator.uniform(0.001, 0.004, channels)))
    spread = float(np.float32(0.0625 * 0.002 * 73 * 73 / 40 * np.sqrt(np.prod(filters) / channels)))
    builder = GraphBuilder()
    image = builder.tensor(Tensor("image", shape, "int8", Quantization((0.0625,), (-128,))))
    data = generator.integers(-127, 128, filters, np.int8)
    quantization = Quantization(scales, (0,) * channels, axis)
    weights = builder.tensor(Tensor("weights", filters, "int8", quantization, data))
    output = builder.node(operator, (image, weights), "output", "int8", Quantization((spread,), (-128,)))
    return builder.build((image,), (output,))


def inverted_residual(size: int, width: int) -> list[tuple[Graph, int | None]]:
    """A block of MobileNetV2 with its expansion of 6, and where its layers write over their input."""
    image, inner = (1, size, size, width), (1, size, size, 6 * width)
    depthwise = DepthwiseConv2D((3, 3), pads=Pads(1, 1, 1, 1))
    return [
        (layer(Conv2D((1, 1)), image, (6 * width, 1, 1, width), 0), None),
        (layer(depthwise, inner, (1, 3, 3, 6 * width), 3), 0),
        (layer(Conv2D((1, 1)), inner, (width, 1, 1, 6 * width), 0), None),
    ]


@pytest.mark.parametrize(("size", "width"), [(12, 16), (8, 32)])
def test_dsp_instructions_pay(size: int, width: int, firmware: Any, calls_of_nodes: Any) -> None:
    """At least 1.5 times fewer instructions than portable C, counted, on a block that is mostly pointwise."""
    calls = calls_of_nodes(inverted_residual(size, width))
    answers, counts = {}, {}
    for flags in ((), ("-DEDGEPIPE_PORTABLE",)):
        answers[flags], each = emulate(M4, firmware(M4, *flags), calls)
        counts[flags] = sum(each)
    dsp, portable = counts.values()
    assert portable >= 1.5 * dsp, (portable, dsp)
    for mine, theirs in zip(*answers.values(), strict=True):
        for left, right in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(left, right)
