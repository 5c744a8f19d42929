"""Input transforms for batches of images, on the device that holds them.

Letters: B images of C channels, H x W pixels.

A transform that needs randomness says how many numbers an image takes in `draws` and is given
them, so that what happens to an image is a function of the numbers alone.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Normalize:
    """Subtract a mean from each channel and divide it by a standard deviation."""

    mean: tuple[float, ...]  # one for each channel, or one for all
    std: tuple[float, ...]  # likewise

    def __call__(self, images: Tensor) -> Tensor:
        """Return float images [B, C, H, W], normalised."""
        mean = images.new_tensor(self.mean).view(1, -1, 1, 1)
        std = images.new_tensor(self.std).view(1, -1, 1, 1)
        return (images - mean) / std


@dataclass(frozen=True)
class PadCrop:
    """Shift each image by up to `padding` pixels in either direction, then normalise.

    The image is padded with zeros on all sides and cropped to its size at a random place.
    """

    padding: int  # zeros on each side, in pixels
    then: Normalize

    draws: ClassVar[int] = 2  # row of the crop, column of the crop

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Return float images [B, C, H, W], shifted as `uniform` [B, 2] in [0, 1) says."""
        return self.then(_crop(images, self.padding, uniform))


@dataclass(frozen=True)
class PadCropFlip:
    """Shift each image as `PadCrop` does, mirror it with probability 1/2, then normalise."""

    padding: int  # zeros on each side, in pixels
    then: Normalize

    draws: ClassVar[int] = 3  # row of the crop, column of the crop, flip

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Return float images [B, C, H, W], changed as `uniform` [B, 3] in [0, 1) says."""
        cropped = _crop(images, self.padding, uniform[:, :2])
        mirrored = uniform[:, 2].view(-1, 1, 1, 1) < 0.5
        return self.then(torch.where(mirrored, cropped.flip(3), cropped))


digits = Normalize(mean=(0.1307,), std=(0.3081,))  # of MNIST's 60,000 training images
cifar = Normalize(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))  # of CIFAR-10's


def _crop(images: Tensor, padding: int, place: Tensor) -> Tensor:
    """Return each image [C, H, W] cut out of its padded self at `place` [B, 2] in [0, 1)."""
    size, channels, height, width = images.shape
    places = 2 * padding + 1
    top, left = (place * places).long().clamp(max=places - 1).unbind(1)  # [B] each
    rows = top[:, None] + torch.arange(height, device=images.device)  # [B, H]
    columns = left[:, None] + torch.arange(width, device=images.device)  # [B, W]
    image = torch.arange(size, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[:, None, None]
    padded = functional.pad(images, [padding] * 4)
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
