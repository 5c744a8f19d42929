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
from ...settings import SettingError, is_plain_number, require, unknown

Numbers = NDArray[np.int64]
PARTITIONS = ("iid-reshuffled", "iid-fixed", "sorted", "dirichlet:ALPHA", "shards:S")
_TURNS = 100  # in which dirichlet deals out the samples
_FORM = re.compile(r"(iid-reshuffled|iid-fixed|sorted|dirichlet|shards)(?::(.+))?")


def parted(spec: str, labels: Tensor | int, workers: int, seed: int) -> list[Tensor] | None:
    """Return the samples of each worker, [m] int64; None if any have any.

    Every sample is somebody's. All have n / W, up to one, or up to one for each shard.

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
    if isinstance(labels, int):
        rule = "divides by class, and the targets are no class numbers"
        raise SettingError("partition", spec, rule, "use iid-fixed or iid-reshuffled")
    by_class = labels.cpu().sort(stable=True).indices
    if name == "sorted":
        return _runs(by_class, workers)
    if name == "shards":
        return _shards(spec, by_class, workers, int(value), rng)
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
    rows = []
    for worker, part in enumerate(parts):
        taken: list[Tensor] = []
        for turn in range(-(-take // len(part))):
            rng = np.random.default_rng(derived("order", seed, epoch, worker, turn))
            taken.append(part[torch.from_numpy(rng.permutation(len(part)))])
        rows.append(torch.cat(taken)[:take])
    return torch.stack(rows)


def _read(spec: str) -> tuple[str, float]:
    """Return name and number of a spec."""
    read = _FORM.fullmatch(spec)
    if read is None:
        raise unknown("partition", spec, PARTITIONS)
    name, text = read[1], read[2]
    wanted = {"dirichlet": "ALPHA, a number above 0", "shards": "S, a whole number of at least 1"}
    if name not in wanted:
        require(text is None, "partition", spec, "takes no number", f"write {name}")
        return name, 0.0
    value = float(text) if is_plain_number(text or "") else 0.0
    good = 0 < value < float("inf") and (name == "dirichlet" or value.is_integer())
    if not good:
        raise SettingError("partition", spec, f"needs {wanted[name]}", f"as in {name}:2")
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
