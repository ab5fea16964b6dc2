"""Torch models that ``torch.export.save`` wrote (.pt2), read without running any code that a file could carry."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import nn

from edgepipe.errors import EdgepipeError, UnsupportedModel
from edgepipe.exporters.sources.weights import one_line
from edgepipe.exporters.vision.image_shape import ImageShape, image_shape


def read_exported_program(path: Path) -> tuple[nn.Module, ImageShape]:
    """The program as a module on ``[1, C, H, W]``, and the image that it takes.

    Raises:
        EdgepipeError: no such file.
        UnsupportedModel: it is damaged, of dynamic shape, takes no image, or holds pickles, compiled code, or
            operations other than aten's.
    """
    if not path.is_file():
        raise EdgepipeError(f"no file {path}: expected what torch.export.save wrote")
    try:
        _check_archive(path)
        program = torch.export.load(path)
    except UnsupportedModel:
        raise
    except Exception as error:  # zip, JSON and torch's own reader
        raise UnsupportedModel(f"{path} cannot be read as an exported program ({one_line(error)})") from error
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [values[name] for name in program.graph_signature.user_inputs if isinstance(name, str)]
    if len(inputs) != 1:
        raise UnsupportedModel(f"{path} takes {len(inputs)} inputs: expected one image")
    return program.module(check_guards=False), image_shape(tuple(inputs[0].shape), str(path))


def _check_archive(path: Path) -> None:
    """See that ``torch.export.load`` will find tensors and aten operations, and nothing that it would run.

    It unpickles what is marked so, falls back to full unpickling of sample inputs, loads compiled models, and
    evaluates symbolic sizes.
    """
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len(set(names)) != len(names):
            raise UnsupportedModel(f"{path} holds two files of one name: expected what torch.export.save wrote")
        for name in names:
            _, *parts = PurePosixPath(name).parts
            match parts:
                case ["models", _] if name.endswith(".json"):
                    _check_program(json.loads(archive.read(name)), path)
                case ["data", "weights" | "constants", _] if name.endswith("_config.json"):
                    for tensor, entry in json.loads(archive.read(name))["config"].items():
                        if entry["use_pickle"] or entry["path_name"].startswith(("custom_obj", "opaque_obj")):
                            raise UnsupportedModel(f"{path}: {tensor} is a pickle, which could run code: not read")
                case ["data", "weights" | "constants", _] if name.endswith(".pt"):
                    raise UnsupportedModel(f"{path} is of an older format: save it again with this torch")
                case ["data", "sample_inputs", _]:
                    _check_pickle(archive.read(name), path)
                case ["data", "aotinductor", *_]:
                    raise UnsupportedModel(f"{path} holds compiled code: expected what torch.export.save wrote")


def _check_pickle(content: bytes, path: Path) -> None:
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsupportedModel(
            f"{path}: its sample inputs are a pickle of more than tensors, which could run code: not read"
        ) from error


def _check_program(program: dict[str, Any], path: Path) -> None:
    if '"expr_str":' in json.dumps(program):
        raise UnsupportedModel(f"{path} has dynamic shapes: export it without dynamic_shapes, for one image")
    for node in program["graph_module"]["graph"]["nodes"]:
        if not node["target"].startswith("torch.ops.aten."):
            raise UnsupportedModel(f"{path} has the operation {node['target']}: expected operations of aten")
