"""What a board's cycles say: time, of a real board; of an emulated one instructions, which are no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgepipe.devices.mcu import LayerCycles
from edgepipe.devices.qemu import INSTRUCTIONS_PER_US

NO_TIME = "the board is emulated: instructions are counted, how long a real one takes for them is not known"
NO_INSTRUCTIONS = "a real board counts cycles of its clock, not instructions"


@dataclass(frozen=True)
class Work:
    """Some work of a board: ``us``, microseconds, is None for an emulated one, ``instructions`` for a real one."""

    us: float | None
    instructions: int | None

    @property
    def count(self) -> float:
        """Of whichever is known."""
        return self.us if self.us is not None else float(self.instructions or 0)

    def __str__(self) -> str:
        if self.us is None:
            return f"{(self.instructions or 0) / 1e6:.2f} million instructions"
        return f"{self.us / 1000:.2f} ms of computing"


@dataclass(frozen=True)
class LayerWork:
    """A layer in one inference, all tiles together: how often it ran, and its share of all layers' work."""

    layer: str
    calls: int
    work: Work
    share: float


@dataclass(frozen=True)
class Counter:
    """Turns cycles into work."""

    clock_mhz: int
    is_emulated: bool

    @property
    def unit(self) -> str:
        """As it stands over a column."""
        return "instructions" if self.is_emulated else "µs"

    def work(self, cycles: int) -> Work:
        """Of so many cycles. QEMU's clock goes by instructions."""
        if self.is_emulated:
            return Work(None, round(cycles * INSTRUCTIONS_PER_US / self.clock_mhz))
        return Work(cycles / self.clock_mhz, None)

    def layers(self, layers: Sequence[LayerCycles]) -> tuple[LayerWork, ...]:
        """Those that ran, in the model's order."""
        total = sum(layer.cycles for layer in layers) or 1
        return tuple(
            LayerWork(layer.name, layer.calls, self.work(layer.cycles), layer.cycles / total)
            for layer in layers
            if layer.calls
        )
