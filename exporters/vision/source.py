"""Where a vision model comes from: its reference, as the user types it, to an int8 graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgepipe.errors import EdgepipeError, MissingExtra, RecipeError, UnsupportedModel
from edgepipe.exporters.vision.calibration import Normalization, read_samples, smooth_noise
from edgepipe.exporters.vision.fold_pads import fold_pads
from edgepipe.exporters.vision.graph import Graph, Tensor
from edgepipe.exporters.vision.held_out import HeldOut
from edgepipe.exporters.vision.image_shape import ImageShape, check_image_size
from edgepipe.exporters.vision.read_tflite import graph_from_tflite, read_tflite

if TYPE_CHECKING:
    from torch import nn

BUILT_IN = ("mobilenet_v1", "mobilenet_v2", "mcunet", "resnet8")
_EXPECTED = f"FILE.tflite, FILE.onnx, FILE.pt2, module.py:factory, digits, {', '.join(BUILT_IN)}"
# Images drawn where no calibration folder is given.
_NOISE_SAMPLES = 8


@dataclass(frozen=True, eq=False)
class VisionSource:
    """An int8 model and what is known of it.

    ``graph`` takes one image as NHWC, gives one tensor and is checked. ``licence`` is an SPDX identifier, ``labels``
    the names of the classes; both None where unknown. ``notes`` are sentences that a reader of the export report should
    know.
    ``samples`` are the images it was calibrated with, or others of the kind it takes: real values, float32
    ``[1, H, W, C]``. ``is_trained`` is False where the weights are known to be random.
    ``held_out`` are images to measure its accuracy with, None where there are none.
    """

    graph: Graph
    name: str
    licence: str | None
    labels: tuple[str, ...] | None
    notes: tuple[str, ...]
    samples: tuple[np.ndarray, ...]
    is_trained: bool = True
    held_out: HeldOut | None = None


@dataclass(frozen=True)
class Calibration:
    """Where calibration images come from: ``folder``, or noise drawn with ``seed``; and what the model sees of them.

    ``normalization`` None stands for ``pixel / 255``, or, for a model that is int8 already, for the pixels as codes.
    """

    folder: Path | None = None
    normalization: Normalization | None = None
    seed: int = 0

    def samples(self, shape: ImageShape, to_real: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, ...]:
        """The images, float32 ``[1, H, W, C]``."""
        if self.normalization is not None and not self.normalization.fits(shape[2]):
            raise RecipeError(f"mean and std need one value, or one for each of the {shape[2]} channels")
        if self.folder is not None:
            return read_samples(self.folder, shape, to_real)
        return smooth_noise(shape, _NOISE_SAMPLES, self.seed, to_real)


def open_vision(
    reference: str,
    *,
    weights: Path | None = None,
    calibration: Path | None = None,
    normalization: Normalization | None = None,
    seed: int = 0,
) -> VisionSource:
    """The model that ``reference`` names, as an int8 graph.

    ``weights``: a state dict (.pt, .safetensors) for a factory or a built-in model, whose weights are random without
    it. ``calibration``: a folder of images or .npy files. ``normalization``: what the model expects of an image's
    pixels, by default ``pixel / 255``. ``seed`` draws random weights and images.

    Raises:
        EdgepipeError: the reference, or a file it needs, cannot be found or read.
        UnsupportedModel: the model cannot be taken as it is.
        RecipeError: a built-in model's parameter is out of its range, or weights are given to what has its own.
    """
    images = Calibration(calibration, normalization, seed)
    name, suffix = reference.partition(":")[0], Path(reference).suffix.lower()
    if weights is not None and (reference == "digits" or suffix in _FILES):
        raise RecipeError(f"{reference} has weights of its own: leave {weights} out")
    if suffix != ".tflite":
        _require_torch()
    if suffix in _FILES:
        return _FILES[suffix](Path(reference), images)
    if reference == "digits":
        if calibration is not None:
            raise RecipeError(f"digits is calibrated with images of its own: leave {calibration} out")
        return _from_digits(seed)
    if name in BUILT_IN:
        return _from_built_in(reference, weights, images)
    if Path(name).suffix == ".py":
        return _from_factory(reference, weights, images)
    raise EdgepipeError(f"no vision model {reference}: expected one of {_EXPECTED}")


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as missing:
        raise MissingExtra("torch", "export") from missing


def _from_tflite(path: Path, images: Calibration) -> VisionSource:
    graph = fold_pads(read_tflite(path))
    shape, to_real = _input(graph, str(path))
    samples = images.samples(shape, images.normalization or to_real)
    return VisionSource(graph, path.stem, None, None, (), samples)


def _from_onnx(path: Path, images: Calibration) -> VisionSource:
    from edgepipe.exporters.vision.from_onnx import read_onnx

    return _from_torch(*read_onnx(path), path.stem, images)


def _from_exported_program(path: Path, images: Calibration) -> VisionSource:
    from edgepipe.exporters.vision.exported_program import read_exported_program

    return _from_torch(*read_exported_program(path), path.stem, images)


def _from_factory(reference: str, weights: Path | None, images: Calibration) -> VisionSource:
    from edgepipe.exporters.vision.factory import call_factory
    from edgepipe.exporters.vision.state_dict import load_weights, read_weights

    model, shape = call_factory(reference)
    if weights is not None:
        load_weights(model, read_weights(weights), weights)
    return _from_torch(model, shape, reference, images)


def _from_built_in(reference: str, weights: Path | None, images: Calibration) -> VisionSource:
    from edgepipe.exporters.vision.models.built_in import build, initialise
    from edgepipe.exporters.vision.state_dict import load_weights, read_weights

    if weights is None:
        model, shape = build(reference)
        samples = images.samples(shape, images.normalization or Normalization())
        initialise(model, samples[:_NOISE_SAMPLES], images.seed)
        note = f"Untrained: the weights are random (seed {images.seed}), the answers mean nothing."
        return replace(_from_torch(model, shape, reference, images, "Apache-2.0", (note,)), is_trained=False)
    state = read_weights(weights)
    last = state.get("classifier.linear.weight")
    model, shape = build(reference) if last is None or last.dim() != 2 else build(reference, classes=len(last))
    load_weights(model, state, weights)
    return _from_torch(model, shape, reference, images)


def _from_digits(seed: int) -> VisionSource:
    from edgepipe.exporters.vision.digits import LABELS, LICENCE, calibration_images, held_out, train_digits

    samples = calibration_images()
    graph = _quantize(train_digits(seed), "digits", samples, Normalization())
    notes = (f"Trained at export (seed {seed}).",)
    return VisionSource(graph, "digits", LICENCE, LABELS, notes, samples, held_out=held_out())


def _from_torch(
    model: nn.Module,
    shape: ImageShape,
    name: str,
    images: Calibration,
    licence: str | None = None,
    notes: tuple[str, ...] = (),
) -> VisionSource:
    from edgepipe.exporters.vision.activation_sizes import check_activation_sizes

    check_activation_sizes(model, shape, name)
    normalization = images.normalization or Normalization()
    samples = images.samples(shape, normalization)
    if images.folder is None:
        notes = (*notes, "Calibrated on noise: give a calibration folder for a model that is to be used.")
    return VisionSource(_quantize(model, name, samples, normalization), name, licence, None, notes, samples)


def _quantize(model: nn.Module, name: str, samples: tuple[np.ndarray, ...], normalization: Normalization) -> Graph:
    from edgepipe.exporters.vision.quantize_torch import quantize_torch

    content = quantize_torch(model, samples, name, _input_range(samples, normalization))
    try:
        graph = _renamed(fold_pads(graph_from_tflite(content)))
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{name}: {error}") from error
    _input(graph, name)
    return graph


def _renamed(graph: Graph) -> Graph:
    """Activations called after the nodes that write them, instead of after the converter's own inner modules."""
    names = {node.output: f"{node.operator.name.lower()}_{position}" for position, node in enumerate(graph.nodes)}
    names |= dict.fromkeys(graph.inputs, "image")
    tensors = (replace(tensor, name=names.get(index, tensor.name)) for index, tensor in enumerate(graph.tensors))
    return replace(graph, tensors=tuple(tensors))


