"""Torch models that ``torch.export.save`` wrote (.pt2), read without running any code that a file could carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from edgepipe.errors import EdgepipeError, UnsupportedModel
from edgepipe.exporters.sources.weights import one_line
from edgepipe.exporters.vision.aten_program import AtenProgram
from edgepipe.exporters.vision.image_shape import ImageShape, image_shape
from edgepipe.exporters.vision.program_archive import ProgramArchive, read_archive

# Major version of torch's schema for programs.
_SCHEMA = 8
_FLOAT32 = 7
# Inputs that are stored, and the key of their name among the tensors.
_STORED = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}


def read_exported_program(path: Path) -> tuple[nn.Module, ImageShape]:
    """The program as a module on ``[1, C, H, W]``, and the image that it takes.

    Raises:
        EdgepipeError: no such file.
        UnsupportedModel: it is damaged or too large, of dynamic shape, takes no image, or holds anything but tensors
            and operators of aten that image networks have.
    """
    if not path.is_file():
        raise EdgepipeError(f"no file {path}: expected what torch.export.save wrote")
    try:
        return _module(read_archive(path), str(path))
    except UnsupportedModel:
        raise
    except Exception as error:  # zip, JSON, and any key or type in it
        raise UnsupportedModel(f"{path} cannot be read as an exported program ({one_line(error)})") from error


def _module(archive: ProgramArchive, name: str) -> tuple[nn.Module, ImageShape]:
    version = archive.program["schema_version"]["major"]
    if version != _SCHEMA:
        raise UnsupportedModel(f"{name} is of schema version {version}: expected {_SCHEMA}, save it with this torch")
    graph, signature = (archive.program["graph_module"][key] for key in ("graph", "signature"))
    images, constants = [], {}
    for specification in signature["input_specs"]:
        ((kind, content),) = specification.items()
        if kind in _STORED:
            constants[content["arg"]["name"]] = archive.tensors[content[_STORED[kind]]]
        else:
            images.append(content["arg"])
    outputs = [content["arg"] for entry in signature["output_specs"] for content in entry.values()]
    if any("user_output" not in entry for entry in signature["output_specs"]):
        raise UnsupportedModel(f"{name} changes its own weights: call model.eval() before torch.export")
    if len(images) != 1 or len(outputs) != 1 or not all("as_tensor" in entry for entry in images + outputs):
        found = f"{len(images)} inputs and {len(outputs)} outputs"
        raise UnsupportedModel(f"{name} has {found}: expected one image and one tensor")
    image, output = images[0]["as_tensor"]["name"], outputs[0]["as_tensor"]["name"]
    shape = _image_shape(graph["tensor_values"][image], name)
    return AtenProgram(graph, constants, image, output, name).eval(), shape


def _image_shape(meta: dict[str, Any], name: str) -> ImageShape:
    if any("as_int" not in size for size in meta["sizes"]):
        raise UnsupportedModel(f"{name} has dynamic shapes: export it without dynamic_shapes, for one image")
    if meta["dtype"] != _FLOAT32:
        raise UnsupportedModel(f"{name} takes an image of another type than float32: export a model in float32")
    return image_shape([size["as_int"] for size in meta["sizes"]], name)
