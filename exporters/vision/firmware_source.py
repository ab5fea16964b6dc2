"""A model as C source: model.c with the calls of one inference from top to bottom, model.h with its sizes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edgepipe.exporters.vision.arena import Arena
from edgepipe.exporters.vision.c_constants import Constants, function_name
from edgepipe.exporters.vision.call_list import Argument, Call, call_list
from edgepipe.exporters.vision.graph import Graph, Tensor
from edgepipe.exporters.vision.kernel_shapes import copy_box
from edgepipe.exporters.vision.kernels import Copy
from edgepipe.exporters.vision.layer_names import CUT, STITCH, LayerNames, layer_name, shape
from edgepipe.exporters.vision.patches import Region, SplitModel, Tile
from edgepipe.exporters.vision.split_arena import SplitArena

_NAME_LENGTH = 40
_POINTER_BYTES = 4


@dataclass(frozen=True)
class FirmwareSource:
    """``files`` by name. ``constant_bytes``: of weights and layers in flash. ``layers``: that a profile tells apart.
    ``takes_image``: whether its one patch is the image. ``hash``: of all that it computes."""

    files: dict[str, str]
    constant_bytes: int
    layers: int
    takes_image: bool
    hash: str


@dataclass(frozen=True)
class _Patch:
    """One call of edgepipe_push_patch: the C function that computes it, and where its window lies in the arena."""

    function: str
    offset: int
    nbytes: int


def whole_source(graph: Graph, arena: Arena, name: str) -> FirmwareSource:
    """The source of a model that runs at once: its one patch is the image."""
    writer = _Writer(LayerNames(graph, [(graph, arena, 0)]))
    writer.function("whole", _described(graph), writer.calls(graph, arena))
    writer.function("ep_tail", "Nothing is left to do.", [])
    image = graph.inputs[0]
    patches = [_Patch("whole", arena.tensors[image], graph.tensors[image].nbytes)]
    return writer.source(name, graph, arena.nbytes, patches, arena.tensors[graph.outputs[0]])


def split_source(model: SplitModel, arena: SplitArena, name: str) -> FirmwareSource:
    """The source of a split model: a patch is a window of the image, or, if the arena holds the image, all of it."""
    parts = [(graph, arena.tiles[key], 0) for key, graph in model.tile_graphs.items()]
    parts.append((model.tail, arena.tail, model.plan.split))
    extras = (STITCH,) if arena.image is None else (CUT, STITCH)
    writer = _Writer(LayerNames(model.whole, parts, extras))
    for key, graph in model.tile_graphs.items():
        writer.function(key, _described(graph), writer.calls(graph, arena.tiles[key]))
    whole, (image,) = model.whole, model.whole.inputs
    if arena.image is None:
        patches = []
        for tile in model.tiles:
            function = f"patch_{tile.row}_{tile.column}"
            writer.function(function, _extent(tile.window, "the image"), writer.tile(model, arena, tile))
            graph = model.tile_graphs[tile.graph]
            offset = arena.tiles[tile.graph].tensors[graph.inputs[0]]
            patches.append(_Patch(function, offset, graph.tensors[graph.inputs[0]].nbytes))
    else:
        lines = [line for tile in model.tiles for line in writer.tile(model, arena, tile)]
        writer.function("stage", "Every tile, from its window of the image.", lines)
        patches = [_Patch("stage", arena.image, whole.tensors[image].nbytes)]
    writer.function("ep_tail", _described(model.tail), writer.calls(model.tail, arena.tail))
    output = arena.tail.tensors[model.tail.outputs[0]]
    return writer.source(name, whole, arena.nbytes, patches, output)


class _Writer:
    """Collects functions and the constants they use."""

    def __init__(self, layers: LayerNames) -> None:
        self.constants = Constants()
        self.layers = layers
        self._functions: list[str] = []

    def function(self, name: str, description: str, lines: Iterable[str]) -> None:
        """Add a function without arguments."""
        kind = "void" if name.startswith("ep_") else "static void"
        body = "".join(f"    {line}\n" for line in lines)
        self._functions.append(f"/* {description} */\n{kind} {name}(void)\n{{\n{body}}}\n")

    def calls(self, graph: Graph, arena: Arena) -> list[str]:
        """The calls that compute a graph, each with its layer before it."""
        lines = []
        for call in call_list(graph, arena):
            layer = f"EP_LAYER({self.layers.of(graph, call)}); /* {layer_name(graph, call.nodes)} */"
            lines += [layer, self._call(call)]
        return lines

    def tile(self, model: SplitModel, arena: SplitArena, tile: Tile) -> list[str]:
        """Compute a tile and put it into the stage's output."""
        graph, places = model.tile_graphs[tile.graph], arena.tiles[tile.graph].tensors
        source, output = graph.tensors[graph.inputs[0]], graph.tensors[graph.outputs[0]]
        stage = model.tail.tensors[model.tail.inputs[0]]
        lines = []
        if arena.image is not None:
            image = model.whole.tensors[model.whole.inputs[0]]
            window = copy_box(image.shape, _begin(tile.window), source.shape, (0,) * 4, source.shape)
            lines += self._copy(CUT, window, arena.image, places[graph.inputs[0]])
        stitch = copy_box(output.shape, (0,) * 4, stage.shape, _begin(tile.output), output.shape)
        return [*lines, f"{tile.graph}();", *self._copy(STITCH, stitch, places[graph.outputs[0]], arena.stage)]

    def _copy(self, layer: str, box: Copy, source: int, target: int) -> list[str]:
        call = f"ep_copy(&{self.constants.struct(box)}, {_place(source)}, {_place(target)});"
        return [f"EP_LAYER({self.layers.extra(layer)}); /* {layer} */", call]

    def _call(self, call: Call) -> str:
        arguments = [f"&{self.constants.struct(call.kernel)}", *map(self._argument, call.inputs)]
        if call.takes_residual:
            arguments.append("NULL" if call.residual is None else f"&{self.constants.struct(call.residual)}")
            arguments.append(self._argument(call.added))
        if call.takes_line_buffer:
            arguments.append(self._argument(call.line_buffer))
        return f"{function_name(call.kernel)}({', '.join([*arguments, _place(call.output)])});"

    def _argument(self, argument: Argument) -> str:
        if argument is None:
            return "NULL"
        return self.constants.array(argument, "operand") if isinstance(argument, np.ndarray) else _place(argument)

    def source(
        self, name: str, graph: Graph, arena_bytes: int, patches: Sequence[_Patch], output: int
    ) -> FirmwareSource:
        """All files. ``graph``: the whole model; ``output``: where its output lies."""
        title = _words(name)
        rows = "".join(f"    {{{patch.function}, {patch.offset}, {patch.nbytes}}},\n" for patch in patches)
        names = self.layers.names
        named = "".join(f'    "{layer}",\n' for layer in names)
        program = "\n".join(
            [
                f"/* {title}, as edgepipe lays it out. An inference runs ep_tiles, at the end of this file, in order,",
                " * each after its window of the image was written to its place in the arena, and then ep_tail. Every",
                " * tensor has its place there; constants.h has the layers' parameters and the weights. */",
                '#include "constants.h"',
                '#include "model_parts.h"\n',
                "_Alignas(16) int8_t ep_arena[EDGEPIPE_ARENA_BYTES];\n",
                *self._functions,
                "/* What runs, and where its window is written, of how many bytes. */",
                f"const struct ep_tile ep_tiles[EDGEPIPE_TILES] = {{\n{rows}}};\n",
                "#ifdef EDGEPIPE_PROFILE",
                "/* The numbers of EP_LAYER, with the shapes that the whole model has. */",
                f"const char *const edgepipe_layer_names[EDGEPIPE_LAYERS] = {{\n{named}}};",
                "#endif\n",
            ]
        )
        constants = f'/* {title}: parameters and weights. */\n#include "kernels.h"\n\n{self.constants.text}'
        digest = hashlib.sha256((constants + program).encode()).hexdigest()
        values = {
            "MODEL_NAME": f'"{title}"',
            "MODEL_HASH": f'"{digest}"',
            "TILES": len(patches),
            "LARGEST_PATCH_BYTES": max(patch.nbytes for patch in patches),
            "ARENA_BYTES": arena_bytes,
            "OUTPUT_OFFSET": output,
            "LAYERS": len(names),
            **_tensor_values("INPUT", graph.tensors[graph.inputs[0]]),
            **_tensor_values("OUTPUT", graph.tensors[graph.outputs[0]]),
        }
        defines = "".join(f"#define EDGEPIPE_{key} {value}\n" for key, value in values.items())
        header = f"/* {title}. */\n#ifndef MODEL_H\n#define MODEL_H\n\n{defines}\n#endif\n"
        files = {"model.h": header, "model.c": program, "constants.h": constants}
        named_bytes = sum(len(layer) + 1 + _POINTER_BYTES for layer in names)
        takes_image = len(patches) == 1 and patches[0].nbytes == graph.tensors[graph.inputs[0]].nbytes
        return FirmwareSource(files, self.constants.nbytes + named_bytes, len(names), takes_image, digest)


def _tensor_values(name: str, tensor: Tensor) -> dict[str, object]:
    assert tensor.quantization is not None  # else the kernels would have refused it
    return {
        f"{name}_BYTES": tensor.nbytes,
        f"{name}_UNSIGNED": int(tensor.dtype == "uint8"),
        f"{name}_SCALE": repr(tensor.quantization.scale),
        f"{name}_ZERO_POINT": f"({tensor.quantization.zero_point})",
    }


def _begin(region: Region) -> tuple[int, int, int, int]:
    return 0, region.rows.begin, region.columns.begin, 0


def _place(offset: int) -> str:
    return f"ep_arena + {offset}"


def _extent(region: Region, what: str) -> str:
    (top, bottom), (left, right) = region.rows, region.columns
    return f"Rows {top} to {bottom - 1} and columns {left} to {right - 1} of {what}."


def _described(graph: Graph) -> str:
    source, output = (graph.tensors[index] for index in (graph.inputs[0], graph.outputs[0]))
    return f"From {shape(source)} to {shape(output)}."


def _words(name: str) -> str:
    """A name that can stand in a C string or comment, whatever the model's file says."""
    return re.sub(r"[^\w.:-]+", "_", name, flags=re.ASCII)[-_NAME_LENGTH:] or "model"
