"""Built-in models by name: ``mobilenet_v2``, ``mobilenet_v2:0.35:144``, ``mcunet:0.5:96:2``, ``resnet8``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from edgepipe.errors import RecipeError
from edgepipe.lazy import load


@dataclass(frozen=True)
class _Entry:
    """A model's class, its usual resolution, and the parameters that its name may carry."""

    target: str
    resolution: int
    parameters: tuple[str, ...] = ("width", "resolution")


_MODELS = {
    "mobilenet_v1": _Entry("edgepipe.exporters.vision.models.mobilenet_v1:MobileNetV1", 224),
    "mobilenet_v2": _Entry("edgepipe.exporters.vision.models.mobilenet_v2:MobileNetV2", 224),
    "mcunet": _Entry("edgepipe.exporters.vision.models.mcunet:McuNet", 176, ("width", "resolution", "blocks")),
    "resnet8": _Entry("edgepipe.exporters.vision.models.resnet8:ResNet8", 32, ("resolution",)),
}
_LIMITS: dict[str, tuple[float, float]] = {"width": (0.05, 4), "resolution": (16, 512), "blocks": (1, 4)}


def build(reference: str, **options: Any) -> tuple[nn.Module, tuple[int, int, int]]:
    """The model that ``NAME[:WIDTH[:RESOLUTION[:BLOCKS]]]`` names, and its image: rows, columns, 3 channels.

    ``options`` go to the model's class (``classes``).

    Raises:
        RecipeError: a parameter is no number, out of range, or one too many.
    """
    name, *texts = reference.split(":")
    entry = _MODELS[name]
    if len(texts) > len(entry.parameters):
        raise RecipeError(f"{reference}: expected at most {':'.join((name, *map(str.upper, entry.parameters)))}")
    values = {key: _number(reference, key, text) for key, text in zip(entry.parameters, texts, strict=False)}
    resolution = int(values.pop("resolution", entry.resolution))
    return load(entry.target)(**values, **options).eval(), (resolution, resolution, 3)


def initialise(model: nn.Module, samples: Sequence[np.ndarray], seed: int) -> None:
    """Give an untrained model weights under which every layer has something to say, the same for the same seed.

    Scales and offsets of the normalisations are drawn at random, and their statistics are those of ``samples``
    (float32 ``[1, H, W, C]``), so that activations neither vanish nor grow with depth.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, generator=generator)
                if module.bias is not None:
                    module.bias.normal_(0, 0.1, generator=generator)
            elif isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.normal_(0, 0.5, generator=generator)
                module.momentum = None  # the statistics are the mean over all batches
        model.train()
        model(torch.from_numpy(np.concatenate(samples)).permute(0, 3, 1, 2))
        model.eval()


def _number(reference: str, key: str, text: str) -> float | int:
    lowest, highest = _LIMITS[key]
    expected = f"{'a number' if key == 'width' else 'a whole number'} from {lowest} to {highest}"
    try:
        value = float(text) if key == "width" else int(text)
    except ValueError:
        raise RecipeError(f"{reference}: the {key} is {text!r}, expected {expected}") from None
    if not lowest <= value <= highest:
        raise RecipeError(f"{reference}: the {key} is {text}, expected {expected}")
    return value
