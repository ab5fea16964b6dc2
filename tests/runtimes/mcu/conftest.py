"""Kernels in a process of their own: built for this computer with sanitizers on, and TFLite Micro beside it."""

from __future__ import annotations

import dataclasses
import importlib.util
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgepipe.exporters.vision import kernels
from edgepipe.exporters.vision.arena import plan_arena
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.in_place import line_buffer_bytes, may_overwrite
from edgepipe.exporters.vision.kernel_parameters import kernel_calls, residual_parameters
from edgepipe.exporters.vision.operators import ShapeError
from edgepipe.exporters.vision.write_tflite import write_tflite

HERE = Path(__file__).parent
RUNTIME = HERE.parents[2] / "runtimes/mcu"
EXPORTERS = HERE.parents[1] / "exporters/vision"

# By the numbers that driver.c has for them.
KERNELS = (
    kernels.Conv,
    kernels.Pointwise,
    kernels.Depthwise,
    kernels.AveragePool,
    kernels.MaxPool,
    kernels.Add,
    kernels.Mul,
    kernels.Mean,
    kernels.Softmax,
    kernels.Lookup,
    kernels.Copy,
    kernels.Pad,
    kernels.ResizeNearest,
)
WITH_LINE_BUFFER = (kernels.Depthwise, kernels.AveragePool, kernels.MaxPool)
WITH_RESIDUAL = (kernels.Conv, kernels.Pointwise)

SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def loaded(path: Path) -> ModuleType:
    """A file of the tests as a module: they are no package."""
    name = f"{path.parent.name}_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


