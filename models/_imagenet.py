"""What networks for ImageNet have in common: input transforms, a regime, and torchvision's factory.

Letters: B images of 3 channels, H x W pixels.

A factory makes its ImageNet form where images are larger than 96 pixels on each side, and where
`form` says so.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._vision import Normalize

LARGE = 96  # pixels on the shorter side, above which images are taken as ImageNet's are
FORMS = ("auto", "cifar", "imagenet")

imagenet = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@dataclass(frozen=True)
class RandomResizedCrop:
    """Cut a part of random size and aspect out of each image, resize it, mirror it with 1/2.

    The part has 8 to 100 % of the image's area and an aspect of 3/4 to 4/3, cut down to the
    image's sides; bilinear, without smoothing.
    Szegedy et al., "Going Deeper with Convolutions", CVPR 2015, https://arxiv.org/abs/1409.4842
    """

    size: int  # pixels of each side of the result
    then: Normalize
    mirrors: bool = True  # whether images are mirrored

    draws: ClassVar[int] = 5  # area, aspect, row, column, flip

    @property
    def after_crop(self) -> "Mirror":
        """What remains to do where a data set cuts the parts itself, as it reads the files."""
        return Mirror(self.then, self.mirrors)

    def fitted(
        self, mean: tuple[float, ...], std: tuple[float, ...], mirrors: bool
    ) -> "RandomResizedCrop":
        """Return the transform with a data set's own statistics."""
        return replace(self, then=self.then.fitted(mean, std, mirrors), mirrors=mirrors)

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Return float images [B, C, size, size], cut out as `uniform` [B, 5] in [0, 1) says."""
        scale, shift = part_of(images.shape[2:], uniform)  # [B, 2] each
        places = (2 * torch.arange(self.size, device=images.device) + 1) / self.size - 1
        y = scale[:, :1] * places + shift[:, :1]  # [B, size], from -1 to 1 over the image
        x = scale[:, 1:] * places + shift[:, 1:]
        if self.mirrors:
            x = torch.where(uniform[:, 4:] < 0.5, x.flip(1), x)
        shape = len(images), self.size, self.size
        grid = torch.stack([x[:, None, :].expand(shape), y[:, :, None].expand(shape)], dim=3)
        grid = grid.to(images.dtype)
        cut = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
        return self.then(cut)


@dataclass(frozen=True)
class CenterCrop:
    """Resize each image so that its shorter side is 8/7 of `size`, and cut out its center."""

    size: int  # pixels of each side of the result
    then: Normalize

    @property
    def after_crop(self) -> Normalize:
        """What remains to do where a data set cuts out the center itself."""
        return self.then

    def fitted(
        self, mean: tuple[float, ...], std: tuple[float, ...], mirrors: bool
    ) -> "CenterCrop":
        """Return the transform with a data set's own statistics."""
        return replace(self, then=self.then.fitted(mean, std, mirrors))

    def __call__(self, images: Tensor) -> Tensor:
        """Return float images [B, C, size, size]."""
        height, width = images.shape[2:]
        factor = self.size * 8 / 7 / min(height, width)
        sides = [max(self.size, round(side * factor)) for side in (height, width)]
        resized = functional.interpolate(
            images, sides, mode="bilinear", align_corners=False, antialias=True
        )
        top, left = ((side - self.size) // 2 for side in sides)
        return self.then(resized[:, :, top : top + self.size, left : left + self.size])


@dataclass(frozen=True)
class Mirror:
    """Mirror each image with probability 1/2, then normalize."""

    then: Normalize
    mirrors: bool = True  # whether images are mirrored

    draws: ClassVar[int] = 5  # those of the part that the data set cut out, then the flip

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Return float images [B, C, H, W], mirrored as `uniform` [B, 5] in [0, 1) says."""
        if not self.mirrors:
            return self.then(images)
        mirrored = uniform[:, 4].view(-1, 1, 1, 1) < 0.5
        return self.then(torch.where(mirrored, images.flip(3), images))


def part_of(shape: torch.Size, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return size and center of parts of images of H x W pixels, as `uniform` [B, 5] says.

    Both are [B, 2], first of rows, then of columns; the image reaches from -1 to 1. A part of area
    A and aspect r has the sides sqrt(A / r) and sqrt(A r), each no longer than the image's.
    """
    height, width = shape
    area = (0.08 + 0.92 * uniform[:, 0]) * height * width
    aspect = torch.exp((2 * uniform[:, 1] - 1) * math.log(4 / 3))
    sides = torch.stack([(area / aspect).sqrt() / height, (area * aspect).sqrt() / width], dim=1)
    sides = sides.clamp(max=1)
    return sides, (1 - sides) * (2 * uniform[:, 2:4] - 1)


def is_large(input_shape: tuple[int, ...], form: str) -> bool:
    """Return whether to make the ImageNet form; `ValueError` for a form that does not exist."""
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}, not {form}")
    if form == "auto":
        return len(input_shape) == 3 and min(input_shape[1:]) > LARGE
    return form == "imagenet"


def of_torchvision(
    name: str, num_classes: int, input_shape: tuple[int, ...], regime: Any = "imagenet_step"
) -> nn.Module:
    """Return torchvision's network of a name, untrained, with ImageNet's recipe for it.

    Raises `ValueError` for images that are not of three channels.
    """
    from torchvision import models

    if input_shape[0] != 3:
        raise ValueError(f"the ImageNet form takes images of 3 channels, not {input_shape[0]}")
    factory: Callable[..., nn.Module] = getattr(models, name)
    network: Any = factory(weights=None, num_classes=num_classes)
    network.regime, network.epochs, network.batch = regime, 90, 256
    network.input_transform = {
        "train": RandomResizedCrop(224, then=imagenet),
        "eval": CenterCrop(224, then=imagenet),
    }
    made: nn.Module = network
    return made
