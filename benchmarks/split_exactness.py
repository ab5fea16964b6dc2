"""Does every plan of every built-in network give the whole network's bytes?

Each network (random weights of a fixed seed), at several resolutions, is split at every point that it can be, on each
of seven grids: square and not, uneven, one row of tiles, tiles of one row. On noise, an image of all lowest codes, one
of all highest and a checkerboard of both, three things are compared with the whole network, byte by byte: the output of
the drop-in graph, the stage stitched from its tiles, and the tail's output on that stage. TFLite Micro and LiteRT's
reference kernels both judge. Anything but 0 differing bytes is a fault, and exit code 1.

Run:   make bench-split_exactness
       python benchmarks/split_exactness.py person.tflite mcunet:0.5:96    # other models, as `edgepipe plan` takes them
Needs: `pip install -e '.[dev]'`; an hour or so of one core
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from common import report, table
from tflite_micro.python.tflite_micro import runtime

from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.patch_split import join, split
from edgepipe.exporters.vision.patches import PatchPlan, SplitModel
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.source import open_vision
from edgepipe.exporters.vision.write_tflite import write_tflite

RESOLUTIONS = {
    "mobilenet_v1:0.25": (16, 33, 64, 90),
    "mobilenet_v2:0.35": (16, 33, 64, 75),
    "mcunet:0.5": (16, 33, 64, 80),
    "resnet8": (16, 24, 32, 45),
}
GRIDS = ((2, 2), (3, 3), (4, 4), (5, 3), (1, 4), (7, 1), (100, 1))
ARENA_BYTES = 64 * 2**20

Model = Callable[[np.ndarray], np.ndarray]
Load = Callable[[Graph, Path], Model]


def in_tflite_micro(graph: Graph, file: Path) -> Model:
    """The graph in TFLite Micro's reference kernels, by way of ``file``."""
    write_tflite({"main": graph}, file)
    interpreter = runtime.Interpreter.from_file(str(file), arena_size=ARENA_BYTES)

    def run(image: np.ndarray) -> np.ndarray:
        interpreter.set_input(image, 0)
        interpreter.invoke()
        return np.array(interpreter.get_output(0))

    return run


def in_litert(graph: Graph, file: Path) -> Model:
    """The graph in LiteRT's reference kernels, by way of ``file``."""
    write_tflite({"main": graph}, file)
    interpreter = Interpreter(
        model_content=file.read_bytes(), num_threads=1, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    (image_details,), (output_details,) = interpreter.get_input_details(), interpreter.get_output_details()

    def run(image: np.ndarray) -> np.ndarray:
        interpreter.set_tensor(image_details["index"], image)
        interpreter.invoke()
        return interpreter.get_tensor(output_details["index"])

    return run


INTERPRETERS: Mapping[str, Load] = {"TFLite Micro": in_tflite_micro, "LiteRT": in_litert}


@dataclass
class Count:
    """Of one network: bytes compared and bytes that differ, by interpreter."""

    plans: int = 0
    compared: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INTERPRETERS, 0))
    differing: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INTERPRETERS, 0))

    def add(self, name: str, found: np.ndarray, expected: np.ndarray) -> None:
        """Compare two arrays of codes."""
        self.compared[name] += expected.size
        self.differing[name] += int(np.count_nonzero(found != expected))


def images_of(graph: Graph) -> list[np.ndarray]:
    """Noise, all lowest, all highest, and a checkerboard of both."""
    tensor = graph.tensors[graph.inputs[0]]
    limits = np.iinfo(tensor.dtype)
    noise = np.random.default_rng(0).integers(limits.min, limits.max, tensor.shape, tensor.dtype, endpoint=True)
    board = np.indices(tensor.shape).sum(axis=0) % 2 == 1
    return [
        noise,
        np.full(tensor.shape, limits.min, tensor.dtype),
        np.full(tensor.shape, limits.max, tensor.dtype),
        np.where(board, limits.min, limits.max).astype(tensor.dtype),
    ]


def sweep(graph: Graph, folder: Path) -> Count:
    """Every split point on every grid, in every interpreter."""
    count, images = Count(), images_of(graph)
    for name, load in INTERPRETERS.items():
        whole = load(graph, folder / "part.tflite")
        outputs = [whole(image) for image in images]
        for point in split_points(graph):
            end = graph.nodes[point - 1].output
            _, height, width, _ = graph.tensors[end].shape
            stage = load(Graph(graph.tensors, graph.nodes[:point], graph.inputs, (end,)), folder / "part.tflite")
            stages = [stage(image) for image in images]
            for rows, columns in dict.fromkeys((min(rows, height), min(columns, width)) for rows, columns in GRIDS):
                model = split(graph, PatchPlan(point, rows, columns))
                joined, tail = (load(part, folder / "part.tflite") for part in (join(model), model.tail))
                tiles = {key: load(tile, folder / "part.tflite") for key, tile in model.tile_graphs.items()}
                count.plans += 1
                for image, expected_stage, expected in zip(images, stages, outputs, strict=True):
                    stitched = stitch(model, tiles, image)
                    count.add(name, joined(image), expected)
                    count.add(name, stitched, expected_stage)
                    count.add(name, tail(stitched), expected)
    count.plans //= len(INTERPRETERS)
    return count


def stitch(model: SplitModel, tiles: Mapping[str, Model], image: np.ndarray) -> np.ndarray:
    """The stage's output, from one window of the image after another."""
    stage = model.tail.tensors[model.tail.inputs[0]]
    stitched = np.zeros(stage.shape, stage.dtype)
    for tile in model.tiles:
        window = image[:, slice(*tile.window.rows), slice(*tile.window.columns)]
        place = slice(None), slice(*tile.output.rows), slice(*tile.output.columns)
        stitched[place] = tiles[tile.graph](np.ascontiguousarray(window))
    return stitched


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [f"{name}:{size}" for name, sizes in RESOLUTIONS.items() for size in sizes]
    parser.add_argument("models", nargs="*", default=every, help="(default: the built-in ones at several resolutions)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write raw numbers")
    options = parser.parse_args()
    rows, raw = [], {}
    for reference in options.models:
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            count = sweep(open_vision(reference).graph, Path(folder))
        raw[reference] = {"plans": count.plans, "compared": count.compared, "differing": count.differing}
        rows.append([Path(reference).name, count.plans, *(f"{bytes_:,}" for bytes_ in count.compared.values())])
        rows[-1] += [f"{bytes_:,}" for bytes_ in count.differing.values()]
        print(f"{reference}: {count.plans} plans, {time.process_time() - started:.0f} s", file=sys.stderr, flush=True)
    names = [f"{what}, {name}" for what in ("bytes compared", "differing") for name in INTERPRETERS]
    print(table(["model", "plans", *names], rows))
    report(options, {"models": raw})
    sys.exit(any(any(found["differing"].values()) for found in raw.values()))


if __name__ == "__main__":
    main()
