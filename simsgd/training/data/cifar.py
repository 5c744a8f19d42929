"""Reads CIFAR's files, which are Python pickles, without running what a pickle may hold.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .contract import Split

_ADMITTED = {"_reconstruct", "ndarray", "dtype", "_frombuffer", "scalar", "encode"}
_CORE = {f"numpy.{core}.{part}" for core in ("core", "_core") for part in ("multiarray", "numeric")}
_FROM = {"numpy", "_codecs", *_CORE}


class PlainUnpickler(pickle.Unpickler):
    """Reads pickles of arrays, lists, dicts, text and numbers; anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what makes an array. Raises `UnpicklingError` for anything else."""
        if module in _FROM and name in _ADMITTED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks to run {module}.{name}")


def read_cifar(source: Any, data_dir: Path, download: bool) -> list[Split]:
    """Return the training and the test part of a class of torchvision's, CIFAR10 or CIFAR100.

    Raises whatever a damaged file makes NumPy and pickle raise.
    """
    from torchvision.datasets import utils

    if download:
        whole = {"filename": source.filename, "md5": source.tgz_md5}
        utils.download_and_extract_archive(source.url, data_dir, **whole)
    folder = data_dir / source.base_folder
    meta = (source.meta["filename"], source.meta["md5"])
    for name, checksum in [*source.train_list, *source.test_list, meta]:
        assert utils.check_integrity(folder / name, checksum), f"{name} is not as published"
    return [
        _split([folder / name for name, _ in files])
        for files in (source.train_list, source.test_list)
    ]


def _split(files: list[Path]) -> Split:
    images, labels = [], []
    for file in files:
        with file.open("rb") as opened:
            entry = PlainUnpickler(opened, encoding="latin1").load()
        images.append(np.asarray(entry["data"], dtype=np.uint8))
        labels += entry["labels"] if "labels" in entry else entry["fine_labels"]
    pixels = torch.from_numpy(np.concatenate(images)).view(-1, 3, 32, 32)
    return Split(pixels, torch.tensor(labels, dtype=torch.int64))
