"""References to vision models: what each opens, and the one line that a wrong one gets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import EdgepipeError, RecipeError, UnsupportedModel
from edgepipe.exporters.vision.calibration import Normalization
from edgepipe.exporters.vision.source import VisionSource, open_vision

torch = pytest.importorskip("torch")
pytest.importorskip("litert_torch")

FACTORY = """
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    return model, torch.zeros(1, 3, 16, 16)


def alone():
    return net()[0]


def huge():
    return nn.Conv2d(3, 8, 3), torch.zeros(1, 3, 1, 1).expand(1, 3, 8000, 8000)


def grows():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Upsample(scale_factor=1000), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return model, torch.zeros(1, 3, 16, 16)


def batch():
    return net()[0], torch.zeros(2, 3, 16, 16)


def table():
    return nn.Linear(10, 4), torch.zeros(1, 10)


def breaks():
    raise ValueError("no weights\\nfound here")


def leaves():
    raise SystemExit(3)
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FACTORY)
    return path


def message_of(action: Callable[[], Any], kind: type[EdgepipeError] = EdgepipeError) -> str:
    with pytest.raises(kind) as raised:
        action()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_factory(module: Path):
    source = open_vision(f"{module}:net")
    assert [node.operator.name for node in source.graph.nodes] == ["CONV_2D", "MEAN", "FULLY_CONNECTED"]
    assert [tensor.name for tensor in source.graph.tensors if tensor.data is None] == [
        "image",
        "conv_2d_0",
        "mean_1",
        "fully_connected_2",
    ]
    assert source.samples[0].shape == (1, 16, 16, 3)
    assert source.licence is None
    assert source.notes == ("Calibrated on noise: give a calibration folder for a model that is to be used.",)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("{}:absent", "has no function 'absent': expected module.py:factory"),
        ("{}", "has no function '': expected module.py:factory"),
        ("{}:torch", "has no function 'torch'"),
        ("{}x.py:net", "no file "),
        ("{}:breaks", "breaks raised ValueError: no weights found here"),
        ("{}:leaves", "leaves raised SystemExit: 3"),
        ("{}:alone", "returns a Sequential: expected the model and an example of its input"),
        ("{}:huge", "takes an image of 8000 x 8000 pixels with 3 channels: expected at most 4194304 elements"),
        ("{}:grows", "returns a tensor of shape (1, 8, 16000, 16000): expected at most 67108864 elements"),
        ("{}:batch", "takes a tensor (2, 3, 16, 16): expected one image of fixed size, (1, C, H, W)"),
        ("{}:table", "takes a tensor (1, 10): expected one image of fixed size"),
    ],
)
def test_factories_that_give_no_model(module: Path, reference: str, message: str):
    assert message in message_of(lambda: open_vision(reference.format(module)))


def test_a_module_that_cannot_be_run(tmp_path: Path):
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    found = message_of(lambda: open_vision(f"{tmp_path / 'broken.py'}:net"))
    assert "broken.py raised ModuleNotFoundError: No module named 'no_such_package'" in found


def test_a_module_may_import_its_neighbours(tmp_path: Path, module: Path):
    (tmp_path / "other.py").write_text("from mine import net\n")
    assert open_vision(f"{tmp_path / 'other.py'}:net").graph.macs == open_vision(f"{module}:net").graph.macs


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("mobilenet", "no vision model mobilenet: expected one of FILE.tflite, FILE.onnx, FILE.pt2, module.py:factory"),
        ("absent.tflite", "absent.tflite: no such file"),
        ("absent.onnx", "no file absent.onnx"),
        ("absent.pt2", "no file absent.pt2"),
    ],
)
def test_references_that_name_nothing(reference: str, message: str):
    assert message_of(lambda: open_vision(reference)).startswith(message)


@pytest.mark.parametrize("reference", ["digits", "a.tflite", "b.onnx", "c.pt2"])
def test_weights_for_what_has_its_own(reference: str, tmp_path: Path):
    found = message_of(lambda: open_vision(reference, weights=tmp_path / "w.pt"), RecipeError)
    assert f"{reference} has weights of its own" in found


def test_weights_are_loaded(module: Path, tmp_path: Path):
    namespace: dict[str, Any] = {}
    exec(FACTORY, namespace)
    model = namespace["net"]()[0]
    with torch.no_grad():
        model[5].bias.fill_(7)
    torch.save(model.state_dict(), tmp_path / "w.pt")
    graph = open_vision(f"{module}:net", weights=tmp_path / "w.pt").graph
    biases = graph.tensors[graph.nodes[-1].inputs[2]]
    assert biases.data is not None
    assert biases.quantization is not None
    assert np.allclose(biases.data * np.array(biases.quantization.scales), 7, rtol=1e-3)


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"0.weight": 1}, "has no 0.bias"),
        ({"extra": 1}, "has a extra that the model has not"),
    ],
)
def test_weights_of_another_model(module: Path, tmp_path: Path, state: dict[str, int], message: str):
    weights = {name: torch.zeros(size) for name, size in state.items()}
    torch.save(weights, tmp_path / "w.pt")
    found = message_of(lambda: open_vision(f"{module}:net", weights=tmp_path / "w.pt"), UnsupportedModel)
    assert message.split(" that")[0].split("has ")[1] in found
    assert "expected the weights of this model" in found


