"""A MobileNetV2 in small, for handwritten digits at 96x96."""

from __future__ import annotations

from torch import Tensor, nn

from edgepipe.exporters.vision.models.layers import Classifier, InvertedResidual, conv_block


class DigitNet(nn.Module):
    """Images ``[N, 3, 96, 96]`` to logits ``[N, 10]``."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_block(3, 8, kernel=3, stride=2),
            InvertedResidual(8, 8, stride=1, expansion=1),
            InvertedResidual(8, 16, stride=2, expansion=4),
            InvertedResidual(16, 16, stride=1, expansion=4),
            InvertedResidual(16, 24, stride=2, expansion=4),
            InvertedResidual(24, 24, stride=1, expansion=4),
            InvertedResidual(24, 32, stride=2, expansion=4),
            conv_block(32, 96),
        )
        self.classifier = Classifier(96, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.features(image))
