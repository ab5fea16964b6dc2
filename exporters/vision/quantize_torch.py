"""Torch to int8 TFLite: litert-torch converts, ai-edge-quantizer calibrates and rounds (int8 weights per channel)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgepipe.errors import MissingExtra, UnsupportedModel
from edgepipe.exporters.sources.quiet import no_output
from edgepipe.exporters.sources.weights import one_line, require_finite
from edgepipe.exporters.vision.drop_transposes import drop_transposes

try:
    import torch
    from torch import nn

    with no_output():
        import litert_torch
        from ai_edge_quantizer import quantizer, recipe
except ImportError as missing:
    raise MissingExtra(missing.name or "litert-torch", "export") from missing

_SIGNATURE, _INPUT = "serving_default", "args_0"  # as litert-torch names them


def quantize_torch(
    model: nn.Module, samples: Sequence[np.ndarray], name: str, input_range: tuple[float, float] | None = None
) -> bytes:
    """The bytes of an int8 TFLite file that takes the model's image as int8 NHWC and returns int8 codes.

    ``model`` is in evaluation mode and maps float32 ``[1, C, H, W]`` to one tensor; ``samples`` are images to
    calibrate with, float32 ``[1, H, W, C]``; ``name`` stands in messages. ``input_range`` is the lowest and the
    highest value that the input's codes stand for, by default those of the samples.

    Raises:
        UnsupportedModel: weights or outputs are not finite, the model does not take such an image, or has an
            operation that cannot be converted.
    """
    _check_weights(model, name)
    image = torch.from_numpy(samples[0]).permute(0, 3, 1, 2).contiguous()
    _check_output(model, image, name)
    with tempfile.TemporaryDirectory() as folder, no_output():
        path = Path(folder) / "model.tflite"
        try:
            channels_last = litert_torch.to_channel_last_io(model, args=[0])
            litert_torch.convert(channels_last, (torch.from_numpy(samples[0]),), strict_export=False).export(str(path))
            path.write_bytes(drop_transposes(path.read_bytes()))
        except Exception as error:  # torch.export and MLIR raise whatever their many passes do
            raise UnsupportedModel(f"{name}: litert-torch cannot convert it ({one_line(error)})") from error
        return _quantize(path, samples, name, input_range)


def _check_weights(model: nn.Module, name: str) -> None:
    for tensor, values in model.state_dict().items():
        if values.is_floating_point() and values.numel():
            require_finite(values.detach().float().numpy(), tensor, name)


def _check_output(model: nn.Module, image: torch.Tensor, name: str) -> None:
    try:
        with torch.no_grad():
            output = model(image)
    except Exception as error:  # the user's own module
        shape = tuple(image.shape)
        raise UnsupportedModel(f"{name} does not take an image of shape {shape}: {one_line(error)}") from error
    if not isinstance(output, torch.Tensor):
        raise UnsupportedModel(f"{name} returns a {type(output).__name__}: expected one tensor, for example the logits")
    require_finite(output.float().numpy(), "the output", name)


def _quantize(path: Path, samples: Sequence[np.ndarray], name: str, input_range: tuple[float, float] | None) -> bytes:
    job = quantizer.Quantizer(str(path), recipe.static_wi8_ai8())
    try:
        ranges = job.calibrate({_SIGNATURE: [{_INPUT: sample} for sample in samples]}, num_threads=os.cpu_count() or 1)
        if input_range is not None:
            lowest, highest = (np.full((1, 1, 1, 1), limit, np.float32) for limit in input_range)
            ranges[f"{_SIGNATURE}_{_INPUT}"].update(min=lowest, max=highest)
        return bytes(job.quantize(ranges, enable_progress_report=False).quantized_model)
    except Exception as error:  # the quantizer has no errors of its own
        raise UnsupportedModel(f"{name}: ai-edge-quantizer cannot quantise it ({one_line(error)})") from error
