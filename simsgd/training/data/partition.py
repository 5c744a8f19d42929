"""Decides which training samples each worker has.

Letters: n samples, W workers, m samples of each worker.
"""

import re

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...keyed_random import derived
from ...results.tables import PartitionRow
from ...settings import SettingError, require, unknown
from ...units import is_plain_number

Numbers = NDArray[np.int64]
PARTITIONS = (
    "iid-reshuffled", "iid-fixed", "sorted", "dirichlet:ALPHA", "shards:S", "quantity:ALPHA",
    "label-dirichlet:ALPHA",
)  # fmt: skip
_MOST_ROWS, _MOST_COLUMNS = 32, 12  # workers and classes in the table of classes
_TURNS = 100  # in which dirichlet deals out the samples
_FORM = re.compile(
    r"(iid-reshuffled|iid-fixed|sorted|dirichlet|shards|quantity|label-dirichlet)(?::(.+))?"
)


def parted(spec: str, labels: Tensor | int, workers: int, seed: int) -> list[Tensor] | None:
    """Return the samples of each worker, [m] int64; None if any have any.

    Every sample is somebody's. All have n / W, up to one, or up to one for each shard, except with
    the last two, where each has at least one.

    `labels` [n] are class numbers, or n itself of samples without classes.

    - iid-reshuffled: None, all samples are dealt out anew in each epoch.
    - iid-fixed: dealt out once at random.
    - sorted: sorted by class and cut into W runs, so that a worker sees few classes.
    - shards:S: sorted, cut into S * W shards of like size, S to each worker at random (McMahan et
      al., AISTATS 2017).
    - dirichlet:ALPHA: each worker draws shares of the classes from a Dirichlet distribution around
      the whole set's, with concentration ALPHA, and all fill them in turns, without replacement,
      from the other classes when those are used up (Hsu, Qi, Brown, "Measuring the Effects of
      Non-Identical Data Distribution", 2019, https://arxiv.org/abs/1909.06335). A small ALPHA gives
      each worker few classes.
    - quantity:ALPHA: at random, in shares of a Dirichlet distribution of concentration ALPHA: a
      small one makes a few workers large (Li, Diao, Chen, He, "Federated Learning on Non-IID Data
      Silos: An Experimental Study", ICDE 2022, https://arxiv.org/abs/2102.02079).
    - label-dirichlet:ALPHA: so each class by itself, which makes both sizes and classes unlike
      (Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019,
      https://arxiv.org/abs/1905.12022).

    Raises `SettingError` for another spec, for one by class where there are none, and for more
    workers or shards than samples.
    """
    name, value = _read(spec)
    if name == "iid-reshuffled":
        return None
    rule = f"leaves no sample for some of {workers} workers"
    n = labels if isinstance(labels, int) else len(labels)
    require(n >= workers, "partition", spec, rule, f"use at most {n} workers")
    rng = np.random.default_rng(derived("partition", seed))
    if name == "iid-fixed":
        return _runs(torch.from_numpy(rng.permutation(n)), workers)
    if name == "quantity":
        return _by_shares([rng.permutation(n)], workers, value, rng)
    if isinstance(labels, int):
        rule = "divides by class, and the targets are no class numbers"
        raise SettingError("partition", spec, rule, "use iid-fixed or iid-reshuffled")
    by_class = labels.cpu().sort(stable=True).indices
    if name == "sorted":
        return _runs(by_class, workers)
    if name == "shards":
        return _shards(spec, by_class, workers, int(value), rng)
    if name == "label-dirichlet":
        classes = labels.cpu().unique().tolist()
        pools = [(labels.cpu() == c).nonzero()[:, 0].numpy() for c in classes]
        return _by_shares([rng.permutation(pool) for pool in pools], workers, value, rng)
    return _dirichlet(labels.cpu(), workers, value, rng)


def by_class(parts: list[Tensor], labels: Tensor, classes: int) -> Tensor:
    """Return how many samples of each class each worker has, [W, classes] int64."""
    labels = labels.cpu()
    return torch.stack([labels[part].bincount(minlength=classes) for part in parts])


def table_of_classes(table: Tensor) -> str:
    """Return the table of classes by workers as text.

    >>> print(table_of_classes(torch.tensor([[3, 0], [1, 2]])))
    samples by worker and class
    worker    0    1  all
         0    3    0    3
         1    1    2    3
    """
    wide = max(4, len(str(int(table.sum(1).max()))))
    head = "".join(f" {c:>{wide}}" for c in range(table.shape[1]))
    lines = ["samples by worker and class", f"worker{head} {'all':>{wide}}"]
    for worker, row in enumerate(table.tolist()):
        cells = "".join(f" {c:>{wide}}" for c in [*row, sum(row)])
        lines.append(f"{worker:>6}{cells}")
    return "\n".join(lines)


def classes_in_words(table: Tensor) -> str:
    """Return a table of classes by workers [W, classes], or a line where they are many."""
    if len(table) <= _MOST_ROWS and table.shape[1] <= _MOST_COLUMNS:
        return table_of_classes(table)
    return f"{classes_in_short(table)}; partition.csv has all"


def classes_in_short(table: Tensor) -> str:
    """Return what a table of classes by workers [W, classes] comes to, in a line.

    >>> print(classes_in_short(torch.tensor([[3, 0], [1, 2], [0, 9]])))
    samples of 3 workers: 3 to 9, median 3; classes of each: 1 to 2, median 1
    """
    samples, classes = table.sum(1), table.gt(0).sum(1)

    def told(numbers: Tensor) -> str:
        return f"{int(numbers.min())} to {int(numbers.max())}, median {int(numbers.median())}"

    return f"samples of {len(table):,} workers: {told(samples)}; classes of each: {told(classes)}"


