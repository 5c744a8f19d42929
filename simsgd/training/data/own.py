"""Data sets of a user's own: a file that makes one, or torch data sets and tensors in Python.

Letters: N samples, B of a batch.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...gradients.generators import put_back
from ...registry import load_file
from ...settings import SettingError, one_line
from .contract import Dataset, Numbers, Samples

_LABELS = ("targets", "labels")  # attributes in which data sets keep the classes of all samples
_SECOND = ("val", "validation", "valid", "test")  # names of the part for validation
_SEEDS = 1 << 53  # different numbers in [0, 1) of float64
_PAIR = "(train, val), each a torch.utils.data.Dataset or a pair of tensors (x, labels)"


@dataclass(frozen=True)
class Held:
    """Samples in memory."""

    x: Tensor  # [N, ...]; uint8 is brought to [0, 1]
    labels: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Held":
        """Return the split on a device."""
        return Held(self.x.to(device), self.labels.to(device))

    def batches(
        self, indices: Iterable[Tensor], numbers: Numbers | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Return samples and labels at each of `indices`; nothing is drawn."""
        for index in indices:
            own = index.to(self.labels.device)
            yield _scaled(self.x[own]), self.labels[own]


@dataclass(frozen=True)
class Read:
    """Samples that a torch data set makes when they are asked for.

    What its transforms draw is a function of seed, epoch and sample; in evaluation, of the sample.
    """

    source: Any  # has len() and returns (x, label) for a number
    labels: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Read":
        """Return the split that gives its batches on a device."""
        return Read(self.source, self.labels.to(device))

    def batches(
        self, indices: Iterable[Tensor], numbers: Numbers | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Return samples and labels at each of `indices`, one by one."""
        device = self.labels.device
        for index in indices:
            own = index.to(device)
            seeds = own.double() if numbers is None else numbers(index)[:, 0].double() * _SEEDS
            x = torch.stack(
                [self._one(i, int(seed)) for i, seed in zip(own.tolist(), seeds, strict=True)]
            )
            yield _scaled(x.to(device)), self.labels[own]

    def _one(self, index: int, seed: int) -> Tensor:
        with put_back(torch.device("cpu")) as generators:
            generators.seed(seed)
            x = self.source[index][0]
        return _tensor(x)


def own_file(spec: str, data_dir: Path) -> Dataset:
    """Return what a function in a file makes, of `./mine.py` or `./mine.py:function`.

    It is named as the file or `dataset` unless it is named, and given `data_dir` if it takes that.
    Raises `SettingError` for a file or a function that does not exist, raises or returns something
    else than (train, val).
    """
    path, _, name = spec.partition(".py")
    file = Path(path + ".py").expanduser()
    module = load_file(file, "dataset")
    wanted = [name.removeprefix(":")] if name else [file.stem, "dataset"]
    make = next((getattr(module, own) for own in wanted if hasattr(module, own)), None)
    if not callable(make):
        raise SettingError("dataset", spec, f"defines no function {' or '.join(wanted)}")
    takes = inspect.signature(make).parameters
    try:
        made = make(**({"data_dir": data_dir} if "data_dir" in takes else {}))
    except Exception as wrong:  # whatever the user's own code raises
        told = f"cannot be made: {type(wrong).__name__}: {one_line(wrong)}"
        raise SettingError("dataset", spec, told) from wrong
    return own_dataset(file.name + name, made)


def own_dataset(name: str, pair: object) -> Dataset:
    """Return the data set of (train, val), or of a mapping with these names.

    Raises `SettingError` for anything else, and for labels that are no class numbers.
    """
    if isinstance(pair, Mapping):
        pair = (
            pair.get("train"),
            next((pair[k] for k in ("val", "valid", "test") if k in pair), None),
        )
    if not isinstance(pair, Sequence) or len(pair) != 2 or any(part is None for part in pair):
        raise SettingError(
            "dataset", name, "is not a training and a validation part", f"give {_PAIR}"
        )
    train, val = (_samples(name, part) for part in pair)
    classes = 1 + int(max(train.labels.max(), val.labels.max()))
    (first, _) = next(train.batches([torch.arange(1)]))
    return Dataset(name, train, val, classes, tuple(first.shape[1:]))


def _samples(name: str, part: Any) -> Samples:
    tensors = part.tensors if isinstance(part, torch.utils.data.TensorDataset) else part
    if isinstance(tensors, Sequence) and all(isinstance(own, Tensor) for own in tensors):
        if len(tensors) != 2 or len(tensors[0]) != len(tensors[1]):
            raise SettingError(
                "dataset", name, "must have as many labels as samples", f"give {_PAIR}"
            )
        return Held(tensors[0], _classes(name, tensors[1]))
    indexed = hasattr(part, "__len__") and hasattr(part, "__getitem__")
    if isinstance(part, Tensor) or not indexed:
        rule = f"has a part of type {type(part).__name__}, which holds no pairs (x, label)"
        raise SettingError("dataset", name, rule, f"give {_PAIR}")
    known = next((getattr(part, own) for own in _LABELS if hasattr(part, own)), None)
    try:
        labels = [part[i][1] for i in range(len(part))] if known is None else known
        _tensor(part[0][0])
        return Read(part, _classes(name, torch.as_tensor(labels)))
    except SettingError:
        raise
    except Exception as wrong:  # whatever the user's own code raises
        told = f"gives no pair (x, label): {type(wrong).__name__}: {one_line(wrong)}"
        raise SettingError("dataset", name, told, f"give {_PAIR}") from wrong


def _classes(name: str, labels: Tensor) -> Tensor:
    if labels.dim() != 1 or labels.is_floating_point() or not len(labels) or int(labels.min()) < 0:
        rule = f"has labels of shape {tuple(labels.shape)} and {labels.dtype}"
        fix = "each must be a class number from 0 on; other targets are for a Simulator in a loop"
        raise SettingError("dataset", name, rule, fix)
    return labels.long()


def _tensor(x: object) -> Tensor:
    if type(x).__module__.startswith("PIL."):
        raise SettingError("dataset", None, "gives PIL images", "give it transforms.ToTensor()")
    return torch.as_tensor(x)


def _scaled(x: Tensor) -> Tensor:
    return x.float().div_(255) if x.dtype == torch.uint8 else x
