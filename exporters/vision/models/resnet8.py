"""ResNet-8 of MLPerf Tiny's image classification (Banbury et al., arXiv 2106.07597): CIFAR-10, 32x32x3."""

from __future__ import annotations

from torch import Tensor, nn

from edgepipe.exporters.vision.models.layers import Classifier, SameConv2d, conv_block


class _Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv_block(inputs, outputs, kernel=3, stride=stride, activation=nn.ReLU)
        self.second = conv_block(outputs, outputs, kernel=3, activation=nn.Identity)
        same_shape = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same_shape else SameConv2d(inputs, outputs, 1, stride, bias=True)
        self.activation = nn.ReLU()

    def forward(self, image: Tensor) -> Tensor:
        return self.activation(self.shortcut(image) + self.second(self.first(image)))


class ResNet8(nn.Module):
    """Images ``[N, 3, H, W]`` to probabilities ``[N, classes]``."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_block(3, 16, kernel=3, activation=nn.ReLU),
            _Residual(16, 16, stride=1),
            _Residual(16, 32, stride=2),
            _Residual(32, 64, stride=2),
        )
        self.classifier = Classifier(64, classes)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, image: Tensor) -> Tensor:
        return self.softmax(self.classifier(self.features(image)))
