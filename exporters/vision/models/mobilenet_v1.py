"""MobileNetV1 (Howard et al., arXiv 1704.04861, table 1)."""

from __future__ import annotations

from torch import Tensor, nn

from edgepipe.exporters.vision.models.layers import Classifier, conv_block

# Channels and stride of the 13 depthwise separable blocks.
_BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1),
    (1024, 2), (1024, 1),
)  # fmt: skip


class MobileNetV1(nn.Module):
    """Images ``[N, 3, H, W]`` to logits ``[N, classes]``; ``width`` scales the channels (at least 8)."""

    def __init__(self, width: float = 1.0, classes: int = 1000) -> None:
        super().__init__()
        channels = max(8, int(32 * width))
        layers = [conv_block(3, channels, kernel=3, stride=2, activation=nn.ReLU)]
        for outputs, stride in _BLOCKS:
            wide = max(8, int(outputs * width))
            layers += [
                conv_block(channels, channels, kernel=3, stride=stride, groups=channels, activation=nn.ReLU),
                conv_block(channels, wide, activation=nn.ReLU),
            ]
            channels = wide
        self.features = nn.Sequential(*layers)
        self.classifier = Classifier(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.features(image))
