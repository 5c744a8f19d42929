"""Images in folders named after their classes.

Letters: H x W pixels.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ...settings import require
from ...simulator.room import memory_of
from ...units import home_path, in_units
from .contract import Dataset, Split
from .image_files import class_folders, rgb_image
from .statistics import described


def image_folder(name: str, path: str, data_dir: Path) -> Dataset:
    """Read PATH/train/CLASS/* and PATH/val/CLASS/*, in color, at the size of the first image."""
    require(path != "", "dataset", name, "names no folder", "write imagefolder:PATH")
    root = home_path(path)
    root = root if root.exists() else data_dir / path
    layout = f"expected are images {root}/train/CLASS/* and {root}/val/CLASS/*"
    train, val = class_folders(name, root, layout)
    first = _image(name, train.samples[0][0])
    _check_memory(name, first, len(train.samples) + len(val.samples))
    size = tuple(first.shape[1:])
    (split, resized), (other, resized_too) = (
        _read(name, part.samples, size) for part in (train, val)
    )
    read = described(name, split, other, len(train.classes))
    number, width = resized + resized_too, first.shape[2]
    to = f"{width} x {size[0]} pixels, the size of the first"
    note = f"{number:,} of {len(split) + len(other):,} images were resized to {to}"
    return replace(read, note=note if number else "")


def _check_memory(name: str, image: Tensor, number: int) -> None:
    """Raise `SettingError` if so many images of this one's size do not fit into memory."""
    there, needed = memory_of(image.device), number * image.numel()
    rule = (
        f"takes {in_units(needed)} as {number:,} images of {image.shape[2]:,} x "
        f"{image.shape[1]:,} pixels, the size of the first"
    )
    fits = there is None or needed <= there
    require(fits, "dataset", name, rule, "make the first smaller: the others are resized to it")


def _read(name: str, samples: list[tuple[str, int]], size: tuple[int, ...]) -> tuple[Split, int]:
    """Return images and classes, and how many images had another size and were resized."""
    from torchvision.transforms.v2 import functional

    images, resized = torch.empty(len(samples), 3, *size, dtype=torch.uint8), 0
    for place, (path, _) in enumerate(samples):
        image = _image(name, path)
        if image.shape[1:] != size:
            image = functional.resize(image, list(size), antialias=True)
            resized += 1
        images[place] = image
    return Split(images, torch.tensor([label for _, label in samples])), resized


def _image(name: str, path: str) -> Tensor:
    """Return an image file's pixels, uint8 [3, H, W]."""
    from torchvision.transforms.v2 import functional

    pixels: Tensor = functional.pil_to_tensor(rgb_image(name, path))
    return pixels
