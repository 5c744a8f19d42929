"""Data in LIBSVM's format: `libsvm:PATH`, a label and numbered features a line.

Letters: N samples, B of a batch, F features.

Epsilon, rcv1 and others of https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/ are handed out
so. A second file PATH.t is for validation, as is usual there; without one, a fifth of each class.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...settings import SettingError, one_line, require
from ...units import home_path
from .contract import Dataset, Numbers
from .embedded import for_validation


class _Matrix(Protocol):
    """A CSR matrix of SciPy's, as far as it is used here."""

    shape: tuple[int, int]
    indptr: NDArray[np.int32]
    indices: NDArray[np.int32]
    data: NDArray[np.float32]

    def __getitem__(self, part: NDArray[np.bool_] | tuple[slice, slice]) -> "_Matrix":
        """Return some rows, or some columns of all."""

    def sum_duplicates(self) -> None:
        """Add up what stands at the same place, in place."""


_LAYOUT = "a line must read: LABEL NUMBER:VALUE NUMBER:VALUE ..."
_PACKED = (".gz", ".bz2")
_MOST = 1 << 24  # features; webspam's trigrams, 16.6 million, are in
_SOURCE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"


@dataclass(frozen=True)
class Rows:
    """Sparse samples, made dense a batch at a time."""

    starts: Tensor  # int64 [N + 1]: entries of sample i are starts[i] to starts[i + 1]
    columns: Tensor  # int32, of each entry
    values: Tensor  # float32, of each entry
    labels: Tensor  # int64 [N]
    features: int  # F
    streamed: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Rows":
        """Return the split on a device."""
        starts, columns = self.starts.to(device), self.columns.to(device)
        values, labels = self.values.to(device), self.labels.to(device)
        return Rows(starts, columns, values, labels, self.features)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples at `index` [B] as float32 [B, F], and their labels."""
        index = index.to(self.labels.device)
        first, sizes = self.starts[index], self.starts[index + 1] - self.starts[index]
        row = torch.repeat_interleave(sizes)  # of each entry of the batch
        before = sizes.cumsum(0) - sizes
        entry = first[row] + torch.arange(len(row), device=row.device) - before[row]
        dense = self.values.new_zeros(len(index), self.features)
        dense[row, self.columns[entry].long()] = self.values[entry]
        return dense, self.labels[index]

    def batches(
        self, indices: Iterable[Tensor], numbers: Numbers | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Return samples and labels as `batch` does, for each of `indices`; nothing is drawn."""
        return map(self.batch, indices)


def libsvm(name: str, path: str, data_dir: Path) -> Dataset:
    """Read PATH, here or in the data folder, plain or packed as .gz or .bz2."""
    require(path != "", "dataset", name, "names no file", "write libsvm:PATH")
    file = home_path(path)
    file = file if file.exists() else data_dir / path
    fix = f"put one there, such as those of {_SOURCE}"
    require(file.is_file(), "dataset", name, f"names no file {file}", fix)
    second = _second(name, file)
    parts = _read(name, [file] if second is None else [file, second])
    classes, labels = np.unique(parts[0][1], return_inverse=True)
    require(len(classes) > 1, "dataset", name, f"has but one class in {file}")
    rule = f"has {len(classes)} different labels in {len(labels)} samples, as real numbers are"
    fix = "classes need two samples each on average"
    require(len(classes) <= len(labels) // 2, "dataset", name, rule, fix)
    train = _rows(parts[0][0], labels)
    if second is None:
        is_val = for_validation(train.labels).numpy()
        rows = [_rows(parts[0][0][own], labels[own]) for own in (~is_val, is_val)]
        return Dataset(name, rows[0], rows[1], len(classes), (train.features,))
    strange = sorted({*parts[1][1].tolist()} - {*classes.tolist()})
    rule = f"has labels in {second} that {file} lacks: {', '.join(f'{s:g}' for s in strange)}"
    require(not strange, "dataset", name, rule)
    val = _rows(parts[1][0], np.searchsorted(classes, parts[1][1]))
    return Dataset(name, train, val, len(classes), (train.features,))


def _second(name: str, file: Path) -> Path | None:
    """Return the file for validation, `a.t` beside `a`, each packed or not, if there is one."""
    own = file.suffix if file.suffix in _PACKED else ""
    plain = file.name.removesuffix(own)
    places = [file.with_name(f"{plain}.t{packed}") for packed in (own, "", *_PACKED)]
    second = next((place for place in places if place.exists()), None)
    rule = f"has {second} for validation, which is no file"
    require(second is None or second.is_file(), "dataset", name, rule)
    return second


def _read(name: str, files: list[Path]) -> list[tuple[_Matrix, NDArray[np.float64]]]:
    """Return features (a SciPy CSR matrix) and labels of each file, all of as many features."""
    from sklearn.datasets import load_svmlight_files

    try:
        names = [str(file) for file in files]
        read = load_svmlight_files(names, dtype=np.float32, zero_based=True)
    except (ValueError, OSError, EOFError, OverflowError, MemoryError) as wrong:
        rule = f"cannot be read from {' and '.join(map(str, files))} ({one_line(wrong)})"
        raise SettingError("dataset", name, rule, _LAYOUT) from wrong
    parts = list(zip(read[::2], read[1::2], strict=True))
    counted = [bool((features.indices == 0).any()) for features, _ in parts]
    rule = f"counts features from 0 in one of {' and '.join(names)} and from 1 in the other"
    require(len({*counted}) == 1, "dataset", name, rule, "count from 1 in both")
    if not any(counted):
        parts = [(features[:, 1:], labels) for features, labels in parts]
    for file, (features, labels) in zip(files, parts, strict=True):
        filled = features.shape[0] > 0 and features.shape[1] > 0
        require(filled, "dataset", name, f"has no samples in {file}", _LAYOUT)
        rule = f"has {features.shape[1]:,} features in {file}, more than {_MOST:,}"
        require(features.shape[1] <= _MOST, "dataset", name, rule, "a batch of them is made dense")
        finite = bool(np.isfinite(features.data).all())
        require(finite, "dataset", name, f"has a feature that is not finite in {file}")
        finite = bool(np.isfinite(labels).all())
        require(finite, "dataset", name, f"has a label that is not finite in {file}")
    return parts


def _rows(features: _Matrix, labels: NDArray[np.generic]) -> Rows:
    features.sum_duplicates()
    return Rows(
        torch.from_numpy(features.indptr.astype(np.int64)),
        torch.from_numpy(features.indices.astype(np.int32)),
        torch.from_numpy(features.data),
        torch.from_numpy(labels.astype(np.int64)),
        features.shape[1],
    )
