"""What the built-in vision models are made of."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional

from edgepipe.exporters.vision.operators import same_pads


class SameConv2d(nn.Conv2d):
    """A convolution padded like TensorFlow's SAME: ``ceil(size / stride)`` rows and columns come out.

    At stride 2 and an even size that is one row below and one column to the right, where torch's ``padding=1`` adds
    them on all four sides.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, bias: bool = False):
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=bias)

    def forward(self, image: Tensor) -> Tensor:
        top, bottom = same_pads(image.shape[2], self.kernel_size[0], self.stride[0])
        left, right = same_pads(image.shape[3], self.kernel_size[1], self.stride[1])
        if top != bottom or left != right:
            image, top, left = functional.pad(image, (left, right, top, bottom)), 0, 0
        return functional.conv2d(image, self.weight, self.bias, self.stride, (top, left), groups=self.groups)


def conv_block(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, activation: type[nn.Module] = nn.ReLU6
) -> nn.Sequential:
    """Convolution, batch normalisation and ``activation``."""
    return nn.Sequential(
        OrderedDict(
            conv=SameConv2d(inputs, outputs, kernel, stride, groups),
            norm=nn.BatchNorm2d(outputs),
            activation=activation(),
        )
    )


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and linear projection (MobileNetV2, arXiv 1801.04381, figure 4d)."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, kernel: int = 3) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if expansion > 1:
            layers["expand"] = conv_block(inputs, hidden)
        layers["depthwise"] = conv_block(hidden, hidden, kernel, stride, groups=hidden)
        layers["project"] = conv_block(hidden, outputs, activation=nn.Identity)
        self.layers = nn.Sequential(layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, image: Tensor) -> Tensor:
        output = self.layers(image)
        return image + output if self.is_residual else output


class Classifier(nn.Sequential):
    """Mean over rows and columns, then a linear layer."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__(
            OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), linear=nn.Linear(inputs, classes))
        )


def divisible(channels: float, divisor: int = 8) -> int:
    """``channels`` rounded to a multiple of ``divisor``, at most a tenth below (MobileNet's own rule)."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded
