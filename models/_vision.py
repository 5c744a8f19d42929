"""Input transforms for batches of images, on the device that holds them.

Letters: B images of C channels, H x W pixels.

A transform that needs randomness says how many numbers an image takes in `draws` and is given
them, so that what happens to an image is a function of the numbers alone. One that has a method
`fitted` is asked for the form that suits a data set: its own mean and standard deviation of each
channel, and whether a mirrored image is as good as the image.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

MOST_LAYERS = 10_000  # of a network: more would take minutes to build


@dataclass(frozen=True)
class Normalize:
    """Subtract a mean from each channel and divide it by a standard deviation."""

    mean: tuple[float, ...]  # one for each channel, or one for all
    std: tuple[float, ...]  # likewise

    def fitted(self, mean: tuple[float, ...], std: tuple[float, ...], mirrors: bool) -> "Normalize":
        """Return the transform with a data set's own statistics."""
        return Normalize(mean, std)

    def __call__(self, images: Tensor) -> Tensor:
        """Return float images [B, C, H, W], normalized."""
        mean = images.new_tensor(self.mean).view(1, -1, 1, 1)
        std = images.new_tensor(self.std).view(1, -1, 1, 1)
        return (images - mean) / std


def of_any_shape(network: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """Return the network, without its file's transforms of images where its inputs are none."""
    carrying: Any = network
    if len(input_shape) != 3:
        carrying.input_transform = {}
    return network


@dataclass(frozen=True)
class PadCrop:
    """Shift each image by up to `padding` pixels in either direction, then normalize.

    The image is padded with zeros on all sides and cropped to its size at a random place.
    """

    padding: int  # zeros on each side, in pixels
    then: Normalize

    draws: ClassVar[int] = 2  # row of the crop, column of the crop

    def fitted(self, mean: tuple[float, ...], std: tuple[float, ...], mirrors: bool) -> "PadCrop":
        """Return the transform with a data set's own statistics."""
        return replace(self, then=self.then.fitted(mean, std, mirrors))

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Return float images [B, C, H, W], shifted as `uniform` [B, 2] in [0, 1) says."""
        return self.then(_crop(images, self.padding, uniform))


@dataclass(frozen=True)
class PadCropFlip:
    """Shift each image as `PadCrop` does, mirror it with probability 1/2, then normalize.

    With a `hole`, a square of so many pixels at a random place inside the image is set to the mean.
    DeVries, Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout", 2017,
    https://arxiv.org/abs/1708.04552
    Differs from the paper: the square lies inside the image, as in the fast CIFAR-10 trainings.
    """

    padding: int  # zeros on each side, in pixels
    then: Normalize
    hole: int = 0  # pixels of each side of the square, at most the image's; 0: none
    mirrors: bool = True  # whether images are mirrored

    draws: ClassVar[int] = 5  # row and column of the crop, flip, row and column of the hole

    def fitted(
        self, mean: tuple[float, ...], std: tuple[float, ...], mirrors: bool
    ) -> "PadCropFlip":
        """Return the transform with a data set's own statistics, and without mirroring if told."""
        return replace(self, then=self.then.fitted(mean, std, mirrors), mirrors=mirrors)

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Return float images [B, C, H, W], changed as `uniform` [B, 5] in [0, 1) says."""
        mirrored = uniform[:, 2] < 0.5 if self.mirrors else None
        changed = self.then(_crop(images, self.padding, uniform[:, :2], mirrored))
        return _cut_(changed, self.hole, uniform[:, 3:5]) if self.hole else changed


def require_images(input_shape: tuple[int, ...]) -> None:
    """Raise `ValueError` for samples that are no images [C, H, W]."""
    if len(input_shape) != 3:
        raise ValueError(f"it takes images, channels x height x width, not {input_shape}")


def plain_unless_colored(network: Any, input_shape: tuple[int, ...]) -> nn.Module:
    """Return a network that leaves images whole unless they are of three channels.

    Raises `ValueError` for samples that are no images.
    """
    require_images(input_shape)
    if input_shape[0] != 3:
        network.input_transform = {"train": digits, "eval": digits}
    made: nn.Module = network
    return made


digits = Normalize(mean=(0.1307,), std=(0.3081,))  # of MNIST's 60,000 training images
cifar = Normalize(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))  # of CIFAR-10's


def _crop(images: Tensor, padding: int, place: Tensor, mirrored: Tensor | None = None) -> Tensor:
    """Return each image [C, H, W] cut out of its padded self at `place` [B, 2] in [0, 1).

    Then those of `mirrored` [B] are mirrored.
    """
    size, channels, height, width = images.shape
    top, left = _places(place, 2 * padding + 1)
    rows = top[:, None] + torch.arange(height, device=images.device)  # [B, H]
    columns = left[:, None] + torch.arange(width, device=images.device)  # [B, W]
    if mirrored is not None:
        columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    padded = functional.pad(images, [padding] * 4)
    pixels = (rows[:, :, None] * padded.shape[3] + columns[:, None, :]).flatten(1)  # [B, H * W]
    pixels = pixels[:, None].expand(size, channels, height * width)
    return padded.flatten(2).gather(2, pixels).view(images.shape)


def _cut_(images: Tensor, hole: int, place: Tensor) -> Tensor:
    """Set a square of each image to 0 in place, at `place` [B, 2] in [0, 1)."""
    height, width = images.shape[2:]
    hole = min(hole, height, width)
    top, left = (
        _places(place[:, i], side - hole + 1)[:, None] for i, side in enumerate((height, width))
    )
    rows, columns = (torch.arange(side, device=images.device) for side in (height, width))
    down = (rows >= top) & (rows < top + hole)  # [B, H]
    along = (columns >= left) & (columns < left + hole)  # [B, W]
    return images.masked_fill_((down[:, None, :, None] & along[:, None, None, :]), 0)


def _places(uniform: Tensor, number: int) -> Tensor:
    """Return one of `number` places for each of `uniform` in [0, 1), the last dimension first."""
    places = (uniform * number).long().clamp(max=number - 1)
    return places.movedim(-1, 0) if places.dim() > 1 else places