def _input_range(samples: tuple[np.ndarray, ...], normalization: Normalization) -> tuple[float, float]:
    """The range of an image's real values, so that codes are pixels; arrays that leave it have their own."""
    lowest, highest = float(min(map(np.min, samples))), float(max(map(np.max, samples)))
    black, white = normalization.range
    return (black, white) if black <= lowest and highest <= white else (lowest, highest)


def _input(graph: Graph, name: str) -> tuple[ImageShape, Callable[[np.ndarray], np.ndarray]]:
    """Shape of the one image that the graph takes, and the real values that pixels from 0 to 255 stand for.

    Raises:
        UnsupportedModel: it takes anything else, or has several outputs.
    """
    inputs = [graph.tensors[index] for index in graph.inputs]
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        found = ", ".join(str(tensor.shape) for tensor in inputs)
        raise UnsupportedModel(f"{name} takes {found}: expected one image (1, rows, columns, channels)")
    if len(graph.outputs) != 1:
        raise UnsupportedModel(f"{name} has {len(graph.outputs)} outputs: expected one")
    _, rows, columns, channels = inputs[0].shape
    check_image_size((rows, columns, channels), name)
    return (rows, columns, channels), lambda pixels: _real_values(inputs[0], pixels)


def _real_values(tensor: Tensor, pixels: np.ndarray) -> np.ndarray:
    if tensor.quantization is None:
        return Normalization()(pixels)
    lowest = np.iinfo(tensor.dtype).min
    return (tensor.quantization.scale * (pixels + lowest - tensor.quantization.zero_point)).astype(np.float32)


_FILES: dict[str, Callable[[Path, Calibration], VisionSource]] = {
    ".tflite": _from_tflite,
    ".onnx": _from_onnx,
    ".pt2": _from_exported_program,
}
