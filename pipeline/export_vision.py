"""The vision model of a bundle: read or trained, planned, split, written for every engine, validated."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from edgepipe.devices.boards import find_board
from edgepipe.devices.probes import peak_rss_bytes
from edgepipe.exporters.sources.weights import SourceInfo
from edgepipe.exporters.vision.arena import Arena
from edgepipe.exporters.vision.calibration import Normalization
from edgepipe.exporters.vision.drop_in import DropIn
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.patch_split import split
from edgepipe.exporters.vision.patches import SplitModel
from edgepipe.exporters.vision.receptive_field import split_points
from edgepipe.exporters.vision.search import RESERVE_BYTES, MemoryPlan, kib
from edgepipe.exporters.vision.source import VisionSource, open_vision
from edgepipe.exporters.vision.split_arena import SplitArena
from edgepipe.lazy import load
from edgepipe.pipeline.bundle import sha256
from edgepipe.pipeline.bundle_writer import BundleDraft
from edgepipe.pipeline.tflite_micro import plan_tflite_micro
from edgepipe.pipeline.validate_vision import probe_images, validate_vision
from edgepipe.pipeline.vision_accuracy import accuracy_note, check_accuracy
from edgepipe.pipeline.vision_plan import choose_plan, device_plan
from edgepipe.pipeline.vision_recipe import VisionRecipe
from edgepipe.pipeline.vision_reference import write_reference
from edgepipe.pipeline.vision_session import ENGINE_OF
from edgepipe.runtimes.vision.engine import SPLIT, TAIL, WHOLE, Engine
from edgepipe.runtimes.vision.engines import ENGINES
from edgepipe.runtimes.vision.engines.litert import FILES, STREAMED, LiteRTEngine
from edgepipe.runtimes.vision.plan import write_plan

Progress = Callable[[float, str], None]

# No engine of this computer runs it.
FIRMWARE = "firmware"


def export_vision(recipe: VisionRecipe, draft: BundleDraft, check: bool, progress: Progress) -> None:
    """Write the model into the draft's folder ``vision``, and what there is to say of it into its manifest.

    Raises:
        DoesNotFit: no plan fits the recipe's budget, or the firmware does not fit the board.
        UnsupportedModel: the model cannot be taken as it is.
        RecipeError: the recipe does not fit the model.
        ValidationFailed: the split model differs from the whole one, or an engine strays too far.
    """
    started = time.monotonic()
    progress(0.0, "read the model")
    normalization = None if recipe.mean is None or recipe.std is None else Normalization(recipe.mean, recipe.std)
    source = open_vision(
        recipe.source,
        weights=None if recipe.weights is None else Path(recipe.weights),
        calibration=None if recipe.calibration is None else Path(recipe.calibration),
        normalization=normalization,
        seed=recipe.seed,
    )
    progress(0.4, "plan")
    chosen, sram_bytes = choose_plan(source.graph, recipe)
    model = None if chosen.patches is None else split(source.graph, chosen.patches)
    budget = None if sram_bytes is None else sram_bytes - RESERVE_BYTES
    tflite_micro = plan_tflite_micro(source.graph, chosen, model, budget)
    plan = device_plan(source, recipe, chosen, model, tflite_micro, sram_bytes)
    folder = draft.folder / "vision"
    folder.mkdir()
    write_plan(plan, folder / "plan.json")
    formats = {}
    for index, name in enumerate(recipe.formats):
        progress(0.5 + 0.3 * index / len(recipe.formats), f"write {name}")
        if name == FIRMWARE:
            files = write_firmware_files(source, model, chosen.arena, recipe, sram_bytes, folder / name)
        else:
            files = WRITERS[name](source.graph, model, folder / name)
        if name == "tflite" and tflite_micro.drop_in is not None:
            files |= write_drop_in(tflite_micro.drop_in, folder / name)
        formats[name] = {part: path.relative_to(draft.folder).as_posix() for part, path in files.items()}
    engines = [name for name in recipe.formats if name != FIRMWARE]
    notes = [*source.notes, *_plan_notes(source.graph, chosen, sram_bytes), *tflite_micro.notes()]
    images = probe_images(source, plan)
    if check:
        progress(0.8, "validate")
        stages_at_once = _stages(model, engines)
        with _reference(source.graph, model, tflite_micro.drop_in, folder) as reference, stages_at_once as stages:
            found = validate_vision(reference, folder, plan, images, engines, stages, is_trained=source.is_trained)
            if source.held_out is not None:
                found["accuracy"] = check_accuracy(reference, plan, source.held_out)
                notes.append(accuracy_note(found["accuracy"]))
        draft.manifest["validation"]["vision"] = found
    write_reference(draft.folder / "reference" / "vision.npz", folder, plan, images, engines)
    draft.manifest["components"]["vision"] = {
        "kind": "vision",
        "source": asdict(source_info(recipe, source)),
        "plan": "vision/plan.json",
        "input": list(plan.input.shape),
        "grid": list(plan.grid),
        "memory": asdict(plan.memory),
        "formats": formats,
        "export": {
            "seconds": round(time.monotonic() - started, 3),
            "peak_rss_bytes": peak_rss_bytes(),
            "notes": notes,
        },
    }


def write_tflite_files(graph: Graph, model: SplitModel | None, folder: Path) -> dict[str, Path]:
    """The whole model; and streamed, a signature for each part."""
    from edgepipe.exporters.vision.write_tflite import write_tflite

    folder.mkdir()
    write_tflite({WHOLE: graph}, folder / FILES[WHOLE])
    if model is None:
        return {WHOLE: folder / FILES[WHOLE]}
    write_tflite({**model.tile_graphs, TAIL: model.tail}, folder / STREAMED)
    return {WHOLE: folder / FILES[WHOLE], "streamed": folder / STREAMED}


def write_drop_in(drop_in: DropIn, folder: Path) -> dict[str, Path]:
    """The split model as one graph that takes the whole one's place in TFLite Micro."""
    from edgepipe.exporters.vision.write_tflite import write_tflite

    write_tflite({SPLIT: drop_in.graph}, folder / FILES[SPLIT])
    return {SPLIT: folder / FILES[SPLIT]}