def test_weights_of_another_shape(module: Path, tmp_path: Path):
    namespace: dict[str, Any] = {}
    exec(FACTORY, namespace)
    state = namespace["net"]()[0].state_dict() | {"5.bias": torch.zeros(9)}
    torch.save(state, tmp_path / "w.pt")
    found = message_of(lambda: open_vision(f"{module}:net", weights=tmp_path / "w.pt"), UnsupportedModel)
    assert "5.bias has shape (9,), expected (4,)" in found


def test_files_that_are_no_weights(module: Path, tmp_path: Path):
    for name, content in (("a.pt", b"junk"), ("b.safetensors", b"\xff" * 40)):
        (tmp_path / name).write_bytes(content)
        found = message_of(lambda path=tmp_path / name: open_vision(f"{module}:net", weights=path), UnsupportedModel)
        assert f"{name} " in found
    torch.save([1, 2], tmp_path / "list.pt")
    found = message_of(lambda: open_vision(f"{module}:net", weights=tmp_path / "list.pt"), UnsupportedModel)
    assert "holds no state dict" in found
    found = message_of(lambda: open_vision(f"{module}:net", weights=tmp_path / "absent.pt"))
    assert "no file" in found


def test_weights_never_run_code(module: Path, tmp_path: Path):
    torch.save({"0.weight": Evil(tmp_path / "evil")}, tmp_path / "w.pt")
    found = message_of(lambda: open_vision(f"{module}:net", weights=tmp_path / "w.pt"), UnsupportedModel)
    assert "holds more than tensors" in found
    assert not (tmp_path / "evil").exists()


def test_a_tflite_file_keeps_its_weights_and_gets_images(data_folder: Path):
    source = open_vision(str(data_folder / "resnet8_cifar10_int8.tflite"))
    (image,) = (source.graph.tensors[index] for index in source.graph.inputs)
    assert image.quantization is not None
    assert source.name == "resnet8_cifar10_int8"
    codes = np.round(source.samples[0] / image.quantization.scale) + image.quantization.zero_point
    assert codes.min() >= -128
    assert codes.max() <= 127
    assert codes.std() > 30


def test_calibration_images_are_seen_as_they_will_be(data_folder: Path, module: Path):
    source = open_vision(f"{module}:net", calibration=data_folder / "cifar10")
    (image,) = (source.graph.tensors[index] for index in source.graph.inputs)
    assert image.quantization is not None
    assert image.quantization.zero_point == -128
    assert image.quantization.scale == pytest.approx(1 / 255)
    assert len(source.samples) == 6
    assert source.notes == ()
    normalised = open_vision(
        f"{module}:net", calibration=data_folder / "cifar10", normalization=Normalization((0.5,), (0.5,))
    )
    (image,) = (normalised.graph.tensors[index] for index in normalised.graph.inputs)
    assert image.quantization is not None
    assert image.quantization.scale == pytest.approx(2 / 255)
    assert np.allclose(normalised.samples[0], source.samples[0] * 2 - 1, atol=1e-6)


def test_a_normalisation_of_two_channels(module: Path):
    two = Normalization((0.5, 0.5), (1.0,))
    found = message_of(lambda: open_vision(f"{module}:net", normalization=two), RecipeError)
    assert found == "mean and std need one value, or one for each of the 3 channels"


@pytest.mark.slow
def test_untrained_models_answer_differently_to_different_images(
    built_in: Callable[[str], VisionSource], tflm: Any, tmp_path: Path
):
    from edgepipe.exporters.vision.write_tflite import write_tflite

    source = built_in("mobilenet_v2:0.35:96")
    assert source.notes[0] == "Untrained: the weights are random (seed 0), the answers mean nothing."
    assert not source.is_trained
    write_tflite({"main": source.graph}, tmp_path / "model.tflite")
    run = tflm(tmp_path / "model.tflite")
    answers = [run((np.round(sample * 255) - 128).astype(np.int8)) for sample in source.samples]
    assert all(answer.std() > 10 for answer in answers)
    assert len({answer.argmax() for answer in answers}) > 1


@pytest.mark.slow
def test_a_built_in_model_takes_the_weights_and_classes_of_a_file(tmp_path: Path):
    from edgepipe.exporters.vision.models.built_in import build

    model, _ = build("resnet8", classes=3)
    torch.save(model.state_dict(), tmp_path / "w.pt")
    source = open_vision("resnet8", weights=tmp_path / "w.pt")
    assert source.graph.tensors[source.graph.outputs[0]].shape == (1, 3)
    assert not any("Untrained" in note for note in source.notes)
    assert source.is_trained