def partition_rows(table: Tensor) -> list[PartitionRow]:
    """Return the rows of partition.csv of the table [W, classes] that `by_class` made."""
    return [
        {"worker": worker, "class": label, "samples": samples}
        for worker, row in enumerate(table.tolist())
        for label, samples in enumerate(row)
    ]


def epoch_index(parts: list[Tensor], take: int, seed: int, epoch: int) -> Tensor:
    """Return the samples that each worker takes in an epoch, in order, [W, take].

    Each goes through its own samples in an order of (seed, epoch, worker); who has fewer than
    `take` goes through them again in another order.
    """
    places = [(seed, epoch, worker) for worker in range(len(parts))]
    pairs = zip(parts, places, strict=True)
    return torch.stack([samples_in_order(part, take, *place) for part, place in pairs])


def samples_in_order(part: Tensor, take: int, *place: int | str) -> Tensor:
    """Return `take` of the samples `part` [m], in passes, each in an order of `place`."""
    taken: list[Tensor] = []
    for turn in range(-(-take // len(part))):
        rng = np.random.default_rng(derived("order", *place, turn))
        taken.append(part[torch.from_numpy(rng.permutation(len(part)))])
    return torch.cat(taken)[:take]


def _read(spec: str) -> tuple[str, float]:
    """Return name and number of a spec."""
    read = _FORM.fullmatch(spec)
    if read is None:
        raise unknown("partition", spec, PARTITIONS)
    name, text = read[1], read[2]
    if name in ("iid-reshuffled", "iid-fixed", "sorted"):
        require(text is None, "partition", spec, "takes no number", f"write {name}")
        return name, 0.0
    value = float(text) if is_plain_number(text or "") else 0.0
    whole = name == "shards"
    good = 0 < value < float("inf") and (not whole or value.is_integer())
    wanted = "S, a whole number of at least 1" if whole else "ALPHA, a number above 0"
    if not good:
        raise SettingError("partition", spec, f"needs {wanted}", f"as in {name}:2")
    return name, value


def _runs(order: Tensor, workers: int) -> list[Tensor]:
    return list(order.tensor_split(workers))


def _shards(
    spec: str, order: Tensor, workers: int, each: int, rng: np.random.Generator
) -> list[Tensor]:
    rule = f"makes {workers * each} shards of {len(order)} samples"
    enough = len(order) >= workers * each
    require(enough, "partition", spec, rule, "use fewer shards")
    shards = order.tensor_split(workers * each)
    dealt = rng.permutation(workers * each).reshape(workers, each).tolist()
    return [torch.cat([shards[shard] for shard in own]) for own in dealt]


def _by_shares(
    pools: list[Numbers], workers: int, alpha: float, rng: np.random.Generator
) -> list[Tensor]:
    """Cut pools into shares of a Dirichlet distribution; who has nothing gets of the largest."""
    mine: list[list[Numbers]] = [[] for _ in range(workers)]
    for pool in pools:
        shares = rng.dirichlet(np.full(workers, alpha))
        ends = (shares.cumsum() * len(pool)).round().astype(np.int64)[:-1]
        for own, part in zip(mine, np.split(pool, ends), strict=True):
            own.append(part)
    parts = [np.concatenate(own) for own in mine]
    for worker in range(workers):
        if not len(parts[worker]):
            largest = max(range(workers), key=lambda other: len(parts[other]))
            parts[worker], parts[largest] = parts[largest][:1], parts[largest][1:]
    return [torch.from_numpy(own) for own in parts]


def _dirichlet(
    labels: Tensor, workers: int, alpha: float, rng: np.random.Generator
) -> list[Tensor]:
    """Deal out the samples a few at a time, so that nobody is left with what others left."""
    pools = [(labels == c).nonzero()[:, 0].numpy() for c in labels.unique().tolist()]
    pools = [rng.permutation(pool) for pool in pools]
    free = np.array([len(pool) for pool in pools])  # of each class, not yet dealt out
    shares = rng.dirichlet(alpha * free / len(labels) * len(pools), size=workers)  # [W, classes]
    wants = np.array([len(part) for part in labels.tensor_split(workers)])  # samples, [W]
    few = -(-wants.max() // _TURNS)
    mine: list[list[Numbers]] = [[] for _ in range(workers)]
    while wants.any():
        for worker in rng.permutation(workers):
            left = min(few, wants[worker])
            wants[worker] -= left
            while left:
                drawn = _drawn(shares[worker], free, left, rng)
                for c in drawn.nonzero()[0]:
                    mine[worker].append(pools[c][free[c] - drawn[c] : free[c]])
                free, left = free - drawn, left - int(drawn.sum())
    return [torch.from_numpy(np.concatenate(own)) for own in mine]


def _drawn(
    shares: NDArray[np.float64], free: Numbers, most: int, rng: np.random.Generator
) -> Numbers:
    """Return how many samples of each class, at most `most` in all, are drawn by the shares."""
    open_shares = np.where(free > 0, shares, 0.0)
    if open_shares.sum() < 1e-12:  # all that it wanted is gone
        open_shares = free.astype(float)
    return rng.multinomial(most, open_shares / open_shares.sum()).clip(max=free)
