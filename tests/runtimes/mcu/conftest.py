"""Kernels in a process of their own: built for this computer with sanitizers on, and TFLite Micro beside it."""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgepipe.exporters.vision.arena import plan_arena
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.in_place import may_overwrite
from edgepipe.exporters.vision.operators import ShapeError

HERE = Path(__file__).parent
RUNTIME = HERE.parents[2] / "runtimes/mcu"
EXPORTERS = HERE.parents[1] / "exporters/vision"

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
DRIVER = loaded(HERE / "kernel_driver.py")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``operator`` runs once for each kind."""
    if "operator" in metafunc.fixturenames:
        metafunc.parametrize("operator", OPERATORS.GRAPHS)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The portable kernels on this computer, with the address and undefined behaviour sanitizers."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    program = tmp_path_factory.mktemp("host") / "driver"
    sources = [HERE / "driver.c", HERE / "host_io.c", *sorted(RUNTIME.glob("*.c"))]
    warnings = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic")
    subprocess.run([compiler, *warnings, *SANITIZED, f"-I{RUNTIME}", *map(str, sources), "-o", program], check=True)
    running = DRIVER.Driver(program)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def calls_of_nodes() -> Callable[..., list[Any]]:
    """``calls_of_nodes([(graph, in_place), ...])`` → calls on noise for graphs of one node."""

    def build(graphs: Sequence[tuple[Graph, int | None]]) -> list[Any]:
        generator, calls = np.random.default_rng(0), []
        for graph, in_place in graphs:
            shapes = [graph.tensors[index].shape for index in graph.inputs]
            inputs = [generator.integers(-128, 128, shape, np.int8) for shape in shapes]
            calls += DRIVER.node_calls(graph, inputs, in_place)
        return calls

    return build


@pytest.fixture(scope="session")
def follow_graph(driver: Any) -> Callable[..., list[tuple[Any, list[np.ndarray]]]]:
    """``follow_graph(graph, image)`` → every call with what it left in memory, all activations in one arena."""

    def follow(graph: Graph, image: np.ndarray) -> list[tuple[Any, list[np.ndarray]]]:
        arena = plan_arena(graph)
        memory = np.full(arena.nbytes, 85, np.int8)
        begin = arena.tensors[graph.inputs[0]]
        memory[begin : begin + image.nbytes] = image.reshape(-1).view(np.int8)
        steps = []
        for call in DRIVER.arena_calls(graph):
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
def run_node(driver: Any) -> Callable[..., np.ndarray]:
    """``run_node(graph, *inputs, in_place=None)`` → the output of a graph of one node."""

    def run(graph: Graph, *inputs: np.ndarray, in_place: int | None = None) -> np.ndarray:
        output = graph.tensors[graph.outputs[0]]
        left: np.ndarray | None = None
        for call in DRIVER.node_calls(graph, inputs, in_place):
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
def random_node_calls() -> Callable[[random.Random], Iterator[Any]]:
    """``random_node_calls(rng)`` → calls for an operator of each kind, as they are made in place and not."""

    def build(rng: random.Random) -> Iterator[Any]:
        for name in OPERATORS.GRAPHS:
            try:
                graph = OPERATORS.GRAPHS[name](rng)
            except ShapeError:
                continue
            (node,) = graph.nodes
            tensors = [graph.tensors[index] for index in graph.inputs]
            inputs = [OPERATORS.codes(rng, tensor.shape, tensor.dtype) for tensor in tensors]
            yield from DRIVER.node_calls(graph, inputs, None)
            for position, index in enumerate(node.inputs):
                if graph.tensors[index].data is None and may_overwrite(graph, node, index):
                    yield from DRIVER.node_calls(graph, inputs, position)

    return build


@pytest.fixture(scope="session")
def tflm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., np.ndarray]:
    """``tflm(graph, *inputs)`` → the output in TFLite Micro with its reference kernels."""
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    from edgepipe.exporters.vision.write_tflite import write_tflite

    path = tmp_path_factory.mktemp("tflm") / "model.tflite"

    def run(graph: Graph, *inputs: np.ndarray) -> np.ndarray:
        write_tflite({"main": graph}, path)
        interpreter = runtime.Interpreter.from_file(str(path), arena_size=2**22)
        for index, array in enumerate(inputs):
            interpreter.set_input(array, index)
        interpreter.invoke()
        return np.array(interpreter.get_output(0))

    return run
