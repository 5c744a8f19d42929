"""Data sets that torchvision reads from files under the data folder, or downloads there."""

import gzip
import warnings
import zlib
from pathlib import Path
from typing import Any

import torch

from ..settings import SettingError
from .contract import Dataset, Split, line

DOWNLOADED = {  # name of the class in torchvision.datasets
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
}


def from_files(name: str, data_dir: Path, download: bool) -> Dataset:
    """Return a data set of `DOWNLOADED`; errors as in `load`."""
    from torchvision import datasets

    source = getattr(datasets, DOWNLOADED[name])
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
                rule = f"cannot be unpacked from {packed} ({line(wrong)})"
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
        rule = f"could not be downloaded ({line(wrong)})"
        return SettingError("dataset", name, rule, f"put {', '.join(files)} into {folder}")
    if missing:
        rule = f"lacks {', '.join(missing)} in {folder}"
        return SettingError("dataset", name, rule, "put them there, or fetch them with --download")
    rule = f"has a damaged file among {', '.join(files)} in {folder} ({line(wrong)})"
    return SettingError("dataset", name, rule, "remove them and fetch them anew with --download")
