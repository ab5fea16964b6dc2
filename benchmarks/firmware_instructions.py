"""Instructions of one inference on a Cortex-M: portable C, and C with the core's DSP or vector instructions.

Each model's firmware is built for three cores and run whole in QEMU, which counts instructions (`-icount`); its clock
is read before and after every layer. Instructions are not cycles: what waits for memory is not seen, and one MVE
instruction does the work of many.

Run:   make bench-firmware_instructions
       python benchmarks/firmware_instructions.py person.tflite     # other models, as `edgepipe plan` takes them
Needs: `pip install -e '.[dev]'`, make, arm-none-eabi-gcc, qemu-system-arm; a minute or two for each model
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import report, table

from edgepipe.devices.boards import find_board
from edgepipe.exporters.vision.arena import plan_arena
from edgepipe.exporters.vision.firmware import write_firmware
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.source import open_vision
from edgepipe.runtimes.mcu.board import Board

# Images in, outputs and each layer's calls and cycles out, by semihosting.
MAIN = Path(__file__).parents[1] / "tests/exporters/vision/firmware/semihosting.c"
MODELS = ("digits", "mobilenet_v2:0.35:144")

M7 = find_board("mps2-an500")
CORES = (
    replace(M7, name="Cortex-M4", compiler="-mcpu=cortex-m4", qemu="mps2-an386"),
    replace(M7, name="Cortex-M7"),
    replace(find_board("mps3-an547"), name="Cortex-M55"),
)
# An instruction takes 2**6 ns of the emulated time.
INSTRUCTION_US = 0.064
# Of a layer in what semihosting.c writes: its calls, its cycles.
LAYER = np.dtype([("calls", "<u4"), ("cycles", "<u8")])


def instructions(graph: Graph, board: Board, define: str) -> float:
    """Of one inference on noise."""
    image, output = (graph.tensors[index] for index in (graph.inputs[0], graph.outputs[0]))
    with tempfile.TemporaryDirectory() as folder:
        firmware = Path(folder) / "firmware"
        write_firmware(graph, plan_arena(graph), board, firmware)
        make = ["make", "--silent", f"PROGRAM={MAIN}", f"DEFINES={define}"]
        subprocess.run(make, cwd=firmware, check=True)
        limits = np.iinfo(image.dtype)
        noise = np.random.default_rng(0).integers(limits.min, limits.max + 1, image.shape, image.dtype)
        (firmware / "windows.bin").write_bytes(noise.tobytes())
        qemu = ["qemu-system-arm", "-M", str(board.qemu), "-nographic", "-monitor", "none", "-serial", "none"]
        qemu += ["-icount", "shift=6", "-semihosting-config", "enable=on,target=native"]
        subprocess.run([*qemu, "-kernel", "build/firmware.elf"], cwd=firmware, check=True)
        answers = (firmware / "answers.bin").read_bytes()
    cycles = np.frombuffer(answers[output.nbytes : -12], LAYER)["cycles"].sum()
    return float(cycles / board.clock_mhz / INSTRUCTION_US)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, help="what to run (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write raw numbers")
    options = parser.parse_args()
    found: list[dict[str, object]] = []
    rows = []
    for model in options.models:
        graph = open_vision(model).graph
        for core in CORES:
            portable, fast = (instructions(graph, core, define) for define in ("-DEDGEPIPE_PORTABLE", ""))
            found.append({"model": model, "core": core.name, "macs": graph.macs, "portable": portable, "fast": fast})
            figures = (f"{count / 1e6:.1f}" for count in (graph.macs, portable, fast))
            rows.append([model, core.name, *figures, f"{portable / fast:.2f}x"])
    print(table(["model", "core", "MACs, M", "portable C, M", "its own instructions, M", "fewer"], rows))
    report(options, {"instructions": found})


if __name__ == "__main__":
    main()
