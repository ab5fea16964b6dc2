"""Calls of kernels, as driver.c reads them: what lies in memory, where arguments point, and a running driver."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.exporters.vision import kernels
from edgepipe.exporters.vision.arena import plan_arena
from edgepipe.exporters.vision.call_list import Argument, call_list
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.in_place import line_buffer_bytes, may_overwrite
from edgepipe.exporters.vision.kernel_parameters import kernel_calls

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


def arena_calls(graph: Graph) -> Iterator[Call]:
    """Calls for a whole graph, all in the planner's one arena: their first block, which the caller fills in."""
    arena = plan_arena(graph)
    for call in call_list(graph, arena):
        blocks = [np.zeros(arena.nbytes, np.int8)]

        def place(argument: Argument, blocks: list[np.ndarray] = blocks) -> tuple[int, int] | None:
            if not isinstance(argument, np.ndarray):
                return None if argument is None else (0, argument)
            blocks.append(argument.reshape(-1).view(np.int8))
            return len(blocks) - 1, 0

        arguments = [*call.inputs, *[call.added] * call.takes_residual, *[call.line_buffer] * call.takes_line_buffer]
        yield Call(call.kernel, blocks, [place(argument) for argument in (*arguments, call.output)], call.residual)
