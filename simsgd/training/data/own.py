"""Data sets of a user's own: a file that makes one, or torch data sets and tensors in Python.

Samples are pairs (x, y) of tensors, or of dicts, lists and tuples of tensors; y may be the number
of a class or anything else that the loss takes.

Letters: N samples, B of a batch.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...gradients.generators import put_back
from ...gradients.trees import Tree, leaves, mapped, row, stacked
from ...registry import own_line
from ...settings import SettingError, one_line, quoted, require
from ..own_functions import own_function
from .contract import Dataset, Numbers, Samples
from .rows import paired
from .transfer import on_device
from .tree_forms import as_tensors, on, refuse_streams, scaled, targets_of, tensors_of

_LOOKED_AT = 32  # samples, for whether their targets are those that the data set keeps
_LABELS = ("targets", "labels")  # attributes in which data sets keep the classes of all samples
_SECOND = ("val", "validation", "valid", "test")  # names of the part for validation
_SEEDS = 1 << 53  # different numbers in [0, 1) of float64
_MOST = 1 << 30  # samples of a part
_MOST_CLASSES = 1 << 24
_DRAWS = (
    "a sample is another when it is read again, so that a resumed run is another: draw from torch, "
    "numpy or random themselves, and not from a generator or a counter that the data set keeps"
)
_LONGEST = 200  # characters of another library's error in ours
_PAIR = "(train, val), each a torch.utils.data.Dataset or a pair of tensors (x, y)"


@dataclass(frozen=True)
class Held:
    """Samples in memory."""

    x: Tree  # [N, ...]; uint8 is brought to [0, 1]
    y: Tree  # [N, ...]
    labels: Tensor | None  # y, if these are class numbers: int64 [N]
    streamed: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(leaves(self.y)[0])

    def to(self, device: torch.device | str) -> "Held":
        """Return the split on a device."""
        x, y = on(self.x, device), on(self.y, device)
        return Held(x, y, None if self.labels is None else y)

    def batches(
        self, indices: Iterable[Tensor], numbers: Numbers | None = None
    ) -> Iterator[tuple[Tree, Tree]]:
        """Return samples and targets at each of `indices`; nothing is drawn."""
        for index in indices:
            own = index.to(leaves(self.y)[0].device)
            yield scaled(row(self.x, own)), row(self.y, own)


@dataclass(frozen=True)
class Read:
    """Samples that a torch data set makes when they are asked for.

    What its transforms draw is a function of seed, epoch and sample; in evaluation, of the sample.
    """

    source: Any  # has len() and returns (x, y) for a number
    labels: Tensor | None  # classes, int64 [N]; None: targets are no classes
    device: torch.device | str = "cpu"  # on which batches are returned
    streamed: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.source)

    def to(self, device: torch.device | str) -> "Read":
        """Return the split that gives its batches on a device."""
        return Read(self.source, self.labels, device)

    def batches(
        self, indices: Iterable[Tensor], numbers: Numbers | None = None
    ) -> Iterator[tuple[Tree, Tree]]:
        """Return samples and targets at each of `indices`, one by one.

        A batch is read while a GPU computes with the one before.
        """
        read = (self._batch(index, numbers) for index in indices)
        for x, y in on_device(read, self.device):
            yield scaled(x), y

    def _batch(self, index: Tensor, numbers: Numbers | None) -> tuple[Tree, Tree]:
        """Return the samples and targets at `index` [B], on the CPU."""
        seeds = index.double() if numbers is None else numbers(index)[:, 0].double() * _SEEDS
        each = zip(index.tolist(), seeds.tolist(), strict=True)
        xs, ys = zip(*(self._one(i, int(seed)) for i, seed in each), strict=True)
        x = _stacked(xs, index)
        return x, _stacked(ys, index)

    def _one(self, index: int, seed: int) -> tuple[Tree, Tree]:
        with put_back(torch.device("cpu")) as generators:
            generators.seed(seed)
            x, y = _pair(self.source, index)
        return as_tensors(x), targets_of(as_tensors(y))


def _stacked(trees: Sequence[Tree], index: Tensor) -> Tree:
    """Return the samples at `index` as one. Raises `SettingError` for those of other shapes."""
    try:
        return stacked([*trees])
    except (RuntimeError, ValueError) as wrong:
        kinds = [[(tuple(leaf.shape), leaf.dtype) for leaf in leaves(tree)] for tree in trees]
        keys = [[*tree] if isinstance(tree, Mapping) else [] for tree in trees]
        forms = [*zip(keys, kinds, strict=True)]
        other = next((place for place, form in enumerate(forms) if form != forms[0]), -1)
        if keys[0] != keys[other]:
            pair = [", ".join(map(str, keys[place])) or "no dict" for place in (0, other)]
            rule = f"has samples of other keys, {pair[0]} and {pair[1]} of sample {index[other]}"
            raise SettingError("dataset", None, rule, "make them all alike") from wrong
        pair = [", ".join(str([*shape]) for shape, _ in kinds[place]) for place in (0, other)]
        rule = f"has samples of other shapes, {pair[0]} and {pair[1]} of sample {int(index[other])}"
        raise SettingError("dataset", None, rule, "make them all alike") from wrong


def own_file(spec: str, data_dir: Path) -> Dataset:
    """Return what a function in a file makes, of `./mine.py` or `./mine.py:function`.

    It is named as the file or `dataset` unless it is named, and given `data_dir` if it takes that.
    File and function draw the same each time, so that a resumed run, an evaluation and the runs of
    a sweep have the same data.
    Raises `SettingError` for a file or a function that does not exist, raises or returns something
    else than (train, val).
    """
    with put_back(torch.device("cpu")) as generators:
        generators.seed(0)
        make = own_function("dataset", spec)
        takes = inspect.signature(make).parameters
        try:
            made = make(**({"data_dir": data_dir} if "data_dir" in takes else {}))
        except Exception as wrong:  # whatever the user's own code raises
            told = f"cannot be made: {type(wrong).__name__}: {one_line(wrong)}"
            raise SettingError("dataset", spec, told) from wrong
    return own_dataset(Path(spec).name, made)


def own_dataset(name: str, pair: object) -> Dataset:
    """Return the data set of (train, val), or of a mapping with these names.

    Raises `SettingError` for anything else.
    """
    if isinstance(pair, Mapping):
        several = [name for name in _SECOND if pair.get(name) is not None]
        rule, fix = f"has both {' and '.join(several)}", "leave in it what is to be validated on"
        require(len(several) < 2, "dataset", name, rule, fix)
        pair = pair.get("train"), next((pair[k] for k in _SECOND if k in pair), None)
    if not isinstance(pair, Sequence) or len(pair) != 2 or any(part is None for part in pair):
        raise SettingError(
            "dataset", name, "is not a training and a validation part", f"give {_PAIR}"
        )
    train, val = (_samples(name, part) for part in pair)
    if (train.labels is None) is not (val.labels is None):
        raise SettingError("dataset", name, "has class numbers as targets in one of its parts only")
    x, y = _first(name, train)
    _first(name, val)
    filled = all(leaf.numel() > 0 for leaf in leaves(x))
    require(filled, "dataset", name, "has samples without numbers", f"give {_PAIR}")
    shape = tuple(x.shape[1:]) if isinstance(x, Tensor) else None
    note = "" if _is_same(_first(name, train)[0], x) else _DRAWS
    return Dataset(name, train, val, _outputs(train, val, y), shape, note=note)


def _is_same(one: Tree, other: Tree) -> bool:
    pairs = zip(leaves(one), leaves(other), strict=True)
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def _first(name: str, part: Samples) -> tuple[Tree, Tree]:
    """Return the first sample and target, [1, ...] each."""
    try:
        return next(iter(part.batches([torch.arange(1)])))
    except SettingError as wrong:
        raise SettingError("dataset", name, wrong.rule, wrong.fix) from wrong
    except Exception as wrong:  # of tensors that cannot be taken apart
        raise _no_pair(name, wrong) from wrong


def _no_pair(name: str, wrong: Exception) -> SettingError:
    told = f"gives no pair (x, y): {type(wrong).__name__}: {one_line(wrong)[:_LONGEST]}"
    return SettingError("dataset", name, told, f"give {_PAIR}")


def _outputs(train: Samples, val: Samples, target: Tree) -> int | None:
    """Return the number of classes, or of the numbers in a target [1, ...]; None where unclear."""
    if train.labels is not None and val.labels is not None:
        return 1 + int(max(train.labels.max(), val.labels.max()))
    if not isinstance(target, Tensor) or not target.is_floating_point() or target.dim() > 2:
        return None
    return 1 if target.dim() == 1 else target.shape[1]


def _samples(name: str, part: Any) -> Samples:
    tensors = part.tensors if _is_plain(part) else part
    if isinstance(tensors, list | tuple) and len(tensors) == 2 and _is_tree(tensors):
        return _held(name, *tensors)
    are_lists = isinstance(tensors, tuple) and all(isinstance(each, list) for each in tensors)
    are_arrays = isinstance(tensors, list | tuple) and hasattr(next(iter(tensors), None), "shape")
    if (are_lists or are_arrays) and len(tensors) == 2:
        kinds = " and ".join(type(each).__name__ for each in tensors)
        rule = f"has a part of {kinds}, and both must be tensors"
        raise SettingError("dataset", name, rule, "such as torch.as_tensor makes of an array")
    indexed = hasattr(part, "__len__") and hasattr(part, "__getitem__")
    refuse_streams(name, part)
    if isinstance(part, Tensor) or not indexed or (isinstance(part, tuple) and _is_tree(part)):
        rule = f"has a part of type {type(part).__name__}, which holds no pairs (x, y)"
        raise SettingError("dataset", name, rule, f"give {_PAIR}")
    try:
        require(len(part) > 0, "dataset", name, "has a part without samples", f"give {_PAIR}")
        return _read(name, paired(name, part))
    except SettingError as wrong:
        raise SettingError("dataset", name, wrong.rule, wrong.fix) from wrong
    except Exception as wrong:  # whatever the user's own code raises
        raise _no_pair(name, wrong) from wrong


def _is_plain(part: object) -> bool:
    """Return whether a data set gives its tensors as they are, and all of them."""
    plain, kind = torch.utils.data.TensorDataset, type(part)
    same = all(getattr(kind, n, 0) is getattr(plain, n) for n in ("__getitem__", "__len__"))
    return isinstance(part, plain) and same


def _is_tree(parts: Sequence[Any]) -> bool:
    """Return whether all parts are tensors, or dicts, lists and tuples of tensors."""
    return all(isinstance(part, Tensor | dict | list | tuple) and leaves(part) for part in parts)


def _held(name: str, x: Tree, y: Tree) -> Held:
    sizes = {leaf.shape[0] if leaf.dim() else -1 for leaf in (*leaves(x), *leaves(y))}
    if len(sizes) != 1 or not sizes - {0, -1}:
        rule = "must have as many targets as samples, and at least one"
        raise SettingError("dataset", name, rule, f"give {_PAIR}")
    empty = any(leaf.is_meta for leaf in (*leaves(x), *leaves(y)))
    rule, fix = "has tensors without numbers, on the device meta", "make them on cpu"
    require(not empty, "dataset", name, rule, fix)
    sparse = any(leaf.layout != torch.strided for leaf in (*leaves(x), *leaves(y)))
    require(not sparse, "dataset", name, "has sparse tensors", "make them dense, with to_dense()")
    x, y = mapped(Tensor.detach, x), targets_of(mapped(Tensor.detach, y))
    return Held(x, y, _classes(name, y))


def _read(name: str, part: Any) -> Read:
    rule = f"has a part of {len(part):,} samples, and may have {_MOST:,}"
    require(len(part) <= _MOST, "dataset", name, rule)
    x, y = _pair(part, 0)
    as_tensors(x)
    first = as_tensors(y)
    if not isinstance(first, Tensor) or first.dim() or first.is_floating_point():
        return Read(part, None)
    known = next((getattr(part, own) for own in _LABELS if hasattr(part, own)), None)
    if known is None:
        labels = tensors_of([_class(_pair(part, i)[1], i) for i in range(len(part))])
    else:
        labels = tensors_of(known)
        rule = f"has {len(labels)} targets for {len(part)} samples"
        require(len(labels) == len(part), "dataset", name, rule, "each input needs a target")
        some = range(0, len(part), -(-len(part) // _LOOKED_AT))
        others = labels.dim() > 1 or any(_class(_pair(part, i)[1], i) != labels[i] for i in some)
        if others:  # it makes others of them
            labels = tensors_of([_class(_pair(part, i)[1], i) for i in range(len(part))])
    return Read(part, _classes(name, labels))


def _pair(source: Any, index: int) -> Sequence[Any]:
    """Return a sample and its target. Raises `SettingError`, with its number, for no such pair."""
    try:
        sample = source[index]
    except Exception as wrong:  # whatever the user's own code raises
        told = own_line(wrong) or f"{type(wrong).__name__}: {one_line(wrong)[:_LONGEST]}"
        raise SettingError("dataset", None, f"cannot give sample {index}: {told}") from wrong
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        kind = type(sample).__name__
        kind += f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
        rule = f"gives a {kind} as sample {index}, which is no pair (x, y)"
        fix = "give the target beside the input; several inputs are one x, as ((a, b), y)"
        raise SettingError("dataset", None, rule, fix)
    return sample


def _class(target: object, index: int) -> int:
    """Return a class number. Raises `SettingError` for a target that is none, unlike the first."""
    try:
        number = int(target)  # type: ignore[call-overload]
        if number == target:
            return int(number)
    except (TypeError, ValueError, RuntimeError):
        pass
    rule = f"has {quoted(target)} as the target of sample {index}, and class numbers before"
    raise SettingError("dataset", None, rule, "make all of them class numbers, from 0 on")


def _classes(name: str, targets: Tree) -> Tensor | None:
    """Return targets that are class numbers, int64 [N]; None for others."""
    if not isinstance(targets, Tensor) or targets.dim() != 1:
        return None
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        return None
    if int(targets.min()) < 0:
        fix = "class numbers count from 0; make numbers that are no classes floating point"
        raise SettingError("dataset", name, f"has a label {int(targets.min())}", fix)
    largest, rule = int(targets.max()), f"has a label {int(targets.max()):,}"
    fix = f"classes go up to {_MOST_CLASSES:,}; make numbers that are no classes floating point"
    require(largest < _MOST_CLASSES, "dataset", name, rule, fix)
    return targets.long()
