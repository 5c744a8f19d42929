"""Data sets that torchvision reads from files under the data folder, or downloads there."""

import gzip
import warnings
import zlib
from pathlib import Path
from typing import Any

import torch

from ...settings import SettingError, one_line
from ...units import in_units
from .cifar import read_cifar
from .contract import Dataset, Split
from .statistics import described

DOWNLOADED = {  # name of the class in torchvision.datasets
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
    "svhn": "SVHN",
    "stl10": "STL10",
}
_LARGEST = 1 << 30  # bytes of a file that is unpacked
_CLASSES = {"cifar100": 100}  # of all others 10
_BY_SPLIT = ("svhn", "stl10")  # whose class asks for a split by name


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
            if name in ("cifar10", "cifar100"):
                train, val = read_cifar(source, data_dir, download)
            else:
                train, val = (_split(part) for part in _read(name, source, data_dir, download))
        num_classes = _CLASSES.get(name, 10)
        for split in (train, val):
            assert len(split.images) == len(split.labels) > 0, "images and labels differ in number"
            assert int(split.labels.max()) < num_classes, "a label is out of range"
    except Exception as wrong:  # a damaged file makes torchvision's readers raise all sorts
        raise _unreadable(name, folder, files, download, wrong) from wrong
    return described(name, train, val, num_classes)


def _read(name: str, source: Any, data_dir: Path, download: bool) -> list[Any]:
    """Return the training and the test part, as torchvision reads them."""
    if name in _BY_SPLIT:
        return [source(data_dir, split=split, download=download) for split in ("train", "test")]
    return [source(data_dir, train=True, download=download), source(data_dir, train=False)]


def _expected(source: Any, data_dir: Path) -> tuple[Path, list[str]]:
    """Return the folder in which torchvision looks for a set, and its files' names."""
    if hasattr(source, "base_folder"):  # CIFAR, STL
        files = [file for file, _ in [*source.train_list, *source.test_list]]
        meta = [source.meta["filename"]] if hasattr(source, "meta") else []
        return data_dir / source.base_folder, [*files, *meta]
    if hasattr(source, "split_list"):  # SVHN
        return data_dir, [source.split_list[split][1] for split in ("train", "test")]
    files = [Path(address).stem for address, _ in source.resources]
    return data_dir / source.__name__ / "raw", files


def _unpack(name: str, folder: Path, files: list[str]) -> None:
    """Unpack files that lie there as .gz only, as MNIST's are handed out."""
    for file in files:
        packed = folder / f"{file}.gz"
        if packed.is_file() and not (folder / file).exists():
            try:
                _unpack_one(packed, folder / file)
            except (OSError, EOFError, zlib.error) as wrong:
                rule = f"cannot be unpacked from {packed} ({one_line(wrong)})"
                raise SettingError("dataset", name, rule, "replace it by a whole one") from wrong


def _unpack_one(packed: Path, file: Path) -> None:
    """Unpack a file beside itself, and give it its name when it is whole."""
    partial = file.with_name(f"{file.name}.partial")
    try:
        with gzip.open(packed) as opened:
            content = opened.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise OSError(f"it holds more than {in_units(_LARGEST)}")
        partial.write_bytes(content)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _split(part: Any) -> Split:
    images = torch.as_tensor(part.data)  # [N, H, W] or [N, C, H, W]
    if images.ndim == 3:
        images = images[:, None]
    labels = part.targets if hasattr(part, "targets") else part.labels
    return Split(images.contiguous(), torch.as_tensor(labels, dtype=torch.int64))


def _unreadable(
    name: str, folder: Path, files: list[str], download: bool, wrong: Exception
) -> SettingError:
    missing = [file for file in files if not (folder / file).is_file()]
    if download and missing:
        rule = f"could not be downloaded ({one_line(wrong)})"
        return SettingError("dataset", name, rule, f"put {', '.join(files)} into {folder}")
    if missing:
        rule = f"lacks {', '.join(missing)} in {folder}"
        return SettingError("dataset", name, rule, "put them there, or fetch them with --download")
    told = str(wrong) and "download=" not in str(wrong)  # as torchvision tells of each
    why = f" ({one_line(wrong)})" if told else ""
    rule = f"has a damaged file among {', '.join(files)} in {folder}{why}"
    return SettingError("dataset", name, rule, "remove them and fetch them anew with --download")
