"""Built-in models against published figures and the files of MLPerf Tiny."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepipe.errors import RecipeError
from edgepipe.exporters.vision.graph import Graph
from edgepipe.exporters.vision.operators import Conv2D, DepthwiseConv2D
from edgepipe.exporters.vision.read_tflite import read_tflite
from edgepipe.exporters.vision.source import VisionSource

torch = pytest.importorskip("torch")

BuiltIn = Callable[[str], VisionSource]


def parameters(reference: str, **options: int) -> int:
    from edgepipe.exporters.vision.models.built_in import build

    return sum(values.numel() for values in build(reference, **options)[0].parameters())


def layers(graph: Graph, with_activation: bool = True) -> Counter[tuple[object, ...]]:
    """What convolutions and fully connected layers there are: all but their numbers."""
    found: Counter[tuple[object, ...]] = Counter()
    for node in graph.nodes:
        operator, shapes = node.operator, graph.input_shapes(node)
        if isinstance(operator, Conv2D | DepthwiseConv2D):
            output = graph.tensors[node.output].shape
            activation = operator.activation if with_activation else None
            found[operator.name, operator.stride, operator.pads, activation, *shapes[:2], output] += 1
        elif operator.name in ("FULLY_CONNECTED", "ADD", "SOFTMAX"):
            found[operator.name, *shapes[:2]] += 1
    return found


@pytest.mark.parametrize(
    ("reference", "published"),
    [
        # torchvision 0.x, MobileNet_V2_Weights: num_params.
        ("mobilenet_v2", 3_504_872),
        # Keras applications: total less the moving statistics of the normalisations.
        ("mobilenet_v1", 4_231_976),
        # The trainable parameters of MLPerf Tiny's Keras model, 78,186, less the biases that its normalised
        # convolutions have beside those of the normalisations, 240.
        ("resnet8", 77_946),
    ],
)
def test_parameters_are_as_published(reference: str, published: int):
    assert parameters(reference) == published


@pytest.mark.slow
def test_mobilenet_v2_is_the_papers(built_in: BuiltIn, mobilenet_v2: Callable[..., Graph]):
    graph = built_in("mobilenet_v2").graph
    assert graph.macs == pytest.approx(300.8e6, rel=1e-3)
    assert layers(graph, with_activation=False) == layers(mobilenet_v2(), with_activation=False)


def test_resnet8_is_mlperf_tinys(built_in: BuiltIn, data_folder: Path):
    graph, theirs = built_in("resnet8").graph, read_tflite(data_folder / "resnet8_cifar10_int8.tflite")
    assert layers(graph) == layers(theirs)
    assert graph.macs == theirs.macs


@pytest.mark.slow
def test_mobilenet_v1_is_that_of_visual_wake_words(built_in: BuiltIn, data_folder: Path):
    ours, theirs = (
        Counter(key for key in layers(graph).elements() if key[0] in ("CONV_2D", "DEPTHWISE_CONV_2D"))
        for graph in (built_in("mobilenet_v1:0.25:96").graph, read_tflite(data_folder / "vww_96_int8.tflite"))
    )
    assert ours == theirs


@pytest.mark.parametrize(("blocks", "residuals"), [(1, 6), (2, 11), (3, 16), (4, 21)])
def test_mcunets_grow_with_their_blocks(blocks: int, residuals: int):
    from edgepipe.exporters.vision.models.built_in import build
    from edgepipe.exporters.vision.models.layers import InvertedResidual

    model, shape = build(f"mcunet:0.5:80:{blocks}")
    found = [module for module in model.modules() if isinstance(module, InvertedResidual)]
    assert len(found) == residuals
    assert {module.layers.depthwise.conv.kernel_size[0] for module in found} <= {3, 5, 7}
    assert shape == (80, 80, 3)
    assert model(torch.zeros(1, 3, 80, 80)).shape == (1, 1000)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("mobilenet_v2:big", "the width is 'big', expected a number from 0.05 to 4"),
        ("mobilenet_v2:0", "the width is 0, expected"),
        ("mobilenet_v2:nan", "the width is nan, expected"),
        ("mobilenet_v2:1:8", "the resolution is 8, expected a whole number from 16 to 512"),
        ("mobilenet_v2:1:96.5", "the resolution is '96.5', expected a whole number"),
        ("mobilenet_v2:1:96:2", "expected at most mobilenet_v2:WIDTH:RESOLUTION"),
        ("mcunet:1:96:5", "the blocks is 5, expected a whole number from 1 to 4"),
        ("resnet8:", "the resolution is '', expected"),
    ],
)
def test_parameters_out_of_range_are_refused(reference: str, message: str):
    with pytest.raises(RecipeError, match=message):
        parameters(reference)
