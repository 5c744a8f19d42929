"""ImageNet, streamed: files are read, cut and resized by other processes while the model trains.

Letters: N images, B of a batch, H x W pixels of a file.

In training a part of random size and aspect is cut out, in validation the center; numbers for the
former are a function of (seed, epoch, sample), so that they do not depend on who reads.
"""

import math
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ...settings import SettingError
from .contract import Dataset, Numbers
from .image_files import class_folders, rgb_image
from .statistics import PUBLISHED
from .transfer import on_device

_SIZE = 224  # pixels of each side of what the model gets
_MOST = 16  # processes that read
_ARCHIVES = (
    "ILSVRC2012_img_train.tar (md5 1d675b47d978889d74fa0da5fadfb00e), "
    "ILSVRC2012_img_val.tar (md5 29b22e2961454d5413ddabcf34fc5622) and "
    "ILSVRC2012_devkit_t12.tar.gz (md5 fa75699e90414af021442c21a62c3abf)"
)
_Asked = tuple[int, tuple[float, ...]]  # a sample, and its four numbers, or none


@dataclass(frozen=True)
class Files:
    """Images that are read when they are asked for."""

    paths: tuple[str, ...]  # N
    labels: Tensor  # int64 [N]
    size: int = _SIZE  # pixels of each side of what is returned
    device: torch.device | str = "cpu"  # on which batches are returned
    streamed: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.paths)

    def to(self, device: torch.device | str) -> "Files":
        """Return the split that returns its batches on a device."""
        return Files(self.paths, self.labels, self.size, device)

    def batches(
        self, indices: Iterable[Tensor], numbers: Numbers | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Return images, float32 [B, 3, size, size] in [0, 1], and labels at each of `indices`.

        The first batch is read here, the others ahead of their time by processes of their own.
        """
        asked = (_asked(index, numbers) for index in indices)
        reading = _Reading(self.paths, self.size, torch.device(self.device).type == "cuda")
        read = ((images, self.labels[samples]) for samples, images in reading.batches(asked))
        for images, labels in on_device(read, self.device, ahead=True):
            yield images.float().div_(255), labels


def imagenet(name: str, data_dir: Path) -> Dataset:
    """Return the images of data_dir/imagenet/train/WNID/* and of val/WNID/*, not yet read."""
    root = data_dir / "imagenet"
    fix = (
        f"expected are {root}/train/WNID/*.JPEG and {root}/val/WNID/*.JPEG: get {_ARCHIVES} from "
        f"https://image-net.org (it asks for a registration) into {root}, and let "
        "torchvision.datasets.ImageNet unpack them, once for each of train and val"
    )
    train, val = class_folders(name, root, fix)
    splits = [
        Files(tuple(path for path, _ in part.samples), torch.tensor(part.targets))
        for part in (train, val)
    ]
    shape = (3, _SIZE, _SIZE)
    described = (*PUBLISHED["imagenet"], True, True)
    return Dataset(name, splits[0], splits[1], len(train.classes), shape, *described)


class _Reading(torch.utils.data.Dataset[tuple[int, Tensor]]):
    """What a process that reads knows."""

    def __init__(self, paths: Sequence[str], size: int, pinned: bool) -> None:
        self.paths = np.array(paths)  # one object, which goes to another process at once
        self.size = size
        self.pinned = pinned  # whether what is read ahead is put into pinned memory

    def __getitem__(self, asked: _Asked) -> tuple[int, Tensor]:
        """Return a sample's number and image, uint8 [3, size, size]; -1 - number if damaged."""
        sample, numbers = asked
        try:
            return sample, _cut(str(self.paths[sample]), self.size, numbers)
        except SettingError:
            return -1 - sample, torch.zeros(3, self.size, self.size, dtype=torch.uint8)

    def batches(self, asked: Iterator[list[_Asked]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the numbers [B] and images of samples asked for, in order.

        Raises `SettingError` for a damaged file.
        """
        for part in (islice(asked, 1), asked):
            for samples, images in self._read(part, ahead=part is asked):
                for sample in samples[samples < 0].tolist():
                    _cut(str(self.paths[-1 - sample]), self.size, ())  # which raises
                yield samples, images

    def _read(self, asked: Iterator[list[_Asked]], ahead: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """Return what is asked for, read here or `ahead` by other processes, if it is anything."""
        first = next(asked, None)
        if first is None:
            return
        free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        known = multiprocessing.get_all_start_methods()
        start = "forkserver" if "forkserver" in known else "spawn"
        loader = torch.utils.data.DataLoader(
            self,
            batch_sampler=chain([first], asked),  # each a sample and its numbers
            num_workers=max(1, min(_MOST, (free or 1) - 1)) if ahead else 0,
            pin_memory=self.pinned and ahead,
            multiprocessing_context=start if ahead else None,
        )
        yield from loader


def _asked(index: Tensor, numbers: Numbers | None) -> list[_Asked]:
    given = [()] * len(index) if numbers is None else map(tuple, numbers(index).tolist())
    return list(zip(index.tolist(), given, strict=True))


def _cut(path: str, size: int, numbers: Sequence[float]) -> Tensor:
    """Return the part of a file that `numbers` say, or the center, uint8 [3, size, size]."""
    from PIL import Image

    image = rgb_image("imagenet", path)
    width, height = image.size
    box = _part(height, width, numbers) if numbers else _center(height, width)
    resized = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return torch.from_numpy(np.asarray(resized).copy()).permute(2, 0, 1)


def _part(height: int, width: int, numbers: Sequence[float]) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of a part of 8 to 100 % of the area, aspect 3/4 to 4/3."""
    area = (0.08 + 0.92 * numbers[0]) * height * width
    aspect = math.exp((2 * numbers[1] - 1) * math.log(4 / 3))
    tall, wide = min(height, math.sqrt(area / aspect)), min(width, math.sqrt(area * aspect))
    top, left = (height - tall) * numbers[2], (width - wide) * numbers[3]
    return left, top, left + wide, top + tall


def _center(height: int, width: int) -> tuple[float, float, float, float]:
    """Return the center of 7/8 of the shorter side, a square."""
    side = min(height, width) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
