"""``digits``: a small network trained at export time on the handwritten digits that scikit-learn carries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from edgepipe.errors import MissingExtra
from edgepipe.exporters.vision.held_out import HeldOut
from edgepipe.exporters.vision.models.digit_net import DigitNet

RESOLUTION = 96
LABELS = tuple("0123456789")
# The data set is CC BY 4.0 (E. Alpaydin, C. Kaynak, UCI repository, 1998), the network is edgepipe's own.
LICENCE = "Apache-2.0 AND CC-BY-4.0"
# Of the int8 network, on the images held out.
MIN_ACCURACY = 0.96
_CALIBRATION_IMAGES = 64
_EPOCHS, _BATCH, _LEARNING_RATE = 12, 32, 6e-3


@dataclass(frozen=True)
class Digits:
    """The 1,797 images of 8x8, a fifth of them held out: values 0 to 1 ``[N, 1, 8, 8]``, classes ``[N]``."""

    images: torch.Tensor
    classes: torch.Tensor
    held_out_images: torch.Tensor
    held_out_classes: torch.Tensor


def load_digits() -> Digits:
    """Read the images from scikit-learn's package; every fifth is held out."""
    try:
        from sklearn import datasets
    except ImportError as missing:
        raise MissingExtra("scikit-learn", "export") from missing
    bunch = datasets.load_digits()
    images = torch.from_numpy(bunch.images).float().div(16).unsqueeze(1)
    classes = torch.from_numpy(bunch.target)
    held_out = torch.arange(len(images)) % 5 == 0
    return Digits(images[~held_out], classes[~held_out], images[held_out], classes[held_out])


def enlarge(images: torch.Tensor) -> torch.Tensor:
    """``[N, 1, 8, 8]`` to what the network takes, ``[N, 3, 96, 96]``: white ink on black."""
    large = functional.interpolate(images, (RESOLUTION, RESOLUTION), mode="bilinear", align_corners=False)
    return large.expand(-1, 3, -1, -1)


def train_digits(seed: int) -> nn.Module:
    """The network in evaluation mode, ``[N, 3, 96, 96]`` from 0 to 1 to probabilities; about a minute."""
    digits = load_digits()
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(seed)
        network = DigitNet()
        steps = _EPOCHS * math.ceil(len(digits.images) / _BATCH)
        optimizer = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps, pct_start=0.2)
        for _ in range(_EPOCHS):
            for batch in torch.randperm(len(digits.images)).split(_BATCH):
                images = _vary(digits.images[batch]).contiguous(memory_format=torch.channels_last)
                loss = functional.cross_entropy(network(images), digits.classes[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    return nn.Sequential(network, nn.Softmax(dim=-1)).eval()


def calibration_images() -> tuple[np.ndarray, ...]:
    """Images of the training set, float32 ``[1, 96, 96, 3]`` each."""
    return _channels_last(load_digits().images[:_CALIBRATION_IMAGES])


def held_out() -> HeldOut:
    """The images that are not trained with."""
    digits = load_digits()
    return HeldOut(_channels_last(digits.held_out_images), digits.held_out_classes.numpy(), MIN_ACCURACY)


def _channels_last(images: torch.Tensor) -> tuple[np.ndarray, ...]:
    enlarged = enlarge(images).permute(0, 2, 3, 1).contiguous().numpy()
    return tuple(image[np.newaxis] for image in enlarged)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums in one order, and so the same weights, whatever the number of cores; small tensors gain little from two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _vary(images: torch.Tensor) -> torch.Tensor:
    """Enlarged images, each turned, stretched and moved a little, half of them as black ink on white."""
    count = len(images)
    angles = torch.empty(count).uniform_(-0.2, 0.2)
    rows, columns = torch.empty(2, count).uniform_(0.9, 1.2)
    transforms = torch.stack(
        [
            torch.stack([columns * angles.cos(), -angles.sin(), torch.empty(count).uniform_(-0.12, 0.12)], 1),
            torch.stack([angles.sin(), rows * angles.cos(), torch.empty(count).uniform_(-0.12, 0.12)], 1),
        ],
        1,
    )
    grid = functional.affine_grid(transforms, [count, 1, RESOLUTION, RESOLUTION], align_corners=False)
    large = functional.grid_sample(images, grid, align_corners=False)
    inverted = torch.rand(count, 1, 1, 1) < 0.5
    return torch.where(inverted, 1 - large, large).expand(-1, 3, -1, -1)
