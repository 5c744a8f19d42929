"""The interface of a data set.

Letters: N samples, B of a batch; images of C channels, H x W pixels, or F features.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ...gradients.trees import Tree

Numbers = Callable[[Tensor], Tensor]  # of samples [B], four numbers in [0, 1) each: [B, 4]


class Samples(Protocol):
    """The samples of a split, wherever they are held."""

    @property
    def labels(self) -> Tensor | None:
        """Return the classes of all samples, int64 [N]; None where targets are no classes."""

    @property
    def streamed(self) -> bool:
        """Return whether batches are read as they are asked for, with indices on the CPU."""

    def __len__(self) -> int:
        """Return how many there are, N."""

    def to(self, device: torch.device | str) -> "Samples":
        """Return the split with what it holds on a device."""

    def batches(
        self, indices: Iterable[Tensor], numbers: Numbers | None = None
    ) -> Iterator[tuple[Tree, Tree]]:
        """Return samples and targets at each of `indices` [B]: tensors [B, ...], or trees of such.

        `numbers` are for what the set itself draws in training; without them it draws nothing.
        """


@dataclass(frozen=True)
class Split:
    """Images and their labels, held whole."""

    images: Tensor  # uint8 [N, C, H, W]
    labels: Tensor  # int64 [N]
    streamed: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Split":
        """Return the split on a device."""
        return Split(self.images.to(device), self.labels.to(device))

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images at `index` [B] as float32 [B, C, H, W] in [0, 1], and their labels."""
        index = index.to(self.labels.device)
        return self.images[index].float().div_(255), self.labels[index]

    def batches(
        self, indices: Iterable[Tensor], numbers: Numbers | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Return images and labels as `batch` does, for each of `indices`; nothing is drawn."""
        return map(self.batch, indices)


@dataclass(frozen=True)
class Dataset:
    """A training and a validation split."""

    name: str
    train: Samples
    val: Samples
    num_classes: int | None  # or numbers in a target that is no class; None: neither
    input_shape: tuple[int, ...] | None  # of one sample: (C, H, W) or (F,); None: several tensors
    mean: tuple[float, ...] = ()  # of each channel's pixels in [0, 1]; (): no images
    std: tuple[float, ...] = ()
    mirrors: bool = False  # whether a mirrored image is as good as the image
    cropped: bool = False  # whether the set itself cuts images to size, as it reads them
    note: str = ""  # what was done to the samples as they were read, for the log
