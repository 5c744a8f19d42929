"""What a data set is.

Letters: N images of C channels, H x W pixels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images and their labels."""

    images: Tensor  # uint8 [N, C, H, W]
    labels: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Split":
        """Return the split on a device."""
        return Split(self.images.to(device), self.labels.to(device))

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images at `index` [B] as float32 [B, C, H, W] in [0, 1], and their labels."""
        index = index.to(self.labels.device)
        return self.images[index].float().div_(255), self.labels[index]


@dataclass(frozen=True)
class Dataset:
    """A training and a validation split."""

    name: str
    train: Split
    val: Split
    num_classes: int
    input_shape: tuple[int, ...]  # of one image: (C, H, W)


def line(wrong: Exception) -> str:
    """Return an error's text in one line."""
    return " ".join(str(wrong).split()) or type(wrong).__name__
