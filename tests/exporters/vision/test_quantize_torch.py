"""Torch modules as int8 graphs, against the modules themselves and TFLite Micro."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.fold_pads import fold_pads
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.read_tflite import graph_from_tflite
from edgepipe.exporters.vision.write_tflite import write_tflite

torch = pytest.importorskip("torch")
pytest.importorskip("litert_torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from edgepipe.exporters.vision.quantize_torch import quantize_torch  # noqa: E402

Load = Callable[[Path], Callable[[np.ndarray], np.ndarray]]

SIZE = 16


class Net(nn.Module):
    """Layers that a test's ``body`` puts together: of 8 channels, ``b``, ``unpadded`` and ``c`` of stride 2."""

    def __init__(self, body: Callable[[Net, Any], Any]) -> None:
        super().__init__()
        self.body = body
        self.a = nn.Conv2d(3, 8, 3, 1, 1)
        self.b = nn.Conv2d(8, 8, 3, 2, 1)
        self.unpadded = nn.Conv2d(8, 8, 3, 2)
        self.c = nn.Conv2d(8, 8, 1, 2)
        self.depthwise = nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.linear = nn.Linear(8, 5)
        self.wide = nn.Linear(8 * SIZE * SIZE // 4, 5)

    def forward(self, image: Any) -> Any:
        return self.body(self, image)


def below_and_right(image: Any) -> Any:
    return functional.pad(image, (0, 1, 0, 1))


def padded_beside_a_shortcut(net: Net, image: Any) -> Any:
    x = torch.relu(net.a(image))
    return net.linear((net.unpadded(below_and_right(x)) + net.c(x)).mean((2, 3)))


def symmetric_beside_a_shortcut(net: Net, image: Any) -> Any:
    x = torch.relu(net.a(image))
    return net.linear(torch.relu(net.b(x) + net.c(x)).mean((2, 3)))


def residual_then_padded(net: Net, image: Any) -> Any:
    x = functional.relu6(net.a(image))
    return net.linear(net.unpadded(below_and_right(x + net.depthwise(x))).mean((2, 3)))


def squeeze_and_excitation(net: Net, image: Any) -> Any:
    x = functional.hardswish(net.a(image))
    x = net.b(x * torch.sigmoid(x.mean((2, 3), keepdim=True)))
    return net.linear(functional.adaptive_avg_pool2d(x, 1).flatten(1)).softmax(-1)


def squeeze_and_excitation_at_the_end(net: Net, image: Any) -> Any:
    x = torch.relu(net.a(image))
    return net.linear((x * torch.sigmoid(functional.adaptive_avg_pool2d(x, 1))).mean((2, 3)))


def joined_after_padding(net: Net, image: Any) -> Any:
    x = torch.relu(net.a(image))
    x = torch.cat([net.unpadded(below_and_right(x)), net.c(x), functional.max_pool2d(x, 2)], 1)
    return x.mean((2, 3))


def flattened_image(net: Net, image: Any) -> Any:
    return net.wide(functional.dropout(net.b(net.a(image)).relu().flatten(1), 0.5, net.training))


def reshaped_image(net: Net, image: Any) -> Any:
    return net.wide(functional.max_pool2d(net.a(image), 3, 2, 1).reshape(1, -1))


def mean_of_one_value(net: Net, image: Any) -> Any:
    return net.linear(functional.adaptive_avg_pool2d(functional.avg_pool2d(net.a(image), SIZE), 1).flatten(1))


def clamped_beside_a_branch(net: Net, image: Any) -> Any:
    x = 9 * net.a(image)
    return net.linear((functional.relu6(x) + net.depthwise(x)).mean((2, 3)))


def heatmap(net: Net, image: Any) -> Any:
    x = torch.relu(net.a(image))
    return torch.sigmoid(net.b(x + net.depthwise(x)))


def enlarged_heatmap(net: Net, image: Any) -> Any:
    return functional.interpolate(torch.relu(net.unpadded(below_and_right(net.a(image)))), scale_factor=2)


BODIES = (
    padded_beside_a_shortcut,
    symmetric_beside_a_shortcut,
    residual_then_padded,
    squeeze_and_excitation,
    squeeze_and_excitation_at_the_end,
    joined_after_padding,
    flattened_image,
    reshaped_image,
    mean_of_one_value,
    clamped_beside_a_branch,
    heatmap,
    enlarged_heatmap,
)


def make(body: Callable[[Net, Any], Any], size: int = SIZE) -> tuple[Net, list[np.ndarray]]:
    torch.manual_seed(0)
    images = np.random.default_rng(0).uniform(0, 1, (24, 1, size, size, 3)).astype(np.float32)
    return Net(body).eval(), list(images)


def quantise(model: nn.Module, samples: list[np.ndarray]) -> Graph:
    return fold_pads(graph_from_tflite(quantize_torch(model, samples, "net", (0.0, 1.0))))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_int8_follows_float(body: Callable[[Net, Any], Any], tflm: Load, builtin_ref: Load, tmp_path: Path):
    model, samples = make(body)
    graph = quantise(model, samples)
    assert not {"PAD", "TRANSPOSE"} & {node.operator.name for node in graph.nodes}
    (image,), (output,) = ([graph.tensors[i] for i in indices] for indices in (graph.inputs, graph.outputs))
    assert image.quantization is not None
    assert output.quantization is not None
    assert (image.dtype, image.shape, image.quantization.zero_point) == ("int8", (1, SIZE, SIZE, 3), -128)
    assert image.quantization.scale == pytest.approx(1 / 255)
    write_tflite({"main": graph}, tmp_path / "model.tflite")
    micro, reference = tflm(tmp_path / "model.tflite"), builtin_ref(tmp_path / "model.tflite")
    errors, spread = [], []
    for sample in samples:
        codes = (np.round(sample * 255) - 128).astype(np.int8)
        found = micro(codes)
        # LiteRT's fully connected layer rounds once, TFLite Micro's twice.
        assert np.abs(found.astype(int) - reference(codes)).max() <= 1
        with torch.no_grad():
            expected = model(torch.from_numpy(sample).permute(0, 3, 1, 2)).numpy()
        if expected.ndim == 4:  # an image that comes out does so as NHWC
            expected = expected.transpose(0, 2, 3, 1)
        errors.append(output.quantization.scale * (found.astype(int) - output.quantization.zero_point) - expected)
        spread.append(expected)
    # A tenth of the spread over images: a wrong layout or layer is far outside, rounding well inside.
    assert np.abs(errors).mean() < 0.1 * np.ptp(spread)


def test_codes_span_the_samples_when_no_range_is_given():
    model, samples = make(symmetric_beside_a_shortcut)
    content = quantize_torch(model, [4 * sample - 2 for sample in samples], "net")
    graph = graph_from_tflite(content)
    assert graph.tensors[graph.inputs[0]].quantization.scale == pytest.approx(4 / 255, rel=0.02)


def nan_weights() -> nn.Module:
    model, _ = make(flattened_image)
    with torch.no_grad():
        model.b.weight[0, 0, 0, 0] = torch.nan
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nan_weights(), "net: b.weight holds NaN or infinity"),
        (Net(lambda net, image: net.a(image) / 0), "net: the output holds NaN or infinity"),
        (Net(lambda net, image: (net.a(image), image)), "net returns a tuple: expected one tensor"),
        (Net(lambda net, image: net.c(image)), r"net does not take an image of shape \(1, 3, 16, 16\): Given groups=1"),
        (Net(lambda net, image: net.a(image) if image.sum() > 0 else image), "net: litert-torch cannot convert it"),
        (Net(lambda net, image: net.a(image).topk(2, 1)[0]), "net: ai-edge-quantizer cannot quantise it"),
        (Net(lambda net, image: torch.sin(net.a(image))), r"operator \d \(SIN\).* not supported"),
        (
            Net(lambda net, image: net.b(net.a(image)).flatten(2)),
            r"\(TRANSPOSE\).* leave out permutations, and reshapes",
        ),
        (
            Net(lambda net, image: functional.channel_shuffle(net.a(image), 2)),
            r"\(TRANSPOSE\).* leave out permutations",
        ),
        (nn.ConvTranspose2d(3, 4, 2, 2), r"\(TRANSPOSE_CONV\).* not supported"),
    ],
)
def test_what_cannot_be_converted_is_named(model: nn.Module, message: str):
    _, samples = make(flattened_image)
    with pytest.raises(UnsupportedModel, match=message) as raised:
        graph_from_tflite(quantize_torch(model.eval(), samples[:1], "net"))
    assert "\n" not in str(raised.value)


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]):
    model, samples = make(symmetric_beside_a_shortcut)
    quantize_torch(model, samples[:1], "net")
    assert capfd.readouterr() == ("", "")
