"""Splits a global batch over the workers.

Letters: W simulated workers, b samples each, M passes, B = W * b * M.
"""

from torch import Tensor

from ..gradients.trees import Tree, leaves, mapped
from ..settings import SettingError


def shard(batch: Tree, workers: int, passes: int) -> Tree:
    """Return the samples of each worker and pass, [W, M, b, ...], of a batch [B, ...].

    A batch may be dicts, lists and tuples of such tensors.
    Raises `SettingError` if it has no tensor, or if B is no multiple of W * M.
    """
    if not leaves(batch):
        rule, fix = "has no tensor", "give tensors, as torch.as_tensor makes of an array"
        raise SettingError("batch", type(batch).__name__, rule, fix)
    return mapped(lambda part: _shard(part, workers, passes), batch)


def _shard(batch: Tensor, workers: int, passes: int) -> Tensor:
    if not batch.dim():
        fix = "give [B, ...], a row for each sample"
        raise SettingError("batch", batch.item(), "has a tensor without dimensions", fix)
    if not len(batch) or len(batch) % (workers * passes):
        what = f"{workers} workers" + (f" x {passes} passes" if passes > 1 else "")
        fix = "leave out a short last batch, as DataLoader(drop_last=True) does"
        raise SettingError("batch", len(batch), f"must be a multiple of the {what}", fix)
    shards: Tensor = batch.unflatten(0, (workers, passes, -1))
    return shards
