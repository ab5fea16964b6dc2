"""How much memory LiteRT takes for the activations of one graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgepipe.errors import EngineError

MAPPINGS = Path("/proc/self/maps")


def arena_bytes(interpreter: Any, subgraph: int, model: Path) -> int:
    """Bytes in which the tensors of an allocated graph lie, scratch included; what tensors share counts once.

    Weights do not count: they lie where the kernel has mapped the file ``model``.

    Raises:
        EngineError: the mappings cannot be read, or the interpreter does not tell where its tensors lie.
    """
    weights = _mapped(model)
    places = []
    try:
        for details in interpreter.get_tensor_details(subgraph):
            try:
                tensor = interpreter._interpreter.tensor(interpreter, details["index"], subgraph)
            except ValueError:  # never allocated
                continue
            address = tensor.__array_interface__["data"][0]
            if tensor.nbytes and not any(first <= address < last for first, last in weights):
                places.append((address, address + tensor.nbytes))
    except (AttributeError, TypeError) as error:  # tflite-runtime, whose interpreter says less
        raise EngineError("this LiteRT does not tell where its tensors lie: pip install ai-edge-litert") from error
    if not places:
        raise EngineError(f"{model}: this graph has no memory before it has run")
    total, covered = 0, 0
    for begin, end in sorted(places):
        total += max(0, end - max(begin, covered))
        covered = max(covered, end)
    return total


def _mapped(file: Path) -> list[tuple[int, int]]:
    """Addresses at which ``file`` is mapped into this process."""
    found = []
    try:
        lines = MAPPINGS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise EngineError(f"{MAPPINGS} cannot be read ({error.strerror}): only Linux and Android have it") from error
    for line in lines:
        addresses, *_, path = line.split(maxsplit=5) if line.count(" ") >= 5 else (line, "")
        if path == str(file.resolve()):
            first, last = (int(part, 16) for part in addresses.split("-"))
            found.append((first, last))
    if not found:
        raise EngineError(f"{file} is not mapped into memory: LiteRT has read it instead")
    return found
