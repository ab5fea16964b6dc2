"""A family of networks in the search space of MCUNet (Lin et al., arXiv 2007.10319, section 3.1)."""

from __future__ import annotations

from torch import Tensor, nn

from edgepipe.exporters.vision.models.layers import Classifier, InvertedResidual, conv_block, divisible

# Channels, stride of the first block, and (kernel, expansion) of the up to four blocks of a stage: the space has
# kernels 3, 5, 7 and expansions 3 to 6, wide windows and few channels early, as its found networks have.
_STAGES = (
    (24, 2, ((7, 3), (3, 4), (5, 4), (3, 3))),
    (40, 2, ((7, 4), (3, 5), (5, 3), (3, 4))),
    (48, 2, ((5, 5), (3, 4), (5, 4), (3, 3))),
    (96, 2, ((5, 6), (7, 4), (3, 5), (5, 4))),
    (160, 1, ((7, 5), (5, 4), (3, 5), (3, 4))),
)
MAX_BLOCKS = 4


class McuNet(nn.Module):
    """Images ``[N, 3, H, W]`` to logits ``[N, classes]``.

    ``width`` scales the channels; ``blocks`` is the number of inverted residuals in every stage, 1 to 4.
    """

    def __init__(self, width: float = 1.0, blocks: int = 2, classes: int = 1000) -> None:
        super().__init__()
        channels, first = divisible(16 * width), divisible(8 * width)
        layers: list[nn.Module] = [conv_block(3, channels, kernel=3, stride=2)]
        layers.append(InvertedResidual(channels, first, stride=1, expansion=1))
        channels = first
        for outputs, first_stride, choices in _STAGES:
            wide = divisible(outputs * width)
            for repeat, (kernel, expansion) in enumerate(choices[:blocks]):
                stride = first_stride if repeat == 0 else 1
                layers.append(InvertedResidual(channels, wide, stride, expansion, kernel))
                channels = wide
        self.features = nn.Sequential(*layers)
        self.classifier = Classifier(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.features(image))
