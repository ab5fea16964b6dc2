"""What a torch model would allocate, found out without allocating it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.sources.weights import one_line
from edgepipe.exporters.vision.image_shape import ImageShape
from edgepipe.runtimes.vision.plan import MAX_TENSOR_ELEMENTS


def check_activation_sizes(model: nn.Module, shape: ImageShape, name: str) -> None:
    """Run the model with tensors that have shapes but no elements.

    Raises:
        UnsupportedModel: one of them would have more than ``MAX_TENSOR_ELEMENTS``, or the model cannot run.
    """
    rows, columns, channels = shape
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), _Bounded(name):
            model(torch.empty(1, channels, rows, columns))
    except UnsupportedModel:
        raise
    except Exception as error:  # the model's own
        found = (1, channels, rows, columns)
        raise UnsupportedModel(f"{name} does not take an image of shape {found}: {one_line(error)}") from error


class _Bounded(TorchDispatchMode):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(returned):
            if isinstance(tensor, torch.Tensor) and tensor.numel() > MAX_TENSOR_ELEMENTS:
                raise UnsupportedModel(
                    f"{self._name}: {func} returns a tensor of shape {tuple(tensor.shape)}: "
                    f"expected at most {MAX_TENSOR_ELEMENTS} elements"
                )
        return returned
