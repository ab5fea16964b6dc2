"""A picture of memory over the layers of a model."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

from edgepipe.errors import MissingExtra, RecipeError
from edgepipe.exporters.vision.search import describe, kib
from edgepipe.pipeline.plan import Planning
from edgepipe.pipeline.whole_file import write_whole

FORMATS = (".png", ".svg", ".pdf")


def check_drawable(path: Path) -> None:
    """See before a long search that `draw` will be able to write ``path``.

    Raises:
        RecipeError: its suffix names no format, or its folder is not there.
        MissingExtra: matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise RecipeError(f"{path} names no format to draw in: expected {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise RecipeError(f"no folder {path.parent} to draw {path.name} in: make it first")
    if find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "export")


def draw(planning: Planning, path: Path) -> None:
    """Draw the model as a whole and by its best plan, in the format of the file's suffix.

    Raises:
        EdgepipeError: the file cannot be written; one that was there is as before.
    """
    from matplotlib.figure import Figure

    best = planning.plans[0]
    nodes = [layer.node for layer in planning.layers]
    whole = [layer.whole_bytes / 1024 for layer in planning.layers]
    planned = [layer.planned_bytes / 1024 for layer in planning.layers]
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.bar(nodes, whole, width=1.0, color="lightgrey", label=f"whole: {kib(planning.whole.arena_bytes)}")
    if best.patches is not None:
        axes.bar(nodes, planned, width=0.8, color="tab:blue", label=f"{describe(best)}: {kib(best.arena_bytes)}")
        axes.axvline(best.patches.split - 0.5, color="tab:blue", linestyle=":")
    budget = planning.budget.sram - planning.budget.reserve
    axes.axhline(budget / 1024, color="tab:red", linestyle="--", label=f"for the arena: {kib(budget)}")
    axes.set_xlabel("node")
    axes.set_ylabel("bytes of the arena in use, KiB")
    axes.set_title(planning.source.name)
    axes.legend()
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix[1:].lower(), dpi=120)
    write_whole(path, picture.getvalue(), "--plot")
