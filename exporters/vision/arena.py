"""The static arena of a graph: where every activation lies, and how many bytes that takes.

A buffer holds, one after the other and all at the same offset, the tensors that operators write over each other (see
in_place.py). Buffers that are live at the same step may not overlap. Steps are the nodes' positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from edgepipe.exporters.vision.graph import Graph, Node
from edgepipe.exporters.vision.in_place import fused_residuals, line_buffer_bytes, may_overwrite

ALIGNMENT = 16

# How often a buffer that sticks out is placed earlier, in search of a smaller arena.
_PROMOTIONS = 64


@dataclass(frozen=True)
class Use:
    """``nbytes`` from step ``first`` to step ``last``, both included, for a tensor or for a node's scratch."""

    first: int
    last: int
    nbytes: int
    tensor: int | None = None
    scratch: int | None = None


@dataclass
class Buffer:
    """A place in the arena, and what it holds over time; successive uses meet in one step."""

    uses: list[Use] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of the largest of its uses."""
        return max(use.nbytes for use in self.uses)

    @property
    def steps(self) -> int:
        """Steps it is live for."""
        return self.uses[-1].last - self.uses[0].first + 1


@dataclass(frozen=True)
class Arena:
    """A laid-out arena of ``nbytes``.

    ``offsets``: bytes from its beginning, for each buffer. ``fused``: positions of the Adds that run together with a
    convolution, and of that convolution, which does not run at its own position.
    """

    nbytes: int
    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    fused: dict[int, int]

    @property
    def tensors(self) -> dict[int, int]:
        """Offset of every activation."""
        return {use.tensor: offset for use, offset in self._placed() if use.tensor is not None}

    @property
    def scratch(self) -> dict[int, int]:
        """Offset of the line buffer of every node that needs one."""
        return {use.scratch: offset for use, offset in self._placed() if use.scratch is not None}

    def live_bytes(self) -> list[int]:
        """Bytes in use at each step, from 0."""
        return live_bytes(self.buffers)

    def _placed(self) -> Iterable[tuple[Use, int]]:
        for buffer, offset in zip(self.buffers, self.offsets, strict=True):
            for use in buffer.uses:
                yield use, offset


def plan_arena(graph: Graph, alignment: int = ALIGNMENT) -> Arena:
    """Lay out the arena of a whole graph, its inputs and outputs included."""
    buffers = lifetimes(graph)
    offsets, nbytes = place(buffers, alignment)
    return Arena(nbytes, tuple(buffers), tuple(offsets), fused_residuals(graph))


def lifetimes(graph: Graph, overwrites: Callable[[Graph, Node, int], bool] = may_overwrite) -> list[Buffer]:
    """The buffers of a graph's activations and scratch; those of its inputs come first, in order.

    ``overwrites``: the rule of what is written in place.
    """
    fused = fused_residuals(graph)
    run_at = {conv: add for add, conv in fused.items()}
    last = dict.fromkeys(graph.inputs, 0)
    for position, node in enumerate(graph.nodes):
        last[node.output] = position
        for index in graph.activations(node):
            last[index] = max(last[index], run_at.get(position, position))
    last |= dict.fromkeys(graph.outputs, max(len(graph.nodes) - 1, 0))

    holding: dict[int, Buffer] = {}
    buffers = []

    def start(use: Use) -> Buffer:
        buffers.append(Buffer([use]))
        return buffers[-1]

    for index in graph.inputs:
        holding[index] = start(Use(0, last[index], graph.tensors[index].nbytes, tensor=index))
    for position, node in enumerate(graph.nodes):
        if position in run_at:
            continue
        use = Use(position, last[node.output], graph.tensors[node.output].nbytes, tensor=node.output)
        convolution = graph.nodes[fused[position]] if position in fused else None
        kept = () if convolution is None else (*convolution.inputs, convolution.output)
        overwritten = next(
            (
                index
                for index in graph.activations(node)
                if last[index] == position and index not in (*graph.outputs, *kept) and overwrites(graph, node, index)
            ),
            None,
        )
        if overwritten is None:
            holding[node.output] = start(use)
        else:
            holding[node.output] = holding[overwritten]
            holding[node.output].uses.append(use)
        scratch = 0 if overwritten is None else line_buffer_bytes(graph, node)
        if scratch:
            start(Use(position, position, scratch, scratch=position))
    return buffers


def live_bytes(buffers: Iterable[Buffer], alignment: int = 1) -> list[int]:
    """Bytes in use at each step, from 0; no arena can be smaller than the largest."""
    live: list[int] = []
    for buffer in buffers:
        live += [0] * (buffer.uses[-1].last + 1 - len(live))
        for step in range(buffer.uses[0].first, buffer.uses[-1].last + 1):
            nbytes = max(use.nbytes for use in buffer.uses if use.first <= step <= use.last)
            live[step] += aligned(nbytes, alignment)
    return live


def place(buffers: Sequence[Buffer], alignment: int = ALIGNMENT) -> tuple[list[int], int]:
    """Offsets of buffers, and the bytes of an arena that holds them.

    First fit, in several orders; then the buffer that sticks out is placed earlier, until the arena is no larger than
    what is live at once or nothing helps any more.
    """
    bound = max(live_bytes(buffers, alignment), default=0)
    everything = range(len(buffers))
    orders = [
        sorted(everything, key=lambda i: (-buffers[i].nbytes, -buffers[i].steps)),
        sorted(everything, key=lambda i: (-buffers[i].steps, -buffers[i].nbytes)),
        sorted(everything, key=lambda i: -buffers[i].steps * buffers[i].nbytes),
        sorted(everything, key=lambda i: buffers[i].uses[0].first),
    ]
    best: tuple[list[int], int] | None = None
    for order in orders:
        seen = set()
        for _ in range(_PROMOTIONS):
            offsets = first_fit(buffers, order, alignment)
            ends = [offsets[i] + aligned(buffers[i].nbytes, alignment) for i in everything]
            nbytes = max(ends, default=0)
            if best is None or nbytes < best[1]:
                best = offsets, nbytes
            if best[1] <= bound:
                return best
            highest = ends.index(nbytes)
            order = [highest, *(i for i in order if i != highest)]
            if tuple(order) in seen:
                break
            seen.add(tuple(order))
    assert best is not None
    return best


def first_fit(buffers: Sequence[Buffer], order: Iterable[int], alignment: int) -> list[int]:
    """Each buffer, in this order, at the lowest offset at which it meets none of those before it."""
    offsets = [0] * len(buffers)
    placed: list[tuple[int, Use]] = []
    for index in order:
        # Offsets that some use of a placed buffer forbids: (first forbidden, first free again).
        forbidden = sorted(
            (begin - use.nbytes + 1, begin + other.nbytes)
            for use in buffers[index].uses
            for begin, other in placed
            if other.first <= use.last and use.first <= other.last
        )
        offset = 0
        for begin, end in forbidden:
            if begin <= offset:
                offset = max(offset, aligned(end, alignment))
        offsets[index] = offset
        placed += [(offset, use) for use in buffers[index].uses]
    return offsets


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """``nbytes`` rounded up."""
    return -(-nbytes // alignment) * alignment