OPERATORS = loaded(HERE / "random_operators.py")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``operator`` runs once for each kind."""
    if "operator" in metafunc.fixturenames:
        metafunc.parametrize("operator", OPERATORS.GRAPHS)


@dataclasses.dataclass
class Call:
    """One call of a kernel: what lies in memory, and where its arguments point: (block, offset), or None."""

    kernel: kernels.Kernel
    blocks: list[np.ndarray]
    arguments: list[tuple[int, int] | None]
    residual: kernels.Residual | None = None

    def encoded(self) -> bytes:
        """As driver.c reads it."""
        parts = [_words(KERNELS.index(type(self.kernel))), encoded(self.kernel)]
        parts += [_words(0)] if self.residual is None else [_words(1), encoded(self.residual)]
        parts += [_words(len(self.blocks)), *map(_bytes, self.blocks), _words(len(self.arguments))]
        parts += [_words(-1, 0) if place is None else _words(*place) for place in self.arguments]
        return b"".join(parts)


def encoded(value: Any) -> bytes:
    """A struct's words and arrays, in its order."""
    if dataclasses.is_dataclass(value):
        return b"".join(encoded(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, np.ndarray):
        return _bytes(value)
    return _words(*value) if isinstance(value, tuple) else _words(value)


def _words(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}i", *words)


def _bytes(array: np.ndarray) -> bytes:
    content = array.tobytes()
    return _words(len(content)) + content + bytes(-len(content) % 4)


class Driver:
    """A running driver, started anew when a sanitizer has stopped it."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen([str(self.program)], stdin=pipe, stdout=pipe, stderr=pipe)

    def run(self, call: Call) -> list[np.ndarray]:
        """The blocks as the call left them."""
        if self.process.poll() is not None:
            self.process = self._start()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(call.encoded())
        self.process.stdin.flush()
        answers = [self.process.stdout.read(size) for size in (4, *(block.nbytes for block in call.blocks))]
        if len(answers[-1]) < call.blocks[-1].nbytes:
            pytest.fail(self.process.communicate()[1].decode())
        return [
            np.frombuffer(answer, block.dtype).reshape(block.shape)
            for answer, block in zip(answers[1:], call.blocks, strict=True)
        ]

    def stop(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.process.communicate(_words(-1))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The portable kernels on this computer, with the address and undefined behaviour sanitizers."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    program = tmp_path_factory.mktemp("host") / "driver"
    sources = [HERE / "driver.c", HERE / "host_io.c", *sorted(RUNTIME.glob("*.c"))]
    warnings = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic")
    subprocess.run([compiler, *warnings, *SANITIZED, f"-I{RUNTIME}", *map(str, sources), "-o", program], check=True)
    running = Driver(program)
    yield running
    running.stop()


def node_calls(graph: Graph, inputs: Sequence[np.ndarray], in_place: int | None) -> list[Call]:
    """Calls for the only node of a graph; the output is the last argument of each.

    ``in_place``: the input that the output is written over, where the planner would, or None.
    """
    (node,) = graph.nodes
    output = graph.tensors[node.output]
    given = iter(inputs)
    operands = [
        np.array(next(given) if tensor.data is None else tensor.data)
        for tensor in (graph.tensors[index] for index in node.inputs)
    ]
    calls = []
    for position, kernel in enumerate(kernel_calls(graph, node)):
        if isinstance(kernel, (kernels.Add, kernels.Mul)):
            mine = [0, 1]
        else:
            mine = [position if isinstance(kernel, kernels.Copy) else 0]
        blocks: list[np.ndarray] = [operands[index].reshape(-1).view(np.int8) for index in mine]
        arguments: list[tuple[int, int] | None] = [(index, 0) for index in range(len(mine))]
        if isinstance(kernel, WITH_RESIDUAL):
            arguments.append(None)
        if in_place is not None:
            assert may_overwrite(graph, node, node.inputs[in_place])
            longer = np.full(max(blocks[in_place].size, output.nbytes), 85, np.int8)
            longer[: blocks[in_place].size] = blocks[in_place]
            blocks[in_place] = longer
        if isinstance(kernel, WITH_LINE_BUFFER):
            if in_place is None:
                arguments.append(None)
            else:
                arguments.append((len(blocks), 0))
                blocks.append(np.full(line_buffer_bytes(graph, node), 85, np.int8))
        if in_place is None:
            arguments.append((len(blocks), 0))
            blocks.append(np.full(output.nbytes, 85, np.int8))
        else:
            arguments.append((in_place, 0))
        calls.append(Call(kernel, blocks, arguments))
    return calls


@pytest.fixture(scope="session")
def calls_of_nodes() -> Callable[..., list[Call]]:
    """``calls_of_nodes([(graph, in_place), ...])`` → calls on noise for graphs of one node."""

    def build(graphs: Sequence[tuple[Graph, int | None]]) -> list[Call]:
        generator, calls = np.random.default_rng(0), []
        for graph, in_place in graphs:
            shapes = [graph.tensors[index].shape for index in graph.inputs]
            inputs = [generator.integers(-128, 128, shape, np.int8) for shape in shapes]
            calls += node_calls(graph, inputs, in_place)
        return calls

    return build


def arena_calls(graph: Graph) -> Iterator[Call]:
    """Calls for a whole graph, all in the planner's one arena: their first block, which the caller fills in."""
    arena = plan_arena(graph)
    places = arena.tensors
    convolutions = {conv: add for add, conv in arena.fused.items()}
    for position, node in enumerate(graph.nodes):
        if position in convolutions:
            continue
        convolution, residual = node, None
        if position in arena.fused:
            convolution = graph.nodes[arena.fused[position]]
            residual = residual_parameters(graph, convolution, node)
        constants: list[np.ndarray] = []

        def place(index: int, constants: list[np.ndarray] = constants) -> tuple[int, int]:
            data = graph.tensors[index].data
            if data is None:
                return 0, places[index]
            constants.append(data.reshape(-1).view(np.int8))
            return len(constants), 0

        for number, kernel in enumerate(kernel_calls(graph, convolution)):
            arguments: list[tuple[int, int] | None] = []
            if isinstance(kernel, (kernels.Add, kernels.Mul)):
                arguments += map(place, node.inputs)
            else:
                arguments.append(place(convolution.inputs[number if len(node.inputs) > 1 else 0]))
            if isinstance(kernel, WITH_RESIDUAL):
                other = next((index for index in node.inputs if residual and index != convolution.output), None)
                arguments.append(None if other is None else place(other))
            if isinstance(kernel, WITH_LINE_BUFFER):
                scratch = arena.scratch.get(position)
                arguments.append(None if scratch is None else (0, scratch))
            arguments.append((0, places[node.output]))
            yield Call(kernel, [np.zeros(arena.nbytes, np.int8), *constants], arguments, residual)


@pytest.fixture(scope="session")
def follow_graph(driver: Driver) -> Callable[..., list[tuple[Call, list[np.ndarray]]]]:
    """``follow_graph(graph, image)`` → every call with what it left in memory, all activations in one arena."""

    def follow(graph: Graph, image: np.ndarray) -> list[tuple[Call, list[np.ndarray]]]:
        arena = plan_arena(graph)
        memory = np.full(arena.nbytes, 85, np.int8)
        begin = arena.tensors[graph.inputs[0]]
        memory[begin : begin + image.nbytes] = image.reshape(-1).view(np.int8)
        steps = []
        for call in arena_calls(graph):
            call.blocks[0] = memory
            steps.append((call, driver.run(call)))
            memory = steps[-1][1][0]
        return steps

    return follow


@pytest.fixture(scope="session")
def run_graph(follow_graph: Any) -> Callable[[Graph, np.ndarray], np.ndarray]:
    """``run_graph(graph, image)`` → the output, from the planner's arena."""

    def run(graph: Graph, image: np.ndarray) -> np.ndarray:
        output, begin = graph.tensors[graph.outputs[0]], plan_arena(graph).tensors[graph.outputs[0]]
        memory = follow_graph(graph, image)[-1][1][0]
        return memory[begin : begin + output.nbytes].view(output.dtype).reshape(output.shape)

    return run


@pytest.fixture
def run_node(driver: Driver) -> Callable[..., np.ndarray]:
    """``run_node(graph, *inputs, in_place=None)`` → the output of a graph of one node."""

    def run(graph: Graph, *inputs: np.ndarray, in_place: int | None = None) -> np.ndarray:
        output = graph.tensors[graph.outputs[0]]
        left: np.ndarray | None = None
        for call in node_calls(graph, inputs, in_place):
            place = call.arguments[-1]
            assert place is not None
            if left is not None:  # The calls of a concatenation each write a part.
                call.blocks[place[0]] = left
            left = driver.run(call)[place[0]]
        assert left is not None
        return left[: output.nbytes].view(output.dtype).reshape(output.shape)

    return run


@pytest.fixture(scope="session")
def random_graph() -> Callable[[int], Graph]:
    """That of the exporters' tests: ``random_graph(seed)`` → an int8 network."""
    build: Callable[[int], Graph] = loaded(EXPORTERS / "conftest.py").build_random_graph
    return build


@pytest.fixture(scope="session")
def operators() -> ModuleType:
    """Random graphs of one operator, ``GRAPHS``, and random ``codes``."""
    return OPERATORS


@pytest.fixture(scope="session")
def random_node_calls() -> Callable[[random.Random], Iterator[Call]]:
    """``random_node_calls(rng)`` → calls for an operator of each kind, as they are made in place and not."""

    def build(rng: random.Random) -> Iterator[Call]:
        for name in OPERATORS.GRAPHS:
            try:
                graph = OPERATORS.GRAPHS[name](rng)
            except ShapeError:
                continue
            (node,) = graph.nodes
            tensors = [graph.tensors[index] for index in graph.inputs]
            inputs = [OPERATORS.codes(rng, tensor.shape, tensor.dtype) for tensor in tensors]
            yield from node_calls(graph, inputs, None)
            for position, index in enumerate(node.inputs):
                if graph.tensors[index].data is None and may_overwrite(graph, node, index):
                    yield from node_calls(graph, inputs, position)

    return build


@pytest.fixture(scope="session")
def tflm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., np.ndarray]:
    """``tflm(graph, *inputs)`` → the output in TFLite Micro with its reference kernels."""
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    path = tmp_path_factory.mktemp("tflm") / "model.tflite"

    def run(graph: Graph, *inputs: np.ndarray) -> np.ndarray:
        write_tflite({"main": graph}, path)
        interpreter = runtime.Interpreter.from_file(str(path), arena_size=2**22)
        for index, array in enumerate(inputs):
            interpreter.set_input(array, index)
        interpreter.invoke()
        return np.array(interpreter.get_output(0))

    return run
