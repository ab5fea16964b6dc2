"""MobileNetV2 (Sandler et al., arXiv 1801.04381, table 2)."""

from __future__ import annotations

from torch import Tensor, nn

from edgepipe.exporters.vision.models.layers import Classifier, InvertedResidual, conv_block, divisible

# Expansion t, channels c, repeats n and stride s of the first of them.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class MobileNetV2(nn.Module):
    """Images ``[N, 3, H, W]`` to logits ``[N, classes]``; ``width`` scales the channels, the last ones only upwards."""

    def __init__(self, width: float = 1.0, classes: int = 1000) -> None:
        super().__init__()
        channels = divisible(32 * width)
        layers: list[nn.Module] = [conv_block(3, channels, kernel=3, stride=2)]
        for expansion, outputs, repeats, first_stride in _STAGES:
            wide = divisible(outputs * width)
            for repeat in range(repeats):
                layers.append(InvertedResidual(channels, wide, first_stride if repeat == 0 else 1, expansion))
                channels = wide
        last = divisible(1280 * max(1.0, width))
        self.features = nn.Sequential(*layers, conv_block(channels, last))
        self.classifier = Classifier(last, classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.features(image))