def write_onnx_files(graph: Graph, model: SplitModel | None, folder: Path) -> dict[str, Path]:
    """A file for the whole model and for each part of the streamed one."""
    from edgepipe.exporters.vision.write_onnx import write_onnx

    folder.mkdir()
    files = {part: folder / f"{part}.onnx" for part in _parts(graph, model)}
    for part, part_graph in _parts(graph, model).items():
        write_onnx(part_graph, files[part])
    return files


def write_executorch_files(graph: Graph, model: SplitModel | None, folder: Path) -> dict[str, Path]:
    """One program, with a method for the whole model and for each part of the streamed one."""
    from edgepipe.exporters.vision.write_executorch import write_executorch

    folder.mkdir()
    write_executorch(_parts(graph, model), folder / "model.pte")
    return {"methods": folder / "model.pte"}


def write_firmware_files(
    source: VisionSource,
    model: SplitModel | None,
    arena: Arena | SplitArena,
    recipe: VisionRecipe,
    sram_bytes: int | None,
    folder: Path,
) -> dict[str, Path]:
    """What `make` builds for the recipe's board."""
    from edgepipe.exporters.vision.firmware import write_firmware

    assert recipe.board is not None
    board = find_board(recipe.board)
    write_firmware(model or source.graph, arena, board, folder, source.name, sram_bytes=sram_bytes)
    return {part: folder / name for part, name in {"makefile": "Makefile", "header": "edgepipe_model.h"}.items()}


@contextmanager
def _reference(graph: Graph, model: SplitModel | None, drop_in: DropIn | None, folder: Path) -> Iterator[LiteRTEngine]:
    """The model in LiteRT's reference kernels, also where TFLite is no part of the bundle."""
    if (folder / "tflite").is_dir():
        yield LiteRTEngine(folder, exact=True)
        return
    with tempfile.TemporaryDirectory() as other:
        write_tflite_files(graph, model, Path(other) / "tflite")
        if drop_in is not None:
            write_drop_in(drop_in, Path(other) / "tflite")
        yield LiteRTEngine(Path(other), exact=True)


@contextmanager
def _stages(model: SplitModel | None, formats: Sequence[str]) -> Iterator[dict[str, Engine]]:
    """For each format but TFLite, an engine whose whole model is what the tiles compute, for the image at once."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, stages = Path(temporary), {}
        for name in formats:
            if name != "tflite" and model is not None:
                WRITERS[name](model.stage, None, folder / name)
                stages[name] = load(ENGINES[ENGINE_OF[name]])(folder)
        yield stages


WRITERS: Mapping[str, Callable[[Graph, SplitModel | None, Path], dict[str, Path]]] = {
    "tflite": write_tflite_files,
    "onnx": write_onnx_files,
    "executorch": write_executorch_files,
}


def _parts(graph: Graph, model: SplitModel | None) -> dict[str, Graph]:
    return {WHOLE: graph} if model is None else {WHOLE: graph, **model.tile_graphs, TAIL: model.tail}


def source_info(recipe: VisionRecipe, source: VisionSource) -> SourceInfo:
    """Where the model comes from, with hashes of the files it was read from."""
    model = Path(recipe.source)
    if not model.is_file():
        model = Path(recipe.source.partition(":")[0])  # module.py:factory, or a built-in model's parameters
    read = [model] if recipe.weights is None else [model, Path(recipe.weights)]
    return SourceInfo(
        kind=model.suffix.removeprefix(".") or "built-in",
        name=source.name,
        licence=source.licence,
        files={path.name: sha256(path) for path in read if path.is_file()},
        notes=source.notes,
    )


def _plan_notes(graph: Graph, chosen: MemoryPlan, sram_bytes: int | None) -> list[str]:
    """Why a model has no patches."""
    if chosen.patches is not None:
        return []
    if sram_bytes is not None:
        return [f"Runs as a whole: its activations, {kib(chosen.arena_bytes)}, fit into the {kib(sram_bytes)} of SRAM."]
    if not split_points(graph):
        return ["Runs as a whole: it cannot be split, no layer of it has outputs that come from a part of the image."]
    return ["Runs as a whole: patches would take no less memory, or much more arithmetic."]
