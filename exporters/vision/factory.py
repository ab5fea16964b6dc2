"""Torch models of the user's own: a function in a Python file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgepipe.errors import EdgepipeError
from edgepipe.exporters.vision.image_shape import ImageShape, image_shape


def call_factory(reference: str) -> tuple[nn.Module, ImageShape]:
    """The model that ``module.py:factory`` names, in evaluation mode, and the image that it takes.

    ``factory()`` returns the module and an example of its input, a tensor ``[1, C, H, W]``. The file is the user's
    own, and it is run.

    Raises:
        EdgepipeError: no such file or function, it raises, or returns something else.
        UnsupportedModel: the example is no image.
    """
    path, name = Path(reference.partition(":")[0]), reference.partition(":")[2]
    if not path.is_file():
        raise EdgepipeError(f"no file {path}: expected module.py:factory")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    loader = specification.loader
    assert loader is not None
    module = importlib.util.module_from_spec(specification)
    with _imports_from(path.parent):
        _run(lambda: loader.exec_module(module), str(path))
        factory = getattr(module, name, None)
        if not callable(factory):
            raise EdgepipeError(f"{path} has no function {name!r}: expected module.py:factory")
        returned = _run(factory, reference)
    match returned:
        case (nn.Module() as model, torch.Tensor() as example):
            return model.eval(), image_shape(tuple(example.shape), reference)
    raise EdgepipeError(
        f"{reference} returns {_kind(returned)}: expected the model and an example of its input, "
        "for example `return model, torch.zeros(1, 3, 96, 96)`"
    )


@contextmanager
def _imports_from(folder: Path) -> Iterator[None]:
    """Let the file import its neighbours, as Python lets a script."""
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))


def _run(code: Callable[[], Any], name: str) -> Any:
    try:
        return code()
    except (Exception, SystemExit) as error:
        told = " ".join(str(error).split()) or "no message"
        raise EdgepipeError(f"{name} raised {type(error).__name__}: {told}") from error


def _kind(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return f"a {type(value).__name__}"
